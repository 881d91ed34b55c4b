"""Splitting conversations into three parts: the parts are disjoint, and lists use only their own part."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from polyrank.data import Split, choose_speaker, draw_candidates, read_examples, split, write_split
from polyrank.data.examples import write_examples
from polyrank.data.same_words import same_words
from polyrank.data.splits import PARTS, _time
from polyrank.errors import DataError, UsageError
from polyrank.loading.recipes import load_recipe
from polyrank.records import Example
from polyrank.training.data import load_data
from processes import run

START = datetime(2024, 1, 1)


def chat(number: int, *, n_turns: int = 6, **fields: Any) -> dict[str, Any]:
    """A dialogue whose texts contain its number."""
    turns = [
        {"speaker": ("customer", "agent")[i % 2], "text": f"{('question', 'answer')[i % 2]} {i} of chat {number}"}
        for i in range(n_turns)
    ]
    return {"id": f"chat-{number}", "turns": turns, **fields}


def timed(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [chat(i, time=(START + timedelta(hours=i)).isoformat()) for i in numbers]


def written(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def chats_in(texts: Iterable[str]) -> set[str]:
    return {text.rsplit(" ", 1)[1] for text in texts}


def all_texts(examples: Sequence[Example]) -> list[str]:
    return [text for example in examples for text in (*example.context, *example.candidates)]


def ids(parts: Split) -> dict[str, list[str]]:
    return {name: [c.id for c in getattr(parts, name).conversations] for name in ("train", "valid", "test")}


@pytest.fixture
def shuffled(tmp_path: Path) -> Path:
    """Fifty timed chats in random order."""
    rows = timed(range(50))
    random.Random(1).shuffle(rows)
    return written(tmp_path / "chats.jsonl", rows)


@pytest.mark.parametrize("by", ["time", "id"])
def test_parts_are_disjoint_and_complete(shuffled: Path, tmp_path: Path, by: Any) -> None:
    parts = split(shuffled, by=by, valid=0.2, test=0.1, n_candidates=8)
    files = write_split(tmp_path / "out", parts)
    assert [file.name for file in files] == ["train.jsonl", "valid.jsonl", "test.jsonl"]
    found = [chats_in(all_texts(read_examples(file).examples)) for file in files]
    assert [len(part) for part in found] == [35, 10, 5]
    assert len(set.union(*found)) == 50  # so the three are disjoint, lists and contexts included
    lists = read_examples(files[2]).examples
    assert [len(example.candidates) for example in lists] == [8] * 15
    assert all(len(set(example.candidates)) == 8 for example in lists)
    assert lists == list(parts.test.examples)
    assert {e.response for e in lists} == {f"answer {i} of chat {n}" for i in (1, 3, 5) for n in found[2]}
    assert all(text.startswith("answer") for example in lists for text in example.candidates)
    if by == "time":  # the seed is that of the lists too
        other = split(shuffled, by=by, valid=0.2, test=0.1, n_candidates=8, seed=1)
        for part, again in ((parts.valid, other.valid), (parts.test, other.test)):
            assert [e.context for e in again.examples] == [e.context for e in part.examples]
            assert [e.candidates for e in again.examples] != [e.candidates for e in part.examples]


def test_dialogues_of_the_training_part_are_unchanged(tmp_path: Path) -> None:
    rows = [chat(0), *(chat(i, background=[f"fact of chat {i}"]) for i in range(1, 10))]
    path, _, _ = write_split(tmp_path / "out", split(written(tmp_path / "x.jsonl", rows), by="id"))
    kept = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(kept) == 8
    assert all(row in rows for row in kept)


def test_the_latest_are_the_test_part(shuffled: Path) -> None:
    parts = split(shuffled)
    assert parts.by == "time"
    assert ids(parts) == {
        name: [f"chat-{i}" for i in numbers]
        for name, numbers in (("train", range(40)), ("valid", range(40, 45)), ("test", range(45, 50)))
    }
    assert parts.test.times == tuple(START.replace(tzinfo=UTC) + timedelta(hours=hours) for hours in (45, 49))


def test_times_of_many_forms_are_ordered_by_the_instant(tmp_path: Path) -> None:
    forms = [
        0, 86_400.5, "1970-01-03", "1970-01-03T12:00:00+02:00", "1970-01-03T11:30:00Z", "1970-01-04T00:00",
        1_704_067_200, 1_704_067_200_001, "2024-01-01T00:01:00.5-01:00",
    ]  # fmt: skip
    rows = [chat(i, time=time) for i, time in enumerate(forms)]
    parts = split(written(tmp_path / "x.jsonl", rows[::-1]), valid=0.3, test=0.3, n_candidates=4)
    assert [name for part in ids(parts).values() for name in part] == [f"chat-{i}" for i in range(9)]


def test_a_table_holds_times_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    times = [1_717_164_000 + i if i % 2 else (1_717_164_000 + i) * 1000 for i in range(9)]
    rows = "".join(f"chat-{i},{time},question {i},answer {i}\n" for i, time in enumerate(times))
    path.write_text("id,time,context,response\n" + rows, "utf-8")
    parts = split(path, valid=0.3, test=0.3, n_candidates=3)
    assert [name for part in ids(parts).values() for name in part] == [f"chat-{i}" for i in range(9)]


def test_without_times_a_seed_decides(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", (chat(i) for i in range(40)))
    first, again, other = (split(path, seed=seed) for seed in (0, 0, 1))
    assert first.by == "id"
    assert (first, ids(first)) == (again, ids(again))
    assert set(ids(first)["test"]) != set(ids(other)["test"])
    files = [[file.read_bytes() for file in write_split(tmp_path / name, parts)] for name, parts in
             (("a", first), ("b", again), ("c", other))]  # fmt: skip
    assert files[0] == files[1] != files[2]
    path = written(path, (chat(i) for i in reversed(range(40))))  # the position in the file does not matter
    assert [set(part) for part in ids(split(path)).values()] == [set(part) for part in ids(first).values()]


def test_a_seed_orders_conversations_of_equal_time(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [chat(i, time="2024-01-01") for i in range(40)])
    assert split(path).by == "id"
    parts = [set(ids(split(path, by=by, seed=seed))["test"]) for by in ("time", "id") for seed in (0, 1)]  # type: ignore[arg-type]
    assert parts[0] == parts[2] != parts[1] == parts[3]


def test_conversations_without_a_time_are_drawn_and_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [*timed(range(20)), chat(90), chat(91, time=None)])
    said: list[str] = []
    parts = split(path, notify=said.append)
    assert parts.by == "id"
    assert "2 of 22 conversations have no time" in said[-1]
    for part in (parts.train, parts.valid, parts.test):  # a part has times if each of its conversations has one
        names = [conversation.id for conversation in part.conversations]
        hours = [START.replace(tzinfo=UTC) + timedelta(hours=int(name.removeprefix("chat-"))) for name in names]
        is_timed = not {"chat-90", "chat-91"} & {*names}
        assert part.times == ((min(hours), max(hours)) if is_timed else None)
    assert {part.times is None for part in (parts.train, parts.valid, parts.test)} == {True, False}
    with pytest.raises(DataError, match="2 of 22 conversations have no time; give each"):
        split(path, by="time")


@pytest.mark.parametrize("by", ["time", "id"])
def test_equal_conversations_are_on_one_side(tmp_path: Path, by: Any) -> None:
    """Ids, upper case and closing remarks do not matter: both would teach the same."""
    rows = timed(range(60))
    for i in range(10):
        row = json.loads(json.dumps(rows[i]))
        for turn in row["turns"]:
            turn["text"] = turn["text"].upper() + "!"
        row["turns"].append({"speaker": "customer", "text": "ok"})
        rows.append({**row, "id": f"copy-{i}", "time": (START + timedelta(hours=59 - i)).isoformat()})
    for seed in range(5):
        parts = split(written(tmp_path / "x.jsonl", rows), by=by, seed=seed, valid=0.25, test=0.25)
        assert parts.n_repeated == 10
        part_of = {name: part for part, names in ids(parts).items() for name in names}
        assert len(part_of) == 70
        assert all(part_of[f"chat-{i}"] == part_of[f"copy-{i}"] for i in range(10))
        for name in ("valid", "test"):
            for example in getattr(parts, name).examples:
                assert len({same_words(text) for text in example.candidates}) == parts.n_candidates
    if by == "time":  # the latest of equal ones counts, so that training data are not later than test data
        assert part_of["chat-0"] == "test"
        hours = {name: {int(id_.split("-")[1]) for id_ in names} for name, names in ids(parts).items()}
        latest = {part: [59 - hour if hour < 10 else hour for hour in hours[part]] for part in hours}
        assert max(latest["train"]) <= min(latest["valid"]) <= max(latest["valid"]) <= min(latest["test"])


def test_pairs_of_one_conversation_stay_together(tmp_path: Path) -> None:
    by_id = [
        {"id": f"{n}#{i}", "context": [f"q{i} of {n}"], "response": f"a{i} of {n}"} for i in (1, 3) for n in range(20)
    ]
    parts = split(written(tmp_path / "x.jsonl", by_id), valid=0.2, test=0.2, n_candidates=3)
    assert {len(c.examples) for c in parts.test.conversations} == {2}
    assert sorted(name for part in ids(parts).values() for name in part) == sorted(map(str, range(20)))
    grown = []
    for n in range(20):
        turns = [f"turn {i} of {n}" for i in range(6)]
        grown += [{"context": turns[:i], "response": turns[i]} for i in (1, 3, 5)]
        grown.append({"context": ["hi"], "response": f"alone {n}"})
    for seed in range(3):
        parts = split(written(tmp_path / "y.jsonl", grown), valid=0.2, test=0.2, seed=seed)
        assert (
            sum(len(c.examples) == 3 for part in (parts.train, parts.valid, parts.test) for c in part.conversations)
            == 20
        )
        files = write_split(tmp_path / "out", parts)
        turns_in = [{t.rsplit(" ", 1)[1] for t in all_texts(read_examples(f).examples) if "turn" in t} for f in files]
        assert sum(map(len, turns_in)) == 20
        train = files[0].read_text("utf-8").splitlines()
        assert all(set(json.loads(line)) == {"id", "context", "response"} for line in train)
    table = tmp_path / "faq.csv"
    table.write_text("context,response\n" + "".join(f"q {i},a {i}\n" for i in range(30)), "utf-8")
    assert [len(part) for part in ids(split(table)).values()] == [24, 3, 3]
    assert split(table).n_candidates == 3


def test_a_conversation_of_several_times_has_the_latest(tmp_path: Path) -> None:
    """Its rows are in no order, and other conversations' rows are between them."""
    rows = [
        {
            "id": f"{n}#{i}",
            "context": [f"q{i} of {n}"],
            "response": f"a{i} of {n}",
            "time": (START + passed).isoformat(),
        }
        for i in range(3)
        for n in random.Random(2).sample(range(30), 30)
        for passed in [timedelta(hours=(n, 50 + n, 10)[i])]
    ]
    parts = split(written(tmp_path / "x.jsonl", rows), valid=0.1, test=0.2, n_candidates=2)
    assert (parts.by, ids(parts)["test"]) == ("time", [str(n) for n in range(24, 30)])
    assert ids(parts)["valid"] == ["21", "22", "23"]
    assert parts.test.times == tuple((START + timedelta(hours=50 + n)).replace(tzinfo=UTC) for n in (24, 29))


