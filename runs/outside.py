"""Makes test lists of public conversations that no shipped model was trained or chosen on.

    python runs/outside.py FOLDER OUTPUT [NAME...]

FOLDER holds clones of these repositories, under their own names:

    https://github.com/alexa/Topical-Chat                       chats about articles
    https://github.com/declare-lab/MELD                         scenes of a television series
    https://github.com/google-research-datasets/Taskmaster      orders in a coffee bar
    https://github.com/alexa/alexa-with-dstc9-track1-dataset    questions to hotels, restaurants and others
    https://github.com/xiul-msr/e2e_dialog_challenge            orders of cinema tickets, and of taxis
    https://github.com/festvox/datasets-CMU_DoG                 chats about films
    https://github.com/thu-coai/Emotional-Support-Conversation  people with a worry, and their supporters
    https://github.com/nbertagnolli/counsel-chat                questions to therapists
    https://github.com/deepset-ai/COVID-QA                      questions to offices of public health

Writes at most 1,000 examples each, of all corpora or of those with the NAMEs. ``questions.jsonl`` holds the right
answer among the others of the same hotel, restaurant, and so on; ``counsel.jsonl`` and ``covid.jsonl`` hold
questions, whose candidates are the pools ``counsel.pool.jsonl`` and ``covid.pool.jsonl``; the others hold the right
reply among 99 other turns of the same kind of speaker.
"""

import csv
import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

N_EXAMPLES, N_CANDIDATES, MIN_ANSWERS = 1000, 100, 10
Dialogue = tuple[str, list[tuple[str, str]]]
"""An id, and the speakers and texts of the turns."""


def committed(repository: Path, path: str) -> str:
    """A file of a clone's newest commit, which need not be checked out."""
    return subprocess.run(
        ["git", "-C", repository, "show", f"HEAD:{path}"], check=True, stdout=subprocess.PIPE, encoding="utf-8"
    ).stdout


def topical_chat(folder: Path) -> Iterator[Dialogue]:
    """Two people who read about the same rare topics."""
    for name, chat in json.loads(committed(folder / "Topical-Chat", "conversations/test_rare.json")).items():
        yield name, [(turn["agent"], turn["message"]) for turn in chat["content"]]


