"""Catalogues of replies from users' tables and texts, and from conversations."""

import datetime
import json
import sys
from dataclasses import replace
from pathlib import Path

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from polyrank.data import frequent_replies, read_pool, read_replies, text_id
from polyrank.data.pool import pool_of
from polyrank.data.same_words import same_words
from polyrank.errors import DataError, UsageError
from polyrank.records import Candidate, Example
from polyrank_chats import import_chats
from processes import run


def texts_of(replies: list[Candidate]) -> list[str]:
    return [reply.text for reply in replies]


def test_every_format_has_the_same_replies(tmp_path: Path) -> None:
    texts = ["Grüezi, how are you?", "one; two", 'write "no"', "two\nlines", "🙂"]
    flat = [text.replace("\n", " ") for text in texts]
    (tmp_path / "r.txt").write_text("\n\n".join(flat) + "\n \n" + flat[0], "utf-8-sig")
    (tmp_path / "r.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    (tmp_path / "r.json").write_text(json.dumps([{"answer": text} for text in texts]), "utf-8")
    cells = ['"' + text.replace('"', '""') + '"' for text in texts]
    (tmp_path / "r.csv").write_bytes("\r\n".join(["n;Reply", *(f"1;{cell}" for cell in cells)]).encode("utf-16"))
    (tmp_path / "r.tsv").write_text("\n".join(["whatever", *cells]), "utf-8")
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "r.parquet")
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (["Title", "Canned_Response"], *(["t", text] for text in texts)):
        book.active.append(row)
    book.save(tmp_path / "r.xlsx")
    for name in ("r.txt", "r.jsonl", "r.json", "r.csv", "r.tsv", "r.parquet", "r.xlsx"):
        found = read_replies(tmp_path / name)
        assert texts_of(found) == (flat if name == "r.txt" else texts), name
        assert [reply.id for reply in found] == [text_id(reply.text) for reply in found]
    said: list[str] = []
    (tmp_path / "end.txt").write_text("a\nb\n", "utf-8")
    assert texts_of(read_replies(tmp_path / "end.txt", notify=said.append)) == ["a", "b"]
    assert said == []  # the end of a file is not a blank line
    (tmp_path / "w.csv").write_bytes("text,id\nGrüezi wohl über Straße,7\nTschüß,8\n".encode("cp1252"))
    assert read_replies(tmp_path / "w.csv") == [Candidate("7", "Grüezi wohl über Straße"), Candidate("8", "Tschüß")]
    (tmp_path / "old.csv").write_bytes("text\nGrüezi\nTschüß\n".encode("cp437"))
    assert texts_of(read_replies(tmp_path / "old.csv", encoding="cp437")) == ["Grüezi", "Tschüß"]
    book.create_sheet("short").append(["text"])
    book["short"].append(["only this"])
    book.save(tmp_path / "two.xlsx")
    sheets = [texts_of(read_replies(tmp_path / "two.xlsx", sheet=sheet)) for sheet in (None, "short")]
    assert sheets == [texts, ["only this"]]


def test_html_becomes_the_text_that_imported_chats_have(tmp_path: Path) -> None:
    page, chats, said = "<p>Restart <b>it</b>.</p>", tmp_path / "chats.csv", list[str]()
    (tmp_path / "r.csv").write_text(f"text\n{page}\nRestart it.\na < b\n", "utf-8")
    chats.write_text(f"question,answer\nhelp,{page}\n", "utf-8")
    found = read_replies(tmp_path / "r.csv", notify=said.append)
    assert texts_of(found) == ["Restart it.", "a < b"]
    assert import_chats(chats).dialogues[0]["turns"][1]["text"] == found[0].text
    assert [line.split(": ")[1] for line in said] == ["1 repeated left out"]


def test_a_language_unknown_to_the_shipped_encoders_is_reported(tmp_path: Path) -> None:
    for name, text, known in (
        ("de", "Wo ist die Rechnung?\nDas ist sie nicht\n", False),
        ("en", "Is it that?\n", True),
    ):
        (tmp_path / name).write_text(text, "utf-8")
        said: list[str] = []
        read_replies(tmp_path / name, notify=said.append)
        assert (
            any("most replies seem to be in another language than English (de)" in line for line in said) is not known
        )