def test_only_numbers_join_ids_and_only_whole_conversations_are_equal(tmp_path: Path) -> None:
    rows = [
        {"id": f"{n}#{end}", "context": [f"q{end} of {n}"], "response": f"a{end} of {n}"}
        for n in range(9)
        for end in ("a", "1", "02")
    ]
    parts = split(written(tmp_path / "x.jsonl", rows), by="id", valid=0.2, test=0.2, n_candidates=2)
    names = sorted(name for part in ids(parts).values() for name in part)
    assert names == sorted([*map(str, range(9)), *(f"{n}#a" for n in range(9))])
    ends = [
        {"id": f"{n}#{i}", "context": [f"q{i} {n if i == 0 else ''}"], "response": f"a{i}"}
        for n in range(12)
        for i in range(2)
    ]
    assert split(written(tmp_path / "y.jsonl", ends), by="id", n_candidates=2).n_repeated == 0
    same = [
        {**row, "id": f"copy {row['id']}"} for row in ends[: 2 * 6]
    ]  # copies stay on the side of the first, in any order
    for part in ("valid", "test"):
        sides = [
            {
                name.removeprefix("copy ")
                for name in ids(
                    split(written(tmp_path / "z.jsonl", each), by="id", valid=0.2, test=0.2, n_candidates=2)
                )[part]
            }
            for each in ([*ends, *same], [*same, *ends])
        ]
        assert sides[0] == sides[1]


