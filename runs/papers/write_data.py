"""Writes available corpora in the formats of the papers' corpora, as input for the importers.

    python runs/papers/write_data.py SHARED_DATA OUTPUT_FOLDER [FORMAT ...]

    dstc7       ubuntu-irc as DSTC7 track 1, subtask 1: train, valid and test.json; subtask 2: pool.json, pool.tsv. The
                answers of test and pool are separate: test.answers.tsv, pool.answers.tsv
    dstc7-star  star as the same, subtask 1
    ubuntu-v2   ubuntu-irc as the Ubuntu Dialogue Corpus 2: train, valid and test.csv
    convai2     convai2-valid as ConvAI2: train, valid and test.txt
    wikipedia   medquad's answers as articles: train, valid and test.txt; further.txt, the wrong ones of 1 of 10,001
    reddit      self-dialogue as Reddit pairs: train, valid and test.json, JSON lines as they are published
    amazonqa    medquad's questions and answers as pairs of AmazonQA: train, valid and test.json
    books       neighbouring sentences of medquad's answers as dialogues: train.jsonl

Each folder gets a substitute.txt, which names the corpus. Random draws have a fixed seed, so that the files are always
the same.
"""

import csv
import gzip
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PARTS = {"valid": "dev", "test": "test"}  # the papers' names, and those of the shared corpora
N_FURTHER, N_TEST_ARTICLES, N_VALID_ARTICLES = 10_100, 1_000, 500  # further articles: some have equal words
N_EXTRA = 10  # earlier turns of a Reddit pair


def rows(path: Path) -> Iterator[Row]:
    """The rows of a gzipped file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def training_pairs(folder: Path) -> list[Row]:
    """Rows with ``context`` and ``response``: a dialogue's last agent turn, since --every-turn adds the others."""
    if (folder / "train.jsonl.gz").exists():
        return list(rows(folder / "train.jsonl.gz"))
    pairs = []
    for row in rows(folder / "train.dialogues.jsonl.gz"):
        turns = row["turns"]
        last = max((i for i, turn in enumerate(turns) if turn["speaker"] == "agent"), default=0)
        if last:
            texts = [turn["text"] for turn in turns[: last + 1]]
            pairs.append({"id": row["id"], "context": texts[:-1], "response": texts[-1]})
    return pairs


def with_candidates(pairs: list[Row], n: int) -> Iterator[Row]:
    """Pairs with their response and ``n - 1`` random others, which may have the same words."""
    generator, responses = random.Random(1), [pair["response"] for pair in pairs]
    for pair in pairs:
        candidates = [pair["response"], *generator.choices(responses, k=n - 1)]
        yield {**pair, "candidates": candidates, "relevant": [0]}


def dstc7(data: Path, output: Path, corpus: str = "ubuntu-irc") -> None:
    """Options have their position as id; training examples have ten, lists all of their candidates."""
    parts = {name: list(rows(data / corpus / f"{own}.jsonl.gz")) for name, own in PARTS.items()}
    parts["train"] = list(with_candidates(training_pairs(data / corpus), 10))
    for name, part in parts.items():
        items = []
        for row in part:
            options = [{"candidate-id": f"{i}", "utterance": text} for i, text in enumerate(row["candidates"])]
            items.append(_item(row, {"options-for-next": options}, [options[i] for i in row["relevant"]]))
        _write_items(output, name, items)
    if (data / corpus / "test.pool.jsonl.gz").exists():
        pool = {row["id"]: row["text"] for row in rows(data / corpus / "pool.jsonl.gz")}
        lines = (f"{name}\t{' '.join(text.split())}\n" for name, text in pool.items())
        (output / "pool.tsv").write_text("".join(lines), "utf-8")
        items = []
        for row in rows(data / corpus / "test.pool.jsonl.gz"):
            correct = [{"candidate-id": name, "utterance": pool[name]} for name in row["relevant_ids"]]
            items.append(_item(row, {}, correct))
        _write_items(output, "pool", items)