def test_invisible_signs_are_no_part_of_words() -> None:
    assert same_words("co\u00adoperate\u200b now\ufeff!") == same_words("cooperate now")
    with pytest.raises(UsageError, match="`top` is 0; keep at least 1 reply"):
        frequent_replies([Example(("hi",), ("yes",), (0,))] * 3, top=0)
    assert len(pool_of([{"id": "", "text": "yes"}, {"text": "yes"}, {"id": None, "text": "yes"}])) == 1


def test_a_word_of_two_customers_is_rare_however_often_they_alternate() -> None:
    """Values that replies to three customers hold stay text; those of fewer do not."""

    def said(*customers: str) -> list[str]:
        pairs = [
            Example((f"Hello, my name is {name}.",), (f"Call 0800 123 456, {name}.",), (0,), f"{n}#1")
            for n, name in enumerate(customers)
        ]
        return [reply.text for reply in frequent_replies(pairs, min_count=1)]

    assert said("Ann", "Bob", "Ann", "Bob", "Ann") == ["Call {phone}, {customer}."]
    assert said("Ann", "Bob", "Cy") == ["Call 0800 123 456, {customer}."]


def test_replies_that_all_may_hold_data_are_reported_as_such() -> None:
    """As answers to questions, each given once, in a language with capitals within sentences."""
    said = [Example((f"Was ist {n}?",), (f"Halten Sie Taste {n} {n + 2} Sekunden.",), (0,)) for n in range(9)]
    reason = "all 9 replies are left out because a word may be .*, such as 'Halten Sie Taste 0 2 Sekunden.'; give"
    with pytest.raises(DataError, match=reason):
        frequent_replies(said, min_count=1)