@pytest.mark.parametrize(
    ("value", "day"),
    [
        (200_000_000_000, "1976-05-03"), (900_000_000_000, "1998-07-09"), (99_000_000_000, "5107-03-10"),
        (-200_000_000_000, "1963-08-31"), ("900000000000", "1998-07-09"), ("900000000", "1998-07-09"),
        (20240531, "2024-05-31"), ("20240531", "2024-05-31"), (" 202405312359", "2024-05-31"),
        ("20240531235959", "2024-05-31"), (20241331, "1970-08-23"),
    ],
)  # fmt: skip
def test_large_numbers_are_milliseconds_or_dates(value: Any, day: str) -> None:
    assert str(_time({"time": value}))[:10] == day


def test_lists_are_redrawn_from_their_part(tmp_path: Path) -> None:
    rows = [
        {"id": f"{n}", "context": [f"q of {n}"], "candidates": ["wrong", f"a of {n}", f"b of {n}"], "relevant": [2, 1]}
        for n in range(30)
    ]
    rows.append({"id": "u", "context": ["unanswered"], "candidates": ["a", "b"], "relevant": []})
    parts = split(written(tmp_path / "x.jsonl", rows), valid=0, test=0.5, n_candidates=15)
    assert parts.report.n_skipped == 1
    assert parts.valid.examples == []
    files = write_split(tmp_path / "out", parts)
    assert [file.name for file in files] == ["train.jsonl", "test.jsonl"]
    names = {c.id for c in parts.test.conversations}
    for example in parts.test.examples:
        assert set(example.candidates) <= {f"b of {n}" for n in names}
        assert example.response == f"b of {example.id}"
    assert read_examples(files[0]).examples[0].candidates[0] == "wrong"  # the training part stays unchanged