def meld(folder: Path) -> Iterator[Dialogue]:
    """Scenes with two or more people."""
    scenes: dict[str, list[tuple[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(committed(folder / "MELD", "data/MELD/test_sent_emo.csv"))):
        scenes.setdefault(row["Dialogue_ID"], []).append((row["Speaker"], row["Utterance"]))
    yield from scenes.items()


def coffee(folder: Path) -> Iterator[Dialogue]:
    """A guest and an assistant."""
    for part in range(8):
        for chat in json.loads(committed(folder / "Taskmaster", f"TM-4-2024/data/data_{part:02}.json")):
            yield chat["conversation_id"], [(turn["speaker"], turn["text"]) for turn in chat["utterances"]]


def orders(folder: Path, kind: str) -> Iterator[Dialogue]:
    """A customer and an agent; ``kind``: movie or taxi."""
    chats: dict[str, list[tuple[str, str]]] = {}
    text = committed(folder / "e2e_dialog_challenge", f"data/{kind}_all.tsv").removeprefix("\ufeff")
    for row in csv.DictReader(io.StringIO(text), delimiter="\t"):
        chats.setdefault(row["session.ID"], []).append((row["Message.From"], row["Message.Text"].strip()))
    yield from chats.items()


def films(folder: Path) -> Iterator[Dialogue]:
    """Two people who read about the same film."""
    repository = folder / "datasets-CMU_DoG"
    listed = ["git", "-C", repository, "ls-tree", "--name-only", "HEAD", "Conversations/test/"]
    for path in subprocess.run(listed, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.split():
        yield path, [(turn["uid"], turn["text"]) for turn in json.loads(committed(repository, path))["history"]]


def support(folder: Path) -> Iterator[Dialogue]:
    """A person with a worry (0) and a supporter (1), whose turns name a strategy in brackets."""
    text = committed(folder / "Emotional-Support-Conversation", "codes/dataset/testWithStrategy_short.tsv")
    chat: dict[int, tuple[str, str]] = {}
    for n, line in enumerate(text.splitlines()):
        turns = [turn.split(maxsplit=3) for turn in line.split(" EOS ")]  # weight, speaker, number, text
        if chat and int(turns[-1][2]) <= max(chat):
            yield f"{n}", [chat[i] for i in sorted(chat)]
            chat = {}
        for _, speaker, number, *words in turns:
            chat[int(number)] = (speaker, re.sub(r"^\[[^]]*\] ?", "", " ".join(words)))
    yield "last", [chat[i] for i in sorted(chat)]


def replies(dialogues: Iterator[Dialogue], speaker: str | None, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Turns of one speaker, or of all, among others."""
    turns = [
        (name, i, texts)
        for name, texts in dialogues
        for i, (who, text) in enumerate(texts)
        if i and text.strip() and speaker in {None, who}
    ]
    catalogue = sorted({texts[i][1] for _, i, texts in turns})
    for name, i, texts in rng.sample(turns, min(N_EXAMPLES, len(turns))):
        right = texts[i][1]
        others = rng.sample(catalogue, N_CANDIDATES)
        candidates = [right, *[text for text in others if text != right][: N_CANDIDATES - 1]]
        rng.shuffle(candidates)
        context = [text for _, text in texts[:i] if text.strip()]
        yield {
            "id": f"{name}#{i}",
            "context": context,
            "candidates": candidates,
            "relevant": [candidates.index(right)],
        }


def questions(folder: Path, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Questions, with all answers of the same business."""
    businesses = [
        (f"{domain}/{name}", list(one["docs"].values()))
        for domain, some in json.loads(
            committed(folder / "alexa-with-dstc9-track1-dataset", "data_eval/knowledge.json")
        ).items()
        for name, one in some.items()
    ]
    titles = [(name, docs, doc) for name, docs in businesses if len(docs) >= MIN_ANSWERS for doc in docs]
    for n, (name, docs, doc) in enumerate(rng.sample(titles, N_EXAMPLES)):
        candidates = list(dict.fromkeys(one["body"] for one in docs))
        rng.shuffle(candidates)
        yield {
            "id": f"{name}#{n}",
            "context": [doc["title"]],
            "candidates": candidates,
            "relevant": [candidates.index(doc["body"])],
        }


def counsel(folder: Path) -> Iterator[tuple[str, str]]:
    """Questions with their details, and each therapist's answer."""
    for row in csv.DictReader(io.StringIO(committed(folder / "counsel-chat", "data/20200325_counsel_chat.csv"))):
        yield f"{row['questionTitle']}\n{row['questionText']}", row["answerText"]


def covid(folder: Path) -> Iterator[tuple[str, str]]:
    """English questions and answers."""
    text = committed(folder / "COVID-QA", "data/faqs/faq_200327.tsv")
    for row in csv.DictReader(io.StringIO(text), delimiter="\t"):
        if row["lang"] == "en":
            yield row["question"], row["answer"]


def asked(pairs: Iterator[tuple[str, str]], pool: Path, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Questions with the ids of their answers in the pool of all answers, which it writes."""
    answers: dict[str, int] = {}
    right: dict[str, set[int]] = {}
    for question, answer in pairs:
        if question.strip() and answer.strip():
            right.setdefault(question, set()).add(answers.setdefault(answer, len(answers)))
    pool.write_text("".join(json.dumps({"id": str(i), "text": text}) + "\n" for text, i in answers.items()), "utf-8")
    for question in rng.sample(sorted(right), min(N_EXAMPLES, len(right))):
        yield {"context": [question], "relevant_ids": [str(i) for i in sorted(right[question])]}


def main(folder: Path, output: Path, *names: str) -> None:
    """Write the files that are missing."""
    output.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[random.Random], Iterator[dict[str, Any]]]] = {
        "topical-chat": lambda rng: replies(topical_chat(folder), None, rng),
        "meld": lambda rng: replies(meld(folder), None, rng),
        "coffee": lambda rng: replies(coffee(folder), "assistant", rng),
        "questions": lambda rng: questions(folder, rng),
        "tickets": lambda rng: replies(orders(folder, "movie"), "agent", rng),
        "taxis": lambda rng: replies(orders(folder, "taxi"), "agent", rng),
        "films": lambda rng: replies(films(folder), None, rng),
        "support": lambda rng: replies(support(folder), "1", rng),
        "counsel": lambda rng: asked(counsel(folder), output / "counsel.pool.jsonl", rng),
        "covid": lambda rng: asked(covid(folder), output / "covid.pool.jsonl", rng),
    }
    for name, make in makers.items():
        if (output / f"{name}.jsonl").exists() or (names and name not in names):
            continue
        rows = list(make(random.Random(name)))
        (output / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        print(f"{name}: {len(rows)} examples")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