def test_guesses_and_skipped_rows_are_reported_and_the_rest_is_metadata(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (["id", "answer", "since", "n"], ["a", "yes", datetime.datetime(2024, 5, 31), None],
                [None, "no", None, 3], ["b", " ", None, 1], ["c", "yes ", None, 1]):  # fmt: skip
        book.active.append(row)
    book.save(tmp_path / "r.xlsx")
    said: list[str] = []
    found = read_replies(tmp_path / "r.xlsx", notify=said.append)
    assert (found[0].id, found[0].text, found[0].metadata["since"][:10]) == ("a", "yes", "2024-05-31")
    assert (found[1].id, found[1].text, found[1].metadata) == (text_id("no"), "no", {"n": "3"})
    assert len(found) == 2
    assert [line.split(": ")[1] for line in said] == [
        "texts are in column 'answer'", "1 blank left out", "1 repeated left out"
    ]  # fmt: skip
    day = datetime.date(2024, 5, 31)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["yes"], "since": [day], "n": [3]}), tmp_path / "r.parquet")
    assert read_replies(tmp_path / "r.parquet")[0].metadata == {"since": "2024-05-31", "n": 3}  # JSON has no dates
    other = tmp_path / "x.csv"
    other.write_text("since,answer\nyes,no\n", "utf-8")
    assert texts_of(read_replies(other, column="since")) == ["yes"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "", "is empty"),
        ("x.txt", " \n \n", "is empty"),
        ("x.csv", "text\n", "holds no replies"),
        ("x.csv", "text,n\n ,1\n", "holds no replies"),
        ("x.csv", "x,y\n1,2\n", "among 'x', 'y'; name the column of texts with `column`"),
        ("x.csv", "id,text\n1,a\n1,b\n", ":3: id '1' belongs to another reply"),
        ("x.jsonl", '{"text": 3}\n{"text": "a"}\n', ':1: field "text" holds a number'),
        ("x.jsonl", '{"text": "a"}\n{"text"\n', ":2: not JSON"),
        ("x.jsonl", '{"turns": ["a", "b"]}\n', "holds dialogues; collect their frequent replies"),
        ("x.xlsx", "no sheet", "x.xlsx"),
        ("absent.csv", None, "No such file"),
    ],
)
def test_invalid_catalogues(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content, "utf-8")
    if name == "x.xlsx":  # other bytes with the name of a workbook
        assert texts_of(read_replies(path)) == ["no sheet"]
        return
    with pytest.raises((DataError, UsageError)) as caught:
        read_replies(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_missing_column(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(UsageError, match=r"has no column 'c'; it has 'a', 'b'"):
        read_replies(tmp_path / "x.csv", column="c")


def examples(*texts: str) -> list[Example]:
    return [Example(("hi",), (text, "wrong"), (0,)) for text in texts]


def test_frequent_replies_are_counted_over_their_variants() -> None:
    said = [
        "Please restart it.", "please restart it", "Please restart it.", "Hello Ann, please wait 5 minutes.",
        "Hello Bob! Please wait 5 minutes", "Hello there", "Once only", " ", "Hello there",
    ]  # fmt: skip
    found = frequent_replies([*examples(*said), Example(("unanswered",), ("wrong", "wrong"))])
    wait = "Hello {customer}, please wait 5 minutes."
    assert found == [
        Candidate(text_id("Please restart it."), "Please restart it.", {"count": 3, "n_variants": 2, "language": "en"}),
        Candidate(text_id(wait), wait, {"count": 2, "n_variants": 2}),
        Candidate(text_id("Hello there"), "Hello there", {"count": 2, "n_variants": 1, "kind": "greeting"}),
    ]
    assert [reply.text for reply in frequent_replies(examples(*said), min_count=1)][3:] == ["Once only"]
    assert frequent_replies(examples(*said), top=1) == found[:1]
    with pytest.raises(DataError, match=r"none of 4 .* 4 times, the most frequent 3 times; lower `min_count`"):
        frequent_replies(examples(*said), min_count=4)


def test_replies_are_merged_across_names_and_misspellings_but_not_words() -> None:
    apart = [
        "Hi, wait",
        "Hi, stop",
        "dear me, no",
        "dear you, no",
        "wait 2 days",
        "wait 3 days",
        "It is now open",
        "It is not open",
    ]
    assert len(frequent_replies(examples(*apart), min_count=1)) == len(apart)
    for alike in (
        ["Good morning Zoë: yes", "good morning Max, yes", "Good  morning Zoe\u0308! Yes"],
        ["Zoe, it is on its way", "Ben, it is on its way."],
        ["You are welcome, Zoe!", "you are welcome, Ben"],
        [
            "Please restart the router",
            "Please restart the router.",
            "Please restrat the router",
            "PLEASE restart the routr",
        ],
        ["Log in again.", "Login again"],
        ["Your order AR-12345 is here", "Your order #77123 is here", "Your order {order} is here"],
        ["Regards, Sam", "Regards,\nNadia Lee"],
    ):
        (found,) = frequent_replies(examples(*alike), min_count=1)
        assert found.metadata["count"] == len(alike), found


def test_every_typing_error_in_one_place_is_corrected_to_the_more_frequent_word() -> None:
    word = "keyboard"
    errors = {
        *(word[:i] + word[i + 1 :] for i in range(1, 8)), *(f"{word[:i]}q{word[i:]}" for i in range(1, 9)),
        *(f"{word[:i]}q{word[i + 1 :]}" for i in range(1, 8)),
        *(word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(1, 7)),
    }  # fmt: skip
    assert len(errors) == 28
    said = [f"check the {each}" for each in (word, word, *sorted(errors))]
    (found,) = frequent_replies(examples(*said), min_count=1)
    assert (found.text, found.metadata["count"]) == (f"check the {word}", 30)
    for other in ("qeyboard", "eyboard", "ekyboard", "keyqboqrd", "keybqqrd"):  # the beginning, or two errors
        assert len(frequent_replies(examples(*said[:2], f"check the {other}"), min_count=1)) == 2, other
    for first, second in ((5, 3), (3, 5)):
        words = [*["printer"] * first, *["printed"] * second]  # both are frequent, so they are two words
        found = frequent_replies(examples(*(f"take the {each}" for each in ("printel", *words))), min_count=1)
        assert [(reply.text, reply.metadata["count"]) for reply in found] == [
            ("take the printer" if first > second else "take the printed", 6),
            ("take the printed" if first > second else "take the printer", 3),
        ]


@pytest.mark.parametrize(
    ("word", "error", "n_word", "n_error", "n_kept"),
    [
        ("reply", "repli", 2, 1, 1), ("repl", "repi", 2, 1, 2),  # shorter words are not corrected
        ("router", "routre", 1, 1, 2),  # which is which?
        ("router", "roter", 19, 2, 2), ("router", "roter", 20, 2, 1),  # ten times as many
        ("router", "routre", 20, 2, 2), ("order", "orders", 20, 2, 2),  # no letter is missing
        ("router7", "router8", 5, 1, 2),  # digits are not letters
    ],
)  # fmt: skip
def test_rare_words_are_errors(word: str, error: str, n_word: int, n_error: int, n_kept: int) -> None:
    said = [f"see the {each} now" for each in [word] * n_word + [error] * n_error]
    assert len(frequent_replies(examples(*said), min_count=1)) == n_kept


def test_each_reply_has_the_language_of_its_conversations() -> None:
    german = (
        "Mein Paket ist noch nicht angekommen",
        "OK",
        "Wann kommt es denn an?",
        "Das wissen wir leider nicht",
    )
    english = "My parcel has not arrived yet", "OK!", "When will it finally arrive?", "We do not know that yet"
    for n_german, n_english, ok, language in ((3, 3, "OK", "de"), (3, 4, "OK!", "en")):
        talks = [german] * n_german + [english] * n_english
        read = [each for n, turns in enumerate(talks) for each in dialogue(f"d{n}", *turns)]
        found = {reply.text: reply.metadata.get("language") for reply in frequent_replies(read)}
        assert found == {ok: language, german[3]: "de", english[3]: "en"}


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ("on 3 May or 4 May", "on {date} or {date_2}"), ("at 5 pm or 6 pm", "at {time} or {time_2}"),
        ("for $10 or $20", "for {amount} or {amount_2}"), ("as AR-55121 or AR-55122", None),
        ("for a@x.example or b@x.example", None), ("to 0800 123 456 or 0800 123 457", None),
    ],
)  # fmt: skip
def test_a_reply_may_have_several_dates_times_and_amounts_only(values: str, made: str | None) -> None:
    read = [each for n in range(2) for each in dialogue(f"d{n}", "Where is it?", f"It is sent {values}.", "ok", "Bye")]
    assert texts_of(frequent_replies(read)) == [*([] if made is None else [f"It is sent {made}."]), "Bye"]