def test_overwrite_removes_earlier_files(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", (chat(i) for i in range(30)))
    write_split(tmp_path / "out", split(path))
    (tmp_path / "out" / "mine.txt").write_text("keep", "utf-8")
    write_split(tmp_path / "out", split(path, valid=0))
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["mine.txt", "test.jsonl", "train.jsonl"]


@pytest.mark.parametrize("dies_at", PARTS)
def test_a_crash_never_leaves_parts_of_two_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    path, out, replace = written(tmp_path / "x.jsonl", (chat(i) for i in range(60))), tmp_path / "out", Path.replace

    def parts_of(folder: Path, seed: int) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in write_split(folder, split(path, by="id", seed=seed))}

    def dying(self: Path, target: Path) -> Path:
        if target == out / f"{dies_at}.jsonl":
            raise KeyboardInterrupt
        return replace(self, target)

    one, other = parts_of(out, 1), parts_of(tmp_path / "other", 2)
    assert all(one[name] != other[name] for name in one)
    monkeypatch.setattr(Path, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        parts_of(out, 2)
    left = {(file.name, file.read_bytes()) for file in out.glob("*.jsonl")}
    assert left <= one.items() or left <= other.items()


@pytest.mark.deep
def test_a_full_disk_leaves_the_earlier_split(tmp_path: Path) -> None:
    small, large = (written(tmp_path / f"{n}.jsonl", (chat(i) for i in range(n))) for n in (30, 3000))
    assert run("split", small, "-o", tmp_path / "out").returncode == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    script = f"ulimit -f 100; {sys.executable} -m polyrank split {large} -o {tmp_path / 'out'} --overwrite"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([chat(0), chat(1)], {}, "2 different conversations with a response, too few for 3 parts; give at least 3"),
        ([chat(0)] * 5, {"valid": 0}, "1 different conversation with a response, too few for 2 parts"),
        ([chat(i, n_turns=2) for i in range(3)], {}, "valid (1 of 3 conversations): 1 different response, too few"),
        ([chat(i) for i in range(30)], {"n_candidates": 20}, "9 different responses cannot fill lists of 20"),
        ([chat(i) for i in range(30)], {"valid": 0.5, "test": 0.5}, "shares of 0.5 and 0.5"),
        ([chat(i) for i in range(30)], {"valid": 0, "test": 0}, "shares of 0 and 0"),
        ([chat(i) for i in range(30)], {"valid": float("nan")}, "shares of nan"),
        ([chat(i) for i in range(30)], {"valid": -0.1, "test": 0.3}, "shares of -0.1 and 0.3"),
        ([chat(0, time="noon")], {}, ":1: field \"time\" holds 'noon'; write it as 2024-05-31T14:00:00"),
        ([chat(0, time=[1])], {}, ':1: field "time" holds a list'),
        ([chat(0, time=1e300)], {}, ':1: field "time" holds a number'),
        ([{"context": "a", "relevant_ids": ["1"]}], {}, "holds ids of right answers in a pool"),
        ([chat(0), {"turns": 3}], {}, ':2: field "turns" is not a list of turns'),
        ([chat(i) for i in range(30)], {"speaker": "robot"}, "no turn is by speaker 'robot'; its speakers are"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_split(tmp_path: Path, rows: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, UsageError)) as caught:
        split(written(tmp_path / "x.jsonl", rows), **options)
    assert message in str(caught.value)


def test_bad_rows_are_counted_and_a_time_is_not_read_by_id(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [chat(99, time="noon"), *(chat(i) for i in range(30)), {"turns": 1}])
    assert split(path, skip_bad=True).report.n_bad == 2
    assert split(path, skip_bad=True, by="id").report.n_bad == 1
    assert (split(path, skip_bad=True).speaker, split(path, skip_bad=True, speaker="*").speaker) == ("agent", None)


# lists


def test_right_answers_of_a_context_are_never_its_negatives() -> None:
    """Two hundred pairs of five contexts: a right answer of one context is wrong only for the other four."""
    pairs = [Example((f"Context {i % 5}!",), (f"Reply {i}",), (0,), str(i)) for i in range(100)]
    pairs += [Example((f"context {i % 5}",), (f"reply {i}...",), (0,), f"copy {i}") for i in range(100)]
    lists = draw_candidates(pairs, 81, seed=3)
    for example, pair in zip(lists, pairs, strict=True):
        assert (example.response, example.context) == (pair.candidates[0], pair.context)
        wrong = [int(same_words(text).split()[1]) for text in example.candidates if text != example.response]
        own = int(same_words(pair.context[0]).split()[1])
        assert sorted(wrong) == [i for i in range(100) if i % 5 != own]  # all of them
    with pytest.raises(DataError, match="100 different responses cannot fill lists of 82 candidates; choose 2 to 81"):
        draw_candidates(pairs, 82)
    assert {len(example.candidates) for example in draw_candidates(pairs)} == {20}


@pytest.mark.deep
def test_draws_are_uniform_and_positions_too() -> None:
    pairs = [Example((f"c{i}",), (f"r{i}",), (0,)) for i in range(11)]
    counts = [[0] * 11 for _ in range(11)]
    positions = [0] * 5
    for seed in range(600):
        for i, example in enumerate(draw_candidates(pairs, 5, seed=seed)):
            positions[example.relevant[0]] += 1
            for text in example.candidates:
                counts[i][int(text[1:])] += 1
    assert all(counts[i][i] == 600 for i in range(11))
    assert all(abs(n - 240) < 70 for i, row in enumerate(counts) for j, n in enumerate(row) if i != j)  # std 12
    assert all(abs(n - 1320) < 180 for n in positions)  # std 32
    assert draw_candidates(pairs, 5, seed=1) == draw_candidates(pairs, 5, seed=1) != draw_candidates(pairs, 5, seed=2)
    lists = draw_candidates(pairs, 5, seed=1)  # the draws of one seed differ, too
    assert len({example.relevant for example in lists}) > 2
    assert len({tuple(sorted({*example.candidates} - {f"r{i}"})) for i, example in enumerate(lists)}) > 8


def test_the_background_is_not_a_turn() -> None:
    """So answers after a fact and after a turn with the same words are wrong for each other."""
    pairs = [Example(("hi", "I ski"), ("yes",), (0,)), Example(("hi",), ("no",), (0,), background=("I ski",))]
    assert [{*example.candidates} for example in draw_candidates(pairs, 2)] == [{"yes", "no"}] * 2


def test_drawn_lists_have_neither_the_ids_nor_the_grades_of_the_answers(tmp_path: Path) -> None:
    """Both are of a pool, which drawn lists replace, and a file with grades alone could not be read again."""
    judged = [Example((f"q{i}",), (f"a{i}",), (0,), f"e{i}", (), (f"x{i}",), (2,)) for i in range(4)]
    lists = draw_candidates(judged)
    assert {(example.relevant_ids, example.grades) for example in lists} == {((), ())}
    for examples in (judged, lists):
        write_examples(tmp_path / "lists.jsonl", examples)
        assert read_examples(tmp_path / "lists.jsonl").examples == examples


# whose turns


@pytest.mark.parametrize(
    ("speakers", "asked", "chosen", "said"),
    [
        (["customer", "agent"], None, "agent", "replies are the turns of agent, not of customer"),
        (["User", "Assistant", "tool"], None, "Assistant", "not of User, tool"),
        (["user", "advisor", "support"], None, "support", "turns of support, not of advisor, user"),
        (["ann", "bob"], None, None, "replies are the turns of all speakers, ann, bob"),
        (["agent"], None, None, ""),
        (["customer", "agent"], "customer", "customer", ""),
        (["customer", "agent"], "*", None, ""),
    ],
)
def test_speakers_whose_turns_are_replies(
    tmp_path: Path, speakers: list[str], asked: Any, chosen: Any, said: str
) -> None:
    row = {"turns": [{"speaker": name, "text": name} for name in speakers]}
    lines: list[str] = []
    assert choose_speaker(written(tmp_path / "x.jsonl", [row]), asked, notify=lines.append) == chosen
    assert len(lines) == bool(said)
    assert not said or said in lines[0]
    pairs = written(tmp_path / "p.jsonl", [{"context": "a", "response": "b"}, row])
    if asked == "*":
        with pytest.raises(UsageError, match=r"speaker '\*' applies only to dialogues, and .*p.jsonl does"):
            choose_speaker(pairs, asked)
    else:
        assert choose_speaker(pairs, asked, notify=lines.append) == asked
    assert len(lines) == bool(said)


def test_a_pipe_is_refused_before_it_is_empty() -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"context": "a", "response": "b"}\n')
    os.close(writing)
    try:
        with pytest.raises(DataError, match="is a pipe, which can be read only once; save it as a file"):
            choose_speaker(f"/dev/fd/{reading}")
        assert len(read_examples(f"/dev/fd/{reading}").examples) == 1
    finally:
        os.close(reading)


