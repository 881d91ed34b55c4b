"""Writes the training data of a general second stage: two files of rows without a common dialogue.

    python runs/second_data.py SHARED_DATA OUTPUT_FOLDER [--limit ROWS_OF_EACH_KIND]

``first.jsonl.gz`` comes from star and half of self-dialogue, ``second.jsonl.gz`` from ubuntu-irc and the other half, so
that an encoder of one file has not seen the corpus of the other. There are three kinds of rows, in random order:

    replies   the next turn of a conversation
    facts     the next turn of a self-dialogue, of which only the last turns are shown, with other turns of the same
              speaker as background
    passages  a turn, and the passage of several turns after it or around it; wrong passages come from the same
              dialogue, and are the best of others by ``shipped:minilm``

Test parts are not used.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from convert_data import rows

from polyrank import load

Row = dict[str, Any]

MAX_WORDS = 130  # of a context, of which a network reads 128 tokens
PASSAGE_WORDS = (60, 110)
QUESTION_WORDS = 6
N_WRONG, N_DRAWN = 9, 200
KINDS = {"star": 40_000, "ubuntu-irc": 40_000, "replies": 15_000, "facts": 15_000, "passages": 9_000}


def newest(turns: Sequence[str]) -> list[str]:
    """The newest turns, until they have enough words."""
    kept: list[str] = []
    n = 0
    for turn in reversed(turns):
        kept.append(turn)
        n += len(turn.split())
        if n >= MAX_WORDS:
            break
    return kept[::-1]


def replies(dialogues: Sequence[Sequence[Row]]) -> Iterator[Row]:
    """Every turn but the first, with the turns before it."""
    for turns in dialogues:
        texts = [turn["text"] for turn in turns]
        for i in range(1, len(texts)):
            yield {"context": newest(texts[:i]), "response": texts[i]}


def facts(dialogues: Sequence[Sequence[Row]], rng: np.random.Generator) -> Iterator[Row]:
    """Every turn that has two or more facts, with the last one to five turns and three to five facts."""
    for turns in dialogues:
        for i in range(1, len(turns)):
            start = max(0, i - int(rng.integers(1, 6)))
            same = [
                turn["text"]
                for n, turn in enumerate(turns)
                if turn["speaker"] == turns[i]["speaker"] and not start <= n <= i and len(turn["text"].split()) > 3
            ]
            if len(same) > 1:
                rng.shuffle(same)
                context = newest([turn["text"] for turn in turns[start:i]])
                yield {"background": same[: int(rng.integers(3, 6))], "context": context, "response": turns[i]["text"]}


def passages(dialogues: Sequence[Sequence[Row]], rng: np.random.Generator, n: int) -> list[Row]:
    """Turns and their passages, with wrong ones."""
    made: list[tuple[str, str, list[str]]] = []
    for turns in dialogues:
        parts, asked, words, low = [], [], 0, int(rng.integers(*PASSAGE_WORDS))
        start = 1
        for i in range(1, len(turns)):
            words += len(turns[i]["text"].split())
            if words >= low:
                texts = [turn["text"] for turn in turns[start : i + 1]]
                inside = int(rng.integers(len(texts)))
                if rng.random() < 0.5 and len(texts) > 2:  # a turn of the passage, without it
                    asked.append(texts.pop(inside))
                else:
                    asked.append(turns[start - 1]["text"])
                parts.append(" ".join(texts))
                start, words = i + 1, 0
        for question, part in zip(asked, parts, strict=True):
            if len(question.split()) >= QUESTION_WORDS:
                made.append((question, part, [other for other in parts if other != part]))
        if len(made) >= n:
            break
    made = made[:n]
    encoder = load("shipped:minilm")
    pool = list(dict.fromkeys(part for _, part, _ in made))
    lists = [[pool[k] for k in rng.choice(len(pool), N_DRAWN, replace=False)] for _ in made]
    scored = encoder.score([question for question, _, _ in made], lists)
    found = []
    for (question, part, near), drawn, scores in zip(made, lists, scored, strict=True):
        best = [drawn[k] for k in np.argsort(-scores)[: N_WRONG + 1] if drawn[k] not in (part, *near)]
        found.append({"context": [question], "response": part, "negatives": [*near[:4], *best][:N_WRONG]})
    return found


def chosen(made: Iterator[Row], n: int, rng: np.random.Generator) -> list[Row]:
    """So many rows at random, or all."""
    every = list(made)
    return [every[i] for i in np.sort(rng.permutation(len(every))[:n])]


def main(data: Path, output: Path, limit: int | None) -> None:
    """Write both files."""
    output.mkdir(parents=True, exist_ok=True)
    n = {name: min(most, limit or most) for name, most in KINDS.items()}
    own = [row["turns"] for row in rows(data / "self-dialogue" / "train.dialogues.jsonl.gz")]
    for number, name in enumerate(("first", "second")):
        rng = np.random.default_rng(number)
        half = own[number::2]
        if name == "first":
            corpus = replies([row["turns"] for row in rows(data / "star" / "train.dialogues.jsonl.gz")])
            made = chosen(corpus, n["star"], rng)
        else:
            pairs = rows(data / "ubuntu-irc" / "train.jsonl.gz")
            corpus = ({"context": newest(row["context"]), "response": row["response"]} for row in pairs)
            made = chosen(corpus, n["ubuntu-irc"], rng)
        third = len(half) // 3  # each kind from other dialogues
        made += chosen(replies(half[:third]), n["replies"], rng)
        made += chosen(facts(half[third : 2 * third], rng), n["facts"], rng)
        made += passages(half[2 * third :], rng, n["passages"])
        order = rng.permutation(len(made))
        with gzip.open(output / f"{name}.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as stream:
            for i, place in enumerate(order.tolist()):
                row = {key: value for key, value in made[place].items() if value}
                stream.write(json.dumps({"id": f"{name}-{i}", **row}, ensure_ascii=False) + "\n")
        print(name, len(made), "rows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    main(arguments.data, arguments.output, arguments.limit)