@pytest.mark.parametrize(("n_german", "language"), [(1, None), (4, None), (5, "de"), (6, "de")])
def test_a_language_of_hardly_any_conversation_is_an_error(
    n_german: int, language: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["polyrank.data.frequent_replies"], "MIN_SHARE", 0.1)  # a function has its name
    talks = [("Mein Paket ist noch nicht angekommen", "Das wissen wir leider nicht")] * n_german
    talks += [("My parcel has not arrived yet", "We do not know that yet")] * (50 - n_german)
    read = [each for n, turns in enumerate(talks) for each in dialogue(f"d{n}", *turns)]
    found = {reply.text: reply.metadata.get("language") for reply in frequent_replies(read, min_count=1)}
    assert found == {"We do not know that yet": "en", "Das wissen wir leider nicht": language}


def dialogue(name: str, *turns: str) -> list[Example]:
    """The examples of an agent's turns, which are every second one."""
    return [Example(turns[:n], (turns[n],), (0,), f"{name}#{n}") for n in range(1, len(turns), 2)]


def test_the_data_of_customers_becomes_slots_and_the_data_of_the_firm_stays() -> None:
    customers = [("Zoe", "AR-92457", "3 May"), ("Ben", "AR-10421", "9 June"), ("Will", "#7712", "1 July")]
    read = [
        each
        for n, (name, order, day) in enumerate(customers)
        for each in dialogue(
            f"d{n}",
            f"My parcel is late. I'm {name}.",
            f"Hi {name}! What is the number?",
            f"It is {order}",
            f"{name}, {order} arrives on {day}. Call 0800 123 456 within 14 days.",
            "thanks, will do",
            f"{name}'s ticket 55{n}1 is closed. Regards, Sam",
        )
    ]  # fmt: skip
    said: list[str] = []
    found = frequent_replies(read, notify=said.append)
    assert {reply.metadata.pop("language") for reply in found} == {"en"}
    assert [(reply.text, reply.metadata) for reply in found] == [
        ("Hi {customer}! What is the number?", {"count": 3, "n_variants": 3}),
        (
            "{customer}, {order} arrives on {date}. Call 0800 123 456 within 14 days.",
            {"count": 3, "n_variants": 3, "gaps": ["date"]},
        ),
        ("{customer}'s ticket {order} is closed. Regards, {agent}", {"count": 3, "n_variants": 3, "gaps": ["order"]}),
    ]
    assert said == []