def test_a_recipe_trains_and_validates_on_the_agents_turns(tmp_path: Path) -> None:
    written(tmp_path / "train.jsonl", (chat(i) for i in range(8)))
    written(tmp_path / "valid.jsonl", (chat(i) for i in range(8, 20)))
    lines = ['output = "run"', "[model]", 'kind = "bi"', "[data]", 'train = "train.jsonl"', 'valid = "valid.jsonl"']
    (tmp_path / "r.toml").write_text("\n".join(lines), "utf-8")
    said: list[str] = []
    examples, lists = load_data(load_recipe(tmp_path / "r.toml").data, notify=said.append)
    assert {example.response or "" for example in examples} == {
        f"answer {i} of chat {n}" for i in (1, 3, 5) for n in range(8)
    }
    assert len(lists) == 36
    assert {len(example.candidates) for example in lists} == {20}
    assert chats_in(all_texts(lists)) == set(map(str, range(8, 20)))
    assert all("answer" in text for example in lists for text in example.candidates)
    assert any("data.speaker" in line for line in said)
    every = load_recipe(tmp_path / "r.toml", ("data.speaker=*", "data.valid_candidates=30", "data.max_valid=7"))
    examples, lists = load_data(every.data, notify=said.append)
    assert (len(examples), len(lists), len(lists[0].candidates)) == (40, 7, 30)
    seeds = load_recipe(tmp_path / "r.toml", ("train.seeds=[7]", "data.max_valid=5"))
    whole = load_data(load_recipe(tmp_path / "r.toml").data, notify=said.append)
    assert load_data(seeds.data, notify=said.append)[1] == whole[1][:5]


