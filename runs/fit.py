"""What `polyrank fit` reaches on the corpora, from 3,000 training pairs each.

    python runs/fit.py [--data FOLDER] [--sets sgd star ...] [--minutes 30] [--pairs 3000] [--tests 600]

The pairs are those of the first dialogues; the validation lists are the first 1,000 of the development part, and the
test is the first 600 lists. Writes runs/work/fit, and stores fit/SET with runs/record.py. A stopped run resumes.
"""

import argparse
import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from record import parse, write

import polyrank

SETS = ("sgd", "star", "ubuntu-irc", "self-dialogue", "convai2-valid")
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Fit each set, and store its report without texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--tests", type=int, default=600)
    options = parser.parse_args()
    for name in options.sets:
        work = ROOT / "runs/work/fit" / name
        make_parts(options.data / name, work / "data", options.pairs, options.tests)
        fitted = polyrank.fit(
            work / "data", work / "support", minutes=options.minutes, resume=True, show=lambda line: print(line.cells())
        )
        kept = ("lines", "untried", "terms", "chosen", "settings", "ranker", "machine")
        result = {key: fitted.report[key] for key in kept}
        result["test"] = {key: fitted.report["test"][key] for key in ("ranker", "BM25")}
        write(f"fit/{name}", parse(json.dumps(result), lines=False))
        print(fitted, result["test"]["ranker"]["metrics"], result["settings"]["used"], fitted.report["untried"])


def make_parts(source: Path, folder: Path, n_pairs: int, n_tests: int) -> None:
    """A folder as `polyrank split` makes one."""
    folder.mkdir(parents=True, exist_ok=True)
    train = next(file for file in (source / "train.dialogues.jsonl.gz", source / "train.jsonl.gz") if file.exists())
    parts = (("train", chosen(train, n_pairs)), ("valid", lines(source / "dev.jsonl.gz", 1000)))
    for name, rows in (*parts, ("test", lines(source / "test.jsonl.gz", n_tests))):
        (folder / f"{name}.jsonl").write_text("".join(rows), "utf-8")


def lines(file: Path, n: int | None) -> Iterator[str]:
    """The first n lines."""
    with gzip.open(file, "rt", encoding="utf-8") as rows:
        yield from itertools.islice(rows, n)


def chosen(file: Path, n_pairs: int) -> Iterator[str]:
    """The first dialogues with so many pairs, or so many pairs."""
    n = 0
    for line in lines(file, None):
        speakers = [turn["speaker"] for turn in json.loads(line).get("turns", [])]
        agents = "agent" in speakers
        n += sum(speaker == "agent" or not agents for speaker in speakers[1:]) if speakers else 1
        yield line
        if n >= n_pairs:
            return


if __name__ == "__main__":
    main()