def test_majorities_and_customers_are_counted_over_all_conversations() -> None:
    """The first of several conversations is the exception in each case."""

    def asked(n: int, question: str, reply: str, name: str = "") -> list[Example]:
        return dialogue(f"d{n}", f"Where is it? {question}. I'm {name or f'Customer{chr(97 + n)}'}.", reply)

    def gaps(*said: bool) -> object:
        """Whether the order is a gap, if the customers of some conversations have said it."""
        read = [
            one
            for n, known in enumerate(said)
            for one in asked(n, f"My order is AR-5512{n}" if known else "I lost it", f"It is AR-5512{n}.")
        ]
        (found,) = frequent_replies(read)
        assert found.text == "It is {order}."
        return found.metadata.get("gaps")

    assert gaps(True, False, False) == ["order"]
    assert gaps(False, True, True) is None
    assert gaps(True, False) is None  # half of them
    known = [
        replace(one, background=(f"Order: AR-5512{n}",))
        for n in range(2)
        for one in asked(n, "I lost it", f"It is AR-5512{n}.")
    ]
    assert [reply.metadata.get("gaps") for reply in frequent_replies(known)] == [None]  # facts are known too
    phone = [one for n in range(4) for one in asked(n, "ok", "Call 0800 123 456.")]
    assert texts_of(frequent_replies(phone)) == ["Call 0800 123 456."]
    for firm, own, kind in (("0800 123 456", "030 55512{}", "phone"), ("help@shop.com", "c{}@mail.org", "email")):
        for question in ("Mine is {}", "ok"):  # the firm's value is not a gap, and the customer's only if it is unsaid
            values = list(map(own.format, range(4)))
            both = [
                one
                for n, value in enumerate(values)
                for one in asked(n, question.format(value), f"Ask {firm} and we will use {value}.")
            ]
            (reply,) = frequent_replies(both)
            assert reply.text == f"Ask {firm} and we will use {{{kind}}}."
            assert reply.metadata.get("gaps") == ([kind] if question == "ok" else None)
    said = [*phone, *asked(7, "I am on 0800 123 456", "It is here")]  # by a customer, so it is not the firm's
    assert texts_of(frequent_replies(said)) == ["Call {phone}."]
    several = [one for n in range(2) for one in asked(n, "ok", "Call 0800 123 456.")]  # a private number so far
    assert texts_of(frequent_replies(several)) == ["Call {phone}."]
    three = [*several, *asked(2, "ok", "Call 0800 123 456.")]
    assert texts_of(frequent_replies(three)) == ["Call 0800 123 456."]
    talk = ("Where is it?", "ok", "and now?", "Call 0800 123 456.", "ok", "Bye now")  # the customer repeats the agent
    repeated = [one for n in range(3) for one in dialogue(f"t{n}", *talk)]
    assert "Call 0800 123 456." in texts_of(frequent_replies(repeated))
    greeted = ("Hello", "Hello", "Where is it?", "ok", "and now?", "Call 0800 123 456.", "oh well", "Bye now")
    repeated = [one for n in range(3) for one in dialogue(f"t{n}", *greeted)]  # and greets in the agent's words
    assert "Call 0800 123 456." in texts_of(frequent_replies(repeated))
    named = [one for n in range(2) for one in asked(n, "ok", "It is here", "Zoe")]
    unknown = [one for n in (5, 6) for one in dialogue(f"u{n}", "Where is it?", "It went to Zoe.")]
    assert texts_of(frequent_replies([*named, *unknown])) == ["It is here", "It went to {customer}."]
    order = "AR-55120 is late. Is it AR-55120?"
    for names, text in (
        (("Zoe", "Zoe", "Zoe"), "{order} is late. Is it {order}?"), (("Zoe", "Ben", "Max"), order),
    ):  # fmt: skip
        read = [one for n, name in enumerate(names) for one in asked(n, "ok", order, name)]
        assert texts_of(frequent_replies(read)) == [text]
    place = "It lies at Rosegarden"
    for names, kept in ((("Zoe", "Zoe", "Zoe"), []), (("Zoe", "Ben", "Max"), [place])):
        read = [one for n, name in enumerate(names) for one in asked(n, "ok", place, name)]
        found = frequent_replies([*read, *asked(8, "ok", "It is sent"), *asked(9, "ok", "It is sent")])
        assert texts_of(found) == [*kept, "It is sent"]