# the command


@pytest.mark.deep
def test_the_command_reports_its_split_and_writes_a_valid_recipe(tmp_path: Path, shuffled: Path) -> None:
    out = tmp_path / "out"
    made = run("split", shuffled, "-o", out)
    assert made.returncode == 0, made.stderr
    assert "replies are the turns of agent" in made.stderr
    assert "lists of 15 candidates, not 20" in made.stderr
    assert f"polyrank train {out / 'recipe.toml'}" in made.stderr
    assert [part in made.stdout for part in ("train", "valid", "test", "2024-01-02 21:00")] == [True] * 4
    examples, lists = load_data(load_recipe(out / "recipe.toml").data)
    assert (len(examples), len(lists)) == (120, 15)
    refused = run("split", shuffled, "-o", out)
    assert (refused.returncode, "already exists" in refused.stderr) == (2, True)
    options = ("--by", "id", "--speaker", "customer", "--candidates", "4")
    again = run("split", shuffled, "-o", out, "--overwrite", "--json", *options)
    counts = json.loads(again.stdout)
    assert (counts["by"], counts["speaker"], counts["n_candidates"]) == ("id", "customer", 4)
    assert (counts["test"]["n_conversations"], counts["test"]["n_examples"]) == (5, 10)
    itself = run("split", out / "train.jsonl", "-o", out, "--overwrite")
    assert (itself.returncode, "give another file" in itself.stderr) == (2, True)
    found = run("evaluate", "bm25", out / "test.jsonl", "--json")
    assert json.loads(found.stdout)["n_candidates"] == 4


@pytest.mark.deep
def test_dialogues_are_evaluated_by_the_agents_turns(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", (chat(i) for i in range(10)))
    n_examples = {}
    for options in ((), ("--speaker", "customer"), ("--speaker", "*")):
        found = run("evaluate", "bm25", path, "--json", *options)
        assert found.returncode == 0, found.stderr
        assert "ranked among 19 other responses" in found.stderr
        n_examples[options] = json.loads(found.stdout)["n_examples"]
    assert list(n_examples.values()) == [30, 20, 50]


def test_mining_reads_the_agents_turns(tmp_path: Path) -> None:
    chats = written(tmp_path / "chats.jsonl", [chat(i) for i in range(12)])
    mined = run("mine", chats, "--from", "bm25", "-o", tmp_path / "mined.jsonl", "-n", "2", "--json")
    assert json.loads(mined.stdout)["n_examples"] == 36
