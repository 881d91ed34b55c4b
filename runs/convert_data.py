"""Writes one training file and one validation file for a general encoder from several corpora.

    python runs/convert_data.py SHARED_DATA OUTPUT_FOLDER [CORPUS[:ROWS] ...] [--valid CORPUS ...]

``train.jsonl.gz`` holds dialogues in which each turn to train on has the speaker "reply", for ``data.speaker``. In the
corpora of whole dialogues this is every turn; in ubuntu-irc, whose rows are pairs, it is only the response.
``valid.jsonl.gz`` holds the first 50 candidate lists of each corpus's validation part, or of the corpora after
``--valid``, so that you can select a model on corpora outside its training data. Test parts are not used. Without
names the script uses all four corpora, and without ROWS all rows of a corpus.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

DIALOGUES = ("self-dialogue", "sgd", "star")
PAIRS = ("ubuntu-irc",)
MAX_TURNS = 11  # a ConveRT reads only the last turn and ten earlier ones
N_VALID = 50


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a gzipped file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def dialogues(data: Path, corpora: Mapping[str, int | None]) -> Iterator[dict[str, Any]]:
    """Each corpus's first rows (None: all) as dialogues with the turns to train on marked."""
    for name in (name for name in corpora if name in DIALOGUES):
        for row in islice(rows(data / name / "train.dialogues.jsonl.gz"), corpora[name]):
            turns = [{"speaker": "reply", "text": turn["text"]} for turn in row["turns"]]
            yield {"id": row["id"], "turns": turns}
    for name in (name for name in corpora if name in PAIRS):
        for row in islice(rows(data / name / "train.jsonl.gz"), corpora[name]):
            context = [{"speaker": "context", "text": text} for text in row["context"][-MAX_TURNS:]]
            yield {"id": row["id"], "turns": [*context, {"speaker": "reply", "text": row["response"]}]}


def main(data: Path, output: Path, corpora: Mapping[str, int | None], valid_corpora: Sequence[str]) -> None:
    """Write both files."""
    output.mkdir(parents=True, exist_ok=True)
    valid = (row for name in valid_corpora for row in islice(rows(data / name / "dev.jsonl.gz"), N_VALID))
    for name, made in (("train.jsonl.gz", dialogues(data, corpora)), ("valid.jsonl.gz", valid)):
        with gzip.open(output / name, "wt", encoding="utf-8", compresslevel=1) as stream:
            for row in made:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("corpora", nargs="*", default=[*DIALOGUES, *PAIRS], metavar="CORPUS[:ROWS]")
    parser.add_argument("--valid", nargs="+", metavar="CORPUS")
    arguments = parser.parse_args()
    parts = [name.partition(":") for name in arguments.corpora]
    chosen = {name: int(n) if n else None for name, _, n in parts}
    main(arguments.data, arguments.output, chosen, arguments.valid or list(chosen))