def test_a_name_of_both_participants_is_that_of_the_customer() -> None:
    read = [
        one
        for n, (customer, agent) in enumerate((("Ann", "Ann"), ("Ben", "Ben"), ("Zoe", "Max")))
        for one in dialogue(
            f"d{n}", f"Where is it? I'm {customer}.", f"Hi {customer}, I'm {agent}.", "ok", f"Bye {customer}"
        )
    ]
    assert "Bye {customer}" in texts_of(frequent_replies(read))


@pytest.mark.parametrize(
    "reply",
    [
        "Your orders AR-12345 and AR-67890 were sent",  # which number is which?
        "Hi Ann, I have asked Maria about it",  # a name that is nobody's in this conversation
        "It lies with the Smiths next door",
        "Ankit, it is here",
        "It lies at 12 Rosegarden",
    ],
)
def test_a_reply_whose_data_fits_no_slot_is_left_out_and_reported(reply: str) -> None:
    said: list[str] = []
    found = frequent_replies(examples(reply, "It is here", "Hi Maria, no"), min_count=1, notify=said.append)
    assert texts_of(found) == ["It is here", "Hi {customer}, no"]
    reason = f"a word may be a customer's data and fits no slot, such as {reply!r}"
    assert said == [f"1 reply left out because {reason}; add those that every customer may see to your own catalogue"]


@pytest.mark.deep
def test_the_command_writes_a_catalogue_from_a_table_and_from_dialogues(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id;reply\n1;yes\n2;no\n", "utf-8")
    made = run("import", "replies", tmp_path / "r.csv", "-o", tmp_path / "r.jsonl")
    assert made.returncode == 0, made.stderr
    assert read_pool(tmp_path / "r.jsonl") == [Candidate("1", "yes"), Candidate("2", "no")]
    turns = [("customer", "thanks"), ("agent", "Welcome!"), ("customer", "thanks"), ("agent", "Bye")] * 2
    row = {"turns": [{"speaker": speaker, "text": text} for speaker, text in turns]}
    (tmp_path / "d.jsonl").write_text((json.dumps(row) + "\n") * 2, "utf-8")
    made = run("import", "replies", tmp_path / "d.jsonl", "-o", tmp_path / "d.out", "--from-dialogues", "--top", "1")
    assert made.returncode == 0, made.stderr
    assert "replies are the turns of agent" in made.stderr
    assert [(r.text, r.metadata["count"]) for r in read_pool(tmp_path / "d.out")] == [("Welcome!", 4)]
    for options, what in (
        (("--top", "1"), "need --from-dialogues"),
        (("--from-dialogues", "--text", "reply"), "apply to tables"),
    ):
        refused = run("import", "replies", tmp_path / "r.csv", "-o", tmp_path / "x", *options)
        assert (refused.returncode, what in refused.stderr) == (2, True), refused.stderr
    refused = run("import", "replies", tmp_path / "r.csv", "-o", tmp_path / "r.csv", "--overwrite")
    assert refused.returncode == 2


def test_replies_left_out_are_reported() -> None:
    said: list[str] = []
    found = frequent_replies(
        examples("yes it is", "Yes, it is", "no", "why", "1234", "(99)", "👍", "👍"), notify=said.append
    )
    assert texts_of(found) == ["yes it is", "👍"]
    assert said == [
        "2 of 4 different replies, 33% of all 6 replies, are left out because they occur fewer than 2 times"
        " (`min_count`)",
        "2 numbers without a word left out",
    ]
    assert frequent_replies(examples("a b", "a b"), notify=said.append)
    assert len(said) == 2
    frequent_replies(examples("a b", "a b", "a b", "c d", "c d"), min_count=3, notify=said.append)
    assert said[2].startswith("1 of 2 different replies, 40% of all 5 replies, are left out because they occur fewer")


def test_numbers_are_not_read_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("answer,reply\n1,yes\n2,no\n", "utf-8")
    assert texts_of(read_replies(path)) == ["yes", "no"]
    assert texts_of(read_replies(path, column="answer")) == ["1", "2"]
    path.write_text("answer\n1\n2.5\n", "utf-8")
    with pytest.raises(DataError, match="all texts are numbers; name the column of texts with `column`"):
        read_replies(path)