def _item(row: Row, options: Row, correct: list[Row]) -> Row:
    messages = [{"speaker": f"participant_{i % 2 + 1}", "utterance": text} for i, text in enumerate(row["context"])]
    return {"example-id": row["id"], "messages-so-far": messages, **options, "options-for-correct-answers": correct}


def _write_items(output: Path, name: str, items: list[Row]) -> None:
    if name in ("test", "pool"):
        lines = []
        for item in items:
            for option in item.pop("options-for-correct-answers"):
                cells = (item["example-id"], option["candidate-id"], " ".join(option["utterance"].split()))
                lines.append("\t".join(cells) + "\n")
        (output / f"{name}.answers.tsv").write_text("".join(lines), "utf-8")
    (output / f"{name}.json").write_text(json.dumps(items, ensure_ascii=False), "utf-8")


def ubuntu_v2(data: Path, output: Path) -> None:
    """Each training pair twice: with its response, and with a random one. Lists are cut to ten."""
    generator, pairs = random.Random(2), training_pairs(data / "ubuntu-irc")
    responses = [pair["response"] for pair in pairs]
    with (output / "train.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["Context", "Utterance", "Label"])
        for pair in pairs:
            writer.writerow([_marked(pair["context"]), _plain(pair["response"]), "1.0"])
            writer.writerow([_marked(pair["context"]), _plain(generator.choice(responses)), "0.0"])
    for name, own in PARTS.items():
        with (output / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["Context", "Ground Truth Utterance", *(f"Distractor_{i}" for i in range(9))])
            for row in rows(data / "ubuntu-irc" / f"{own}.jsonl.gz"):
                right = row["candidates"][row["relevant"][0]]
                wrong = [text for i, text in enumerate(row["candidates"]) if i not in row["relevant"]]
                writer.writerow([_marked(row["context"]), *map(_plain, (right, *wrong[:9]))])


def _marked(turns: list[str]) -> str:
    return " ".join(f"{turn} __eou__ __eot__" for turn in turns)


def _plain(text: str) -> str:
    return f"{text} __eou__"


def convai2(data: Path, output: Path) -> None:
    """Consecutive exchanges as ParlAI's lines, with the right candidate last as in ParlAI."""
    pairs = list(rows(data / "convai2-valid" / "train.jsonl.gz"))
    parts = {name: list(rows(data / "convai2-valid" / f"{own}.jsonl.gz")) for name, own in PARTS.items()}
    for name, part in {"train": list(with_candidates(pairs, 20)), **parts}.items():
        lines = []
        for _, dialogue in groupby(part, key=lambda row: row["id"].partition("#")[0]):
            own, earlier = list(dialogue), []
            texts = [f"your persona: {fact}" for fact in own[0].get("background", ())]
            for row in own:
                *before, text = row["context"]
                if before != earlier:
                    break  # an exchange is missing, so later ones would get a wrong context
                right = row["candidates"][row["relevant"][0]]
                wrong = [_bare(other) for other in row["candidates"] if other != right]
                texts.append(f"{_bare(text)}\t{_bare(right)}\t\t{'|'.join((*wrong, _bare(right)))}")
                earlier = [*row["context"], right]
            lines += [f"{number} {text}\n" for number, text in enumerate(texts, 1)]
        (output / f"{name}.txt").write_text("".join(lines), "utf-8")


def _bare(text: str) -> str:
    return " ".join(text.replace("|", " ").split())


def wikipedia(data: Path, output: Path) -> None:
    """An article per line, its sentences separated by tabs; articles of one sentence are left out."""
    articles = ["\t".join(sentences) + "\n" for sentences in _articles(data)]
    random.Random(3).shuffle(articles)
    sizes = {
        "further": min(N_FURTHER, 3 * len(articles) // 4),
        "test": min(N_TEST_ARTICLES, len(articles) // 10),
        "valid": min(N_VALID_ARTICLES, len(articles) // 10),
        "train": len(articles),
    }
    for name, size in sizes.items():
        (output / f"{name}.txt").write_text("".join(articles[:size]), "utf-8")
        articles = articles[size:]


def _articles(data: Path) -> Iterator[list[str]]:
    """The sentences of medquad's answers that have several."""
    for row in rows(data / "medquad" / "answers.jsonl.gz"):
        sentences = re.split(r"(?<=[.?!])\s+", " ".join(row["text"].split()))
        if len(sentences) > 1:
            yield sentences


def books(data: Path, output: Path) -> None:
    """Two sentences of an article that follow each other, as BERT's next-sentence prediction pairs them."""
    with (output / "train.jsonl").open("w", encoding="utf-8") as stream:
        for number, sentences in enumerate(_articles(data)):
            for place, pair in enumerate(pairwise(sentences)):
                turns = [{"speaker": "text", "text": sentence} for sentence in pair]
                stream.write(json.dumps({"id": f"{number}.{place}", "turns": turns}, ensure_ascii=False) + "\n")


def reddit(data: Path, output: Path) -> None:
    """Each turn of a dialogue as a response: ``context`` is the turn before it, ``context/0`` the one before that."""
    folder = data / "self-dialogue"
    with (output / "train.json").open("w", encoding="utf-8") as stream:
        for row in rows(folder / "train.dialogues.jsonl.gz"):
            texts = [turn["text"] for turn in row["turns"]]
            for number in range(1, len(texts)):
                _write_pair(stream, texts[:number], texts[number])
    for name, own in PARTS.items():
        with (output / f"{name}.json").open("w", encoding="utf-8") as stream:
            for row in rows(folder / f"{own}.jsonl.gz"):
                _write_pair(stream, row["context"], row["candidates"][row["relevant"][0]])


def _write_pair(stream: Any, turns: list[str], response: str) -> None:
    *earlier, last = turns
    extra = {f"context/{i}": text for i, text in enumerate(earlier[::-1][:N_EXTRA])}
    stream.write(json.dumps({"context": last, "response": response, **extra}, ensure_ascii=False) + "\n")


def amazonqa(data: Path, output: Path) -> None:
    """A question as context, its answer as response."""
    answers = {row["id"]: row["text"] for row in rows(data / "medquad" / "answers.jsonl.gz")}
    for name, own in {"train": "train", "valid": "dev.pool", "test": "test.pool"}.items():
        with (output / f"{name}.json").open("w", encoding="utf-8") as stream:
            for row in rows(data / "medquad" / f"{own}.jsonl.gz"):
                response = row["response"] if "response" in row else answers[row["relevant_ids"][0]]
                _write_pair(stream, row["context"], response)


def dstc7_star(data: Path, output: Path) -> None:
    """``dstc7`` of star."""
    dstc7(data, output, "star")


FORMATS: dict[str, Callable[[Path, Path], None]] = {
    "dstc7": dstc7,
    "dstc7-star": dstc7_star,
    "ubuntu-v2": ubuntu_v2,
    "convai2": convai2,
    "wikipedia": wikipedia,
    "reddit": reddit,
    "amazonqa": amazonqa,
    "books": books,
}


SOURCES = {"convai2": "convai2-valid", "wikipedia": "medquad", "books": "medquad", "amazonqa": "medquad"}
SOURCES |= {"dstc7": "ubuntu-irc", "dstc7-star": "star", "ubuntu-v2": "ubuntu-irc", "reddit": "self-dialogue"}


def main(data: Path, output: Path, formats: list[str]) -> None:
    """Write each of the formats into its own folder."""
    for name in formats:
        (output / name).mkdir(parents=True, exist_ok=True)
        FORMATS[name](data, output / name)
        (output / name / "substitute.txt").write_text(f"{SOURCES[name]} in their format\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or [*FORMATS])
