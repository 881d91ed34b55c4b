"""The rules of single modules at their limits, each with several people, columns, rows or conversations."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from polyrank_chats import import_chats, threads
from polyrank_chats.columns import columns
from polyrank_chats.dialogues import conversations, dialogue, divided
from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.forms.mail import by_subject
from polyrank_chats.forms.nested import people_of
from polyrank_chats.messages import Message, Reason
from polyrank_chats.options import Options
from polyrank_chats.people import ordinary_words, without_names
from polyrank_chats.phones import is_phone
from polyrank_chats.profiles import Profile
from polyrank_chats.quotations import unquoted
from polyrank_chats.report import Report
from polyrank_chats.roles import answerers, speaker_of
from polyrank_chats.sides import contact_column, role_columns
from polyrank_chats.threads import threaded
from polyrank_chats.times import DateForm, date_form, read_time

Write = Callable[[str, Any], Path]
START = datetime(2024, 5, 6, 10)


def said(sender: str, text: str = "hi", **fields: Any) -> Message:
    return Message("f:1", fields.pop("stream", "s"), sender, text, fields.pop("conversation", None), **fields)


# columns and sides


def test_of_several_columns_of_times_the_one_that_changes_most_is_that_of_the_messages() -> None:
    rows = [
        {"talk": f"t{n // 3}", "name": ("Ann", "Bea")[n % 2], "body": f"some text {n}", "a": f"2024-05-0{1 + n // 3}",
         "b": f"2024-05-06 10:0{n}", "c": f"2024-05-06 10:0{n // 2}"}
        for n in range(9)
    ]  # fmt: skip
    for order in (("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")):
        others = ("talk", "name", "body")
        ordered = [{key: row[key] for key in (*others, *order)} for row in rows]
        assert columns(ordered, Options(), "f").time == ("b",)


@pytest.mark.parametrize("n_named", range(11))
def test_a_column_of_senders_has_one_for_at_least_half_of_the_texts(n_named: int) -> None:
    rows = [
        {"thread": f"t{n // 5}", "from": ("Ann", "Bea")[n % 2] if n < n_named else "", "text": f"text {n}"}
        for n in range(10)
    ]
    if 2 * n_named >= 10:
        assert columns(rows, Options(), "f").sender == ("from",)
    else:
        with pytest.raises(DataError, match="no column has a usual name for the sender"):
            columns(rows, Options(), "f")


@pytest.mark.parametrize("n", range(1, 6))
def test_words_of_both_sides_are_a_role_however_few_rows_there_are(n: int) -> None:
    is_said = [True] * (2 * n)
    words, names = Profile("x", ["agent", "customer"] * n), Profile("y", [f"name {i}" for i in range(2 * n)])
    assert role_columns([names, words], [], is_said) == ["x"]
    several = Profile("z", [f"{word} {i}" for i in range(n) for word in ("agent", "customer")])
    assert role_columns([several], [], is_said) == (["z"] if 4 * 2 * n <= 2 * n + 8 else [])


def test_a_time_that_most_rows_lack_is_not_that_of_the_messages() -> None:
    rows = [{"from": "ab"[n % 2], "text": f"text {n} of it", "date": f"2024-01-31T21:15:{n:02}"} for n in range(8)]
    rows[3]["date_unixtime"] = "1706735700"
    assert columns(rows, Options(), "f").time == ("date",)
    for n, row in enumerate(rows[:6]):
        row["date_unixtime"] = str(1706735700 + n)
    assert columns(rows, Options(), "f").time == ("date_unixtime",)


def test_of_several_columns_of_contacts_the_one_with_most_people_names_them() -> None:
    side = Profile("direction", ["in", "out"] * 6)
    groups = Profile("group", ["friends", "friends"] * 6)
    people = Profile("contact", [name for name in "ABC" for _ in range(4)])
    pairs = Profile("number", [number for number in "123456" for _ in range(2)])
    assert contact_column([groups, people, side], side) == ["contact"]
    assert contact_column([pairs, groups, people], side) == ["number"]


# people and phones


def test_a_name_that_is_a_word_is_replaced_next_to_another_name_only() -> None:
    slots, ordinary = {"will": "{customer}", "lee": "{customer}", "jo": "{agent}"}, {"will"}
    assert without_names("you will Lee", slots, ordinary) == "you {customer}"
    assert without_names("you will -- Lee", slots, ordinary) == "you will -- {customer}"
    assert without_names("you will lee", slots, ordinary) == "you will {customer}"


def test_words_in_small_letters_of_other_conversations_are_ordinary_unless_an_agents_name() -> None:
    rows = [
        {"people": {"Penny Q": "customer", "Rusty": "agent"}, "turns": [{"text": "penny here, rusty"}]},
        {"people": {"Max": "customer", "Zlatko": "agent"}, "turns": [{"text": "a penny for q, rusty"}]},
        {"people": {"Ann": "customer"}, "turns": [{"text": "ask max"}]},
    ]
    assert ordinary_words(rows) >= {"penny", "max"}
    assert not {"rusty", "zlatko", "ann", "q"} & ordinary_words(rows)


def test_a_date_with_an_hour_is_no_phone_unless_a_word_says_so() -> None:
    number = "06 12 2024 11"  # also a valid mobile number of France
    assert not is_phone(number, "le ", "", "fr")
    assert not is_phone(number, "commande du ", "", "fr")
    assert is_phone(number, "mon numéro est le ", "", "fr")
    assert not is_phone("06 12 2024", "mon numéro est le ", "", "fr")


@pytest.mark.parametrize("n", [5, 6, 7, 8, 14, 15, 16])
def test_phones_have_7_to_15_digits(n: int) -> None:
    assert is_phone("+" + "372123456789012345"[:n], "", "", "en") == (7 <= n <= 15)


# agents


@pytest.mark.parametrize("n_begun", range(11))
def test_of_two_people_the_one_who_hardly_ever_begins_answers(n_begun: int) -> None:
    talks = [[said("Ann"), said("Bea")] if n < n_begun else [said("Bea"), said("Ann")] for n in range(10)]
    assert answerers(talks) == ({"Ann"} if n_begun <= 2 else {"Bea"} if n_begun >= 8 else set())


@pytest.mark.parametrize("n_begun", range(6))
def test_a_sender_who_seldom_begins_without_the_named_agents_is_one_of_them(n_begun: int) -> None:
    named = [[said(f"guest {n}"), said("Bea")] for n in range(4)]
    others = [[said("Cy"), said(f"other {n}")] if n < n_begun else [said(f"other {n}"), said("Cy")] for n in range(5)]
    others += [[said(f"x{n}"), said(f"y{n}")] for n in range(8)]
    options = Options(agent="Bea")
    if 3 * n_begun < 5:
        with pytest.raises(UsageError, match=r"other senders look like agents: Cy \(5\); name them too"):
            speaker_of([*named, *others], options, "f")
    else:
        assert speaker_of([*named, *others], options, "f")(said("Cy")) == "customer"


@pytest.mark.parametrize("n", [4, 5, 6, 8])
def test_notes_name_five_senders_and_the_number_of_others(n: int) -> None:
    names = [f"Person{chr(65 + i)}" for i in range(n)]
    report = Report()
    speaker_of([[said(name), said(name)] for name in names], Options(report=report), "f")
    shown = ", ".join(f"{name} (2)" for name in names[:5]) + (f" and {n - 5} more" if n > 5 else "")
    assert any(f": {shown} (" in note for note in report.notes), report.notes


# threads, dialogues


def test_a_pause_ends_a_conversation_only_if_it_is_longer() -> None:
    for hours, n in ((7.99, 1), (8.0, 1), (8.01, 2)):
        times = [START, START + timedelta(hours=hours), START + timedelta(hours=hours, minutes=1)]
        assert len([*divided([said("Ann", time=time) for time in times], 8.0)]) == n


def test_all_paths_count_and_the_note_counts_those_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = [("q", ()), ("a", ("q",)), ("b", ("q",)), ("c", ("q",)), ("r", ()), ("d", ("r",))]
    messages = [said(f"by {name}", name, id=name, answers=to) for name, to in tree]
    report = Report()
    assert len({each.conversation for each in threaded(messages, report)}) == 4
    assert report.notes == ["replies branch, so 2 more conversations share their first messages with another"]
    monkeypatch.setattr(threads, "MAX_TURNS", 8)
    threaded(messages, Report())
    monkeypatch.setattr(threads, "MAX_TURNS", 7)  # four paths of two messages
    with pytest.raises(DataError, match="the paths of replies have more than 7 messages"):
        threaded(messages, Report())


def test_names_of_conversations_are_unique_over_streams() -> None:
    def names(*streams: str) -> list[str]:
        messages = [
            said(who, conversation=name, stream=stream) for stream in streams for name in ("1", "2") for who in "AB"
        ]
        messages += [said("A", conversation="only", stream=streams[-1])]
        return [name for name, _ in conversations(messages, Options())]

    assert names("x") == ["1", "2", "only"]
    assert names("x", "y") == ["x/1", "x/2", "y/1", "y/2", "only"]
    assert names("x", "y", "z") == ["x/1", "x/2", "y/1", "y/2", "z/1", "z/2", "only"]


def test_every_message_of_a_dialogue_is_counted_once() -> None:
    report = Report()
    senders = ("Ann", "Ann", "System", "Bea", "Bea", "System", "Bea", "Ann")
    row = dialogue("d", [said(name, f"t{n}") for n, name in enumerate(senders)], lambda each: each.sender, report)
    assert row is not None
    assert [turn["text"] for turn in row["turns"]] == ["t0\nt1", "t3\nt4\nt6", "t7"]
    assert (report.n_turns, report.n_joined, report.left_out[Reason.SYSTEM]) == (3, 3, 2)


# times


@pytest.mark.parametrize(
    ("text", "order", "wanted"),
    [
        ("5 March 2024", "year", "2024-03-05"), ("24 March 5", "year", "2024-03-05"),
        ("2024 March 5", "day", "2024-03-05"), ("5 March 24", "day", "2024-03-05"),
        ("3/4/24, 12:30 AM", "month", "2024-03-04T00:30"), ("3/4/24, 12:30 PM", "month", "2024-03-04T12:30"),
        ("3/4/24, 11:59 PM", "month", "2024-03-04T23:59"), ("3/4/24, 1:00 AM", "month", "2024-03-04T01:00"),
        ("3.4.69", "day", "2069-04-03"), ("3.4.70", "day", "1970-04-03"), ("3.4.71", "day", "1971-04-03"),
    ],
)  # fmt: skip
def test_years_and_hours_at_their_limits(text: str, order: Any, wanted: str) -> None:
    assert read_time(text, DateForm(order)) == datetime.fromisoformat(wanted)


def test_the_order_with_the_smallest_steps_counts_before_the_usual_one() -> None:
    for rows, order in ((("1/12/24", "2/12/24", "3/12/24"), "day"), (("12/1/24", "12/2/24", "12/3/24"), "month")):
        for ending in ("", ", 9:15 PM"):
            assert date_form([row + ending for row in rows])[0].order == order


# mails and files


@pytest.mark.parametrize("n_below", [0, 1, 7, 8, 9])
def test_a_closing_has_up_to_eight_lines_below_it(n_below: int) -> None:
    below = [f"line {n}" for n in range(n_below)]
    text = "\n".join(["It is here.", "Kind regards", *below])
    assert unquoted(text) == ("It is here." if n_below <= 8 else text)


def test_staff_is_the_domain_of_most_mails_and_of_fewer_people_if_equal() -> None:
    """Ann, a customer, writes to two of the staff; then others write under the same subject."""

    def mail(number: int, sender: str, *to: str, answers: tuple[str, ...] = ()) -> Message:
        at = START + timedelta(hours=number)
        return said(sender, f"m{number}", time=at, id=f"m{number}", sender_id=sender, recipients=to, answers=answers,
                    subject="Re: Order" if number else "Order")  # fmt: skip

    first = mail(0, "ann@c.example", "help@shop.example")
    others = [mail(1, "help@shop.example", "ann@c.example"), mail(2, "ben@c.example", "help@shop.example")]
    linked = by_subject([first, *others])
    assert [each.answers for each in linked] == [(), ("m0",), ()]  # Ben shares only the shop with them
    known = by_subject([first, mail(1, "ann@c.example", "help@shop.example"),
                        mail(2, "help@shop.example", "ann@c.example", answers=("m0",))])  # fmt: skip
    assert [each.answers for each in known] == [(), ("m0",), ("m0",)]  # its own header counts, not the subject


def test_people_have_all_their_ids() -> None:
    row = {"users": [{"name": "Ann", "id": 7, "user_id": "u7"}, {"user_id": "u8", "name": "Ben", "id": None}],
           "meta": {"requester": {"id": 9, "name": "Cy"}}}  # fmt: skip
    assert {id_: person["name"] for id_, person in people_of(row).items()} == {
        "7": "Ann", "u7": "Ann", "u8": "Ben", "9": "Cy",
    }  # fmt: skip


def test_a_message_of_a_log_has_all_its_lines(write: Write) -> None:
    log = "06/05/2024, 10:00 - Ann: one\ntwo\n\nthree\n06/05/2024, 10:01 - Bea: four\nfive\n"
    (row,) = import_chats(write("chat.txt", log)).dialogues
    assert [turn["text"] for turn in row["turns"]] == ["one\ntwo\n\nthree", "four\nfive"]


def test_the_first_line_of_another_encoding_and_the_rows_above_a_header_are_named(write: Write) -> None:
    rows = [f"t{n // 2},{('Ann', 'Bea')[n % 2]},Grüße {n}" for n in range(40)]
    data = [row.encode() for row in rows]
    data[9], data[20] = rows[9].encode("cp1252"), rows[20].encode("cp1252")
    report = Report()
    import_chats(write("x.csv", b"\n".join([b"conversation,sender,text", *data])), report=report)
    assert any("2 lines not in UTF-8, the first is line 11; read as cp1252" in note for note in report.notes)
    report = Report()
    above = ["Export of the desk", "made on Monday,by Bea"]
    import_chats(write("y.csv", "\n".join([*above, "conversation,sender,text", *rows])), report=report)
    assert any("skipped 2 rows above the header in row 3" in note for note in report.notes)


def test_rows_are_reversed_only_if_every_id_is_below_the_one_before(write: Write) -> None:
    for ids, is_reversed in (((9, 7, 4, 2), True), ((9, 7, 7, 2), False), ((2, 4, 7, 9), False)):
        rows = [f"{number},t,{('Ann', 'Bea')[n % 2]},text {n}" for n, number in enumerate(ids)]
        path = write("x.csv", "\n".join(["id,conversation,sender,text", *rows]))
        (row,) = import_chats(path).dialogues
        texts = [turn["text"] for turn in row["turns"]]
        assert texts == [f"text {n}" for n in range(4)][:: -1 if is_reversed else 1]


def test_conversations_of_one_id_and_chats_of_one_name_stay_apart(write: Write) -> None:
    def talk(*texts: str) -> dict[str, Any]:
        return {
            "id": "7",
            "messages": [{"sender": ("Ann", "Bea")[n % 2], "text": text} for n, text in enumerate(texts)],
        }

    found = import_chats(write("x.json", [talk("a", "b"), talk("c", "d"), talk("a", "b"), talk("e", "f")]))
    assert [(row["id"], row["turns"][0]["text"]) for row in found.dialogues] == [
        ("7", "a"),
        ("7 (2)", "c"),
        ("7 (3)", "e"),
    ]
    chats = [
        {"name": name, "type": "personal_chat", "id": number, "messages": [
            {"id": n, "type": "message", "date": f"2024-05-06T10:0{n}:00", "from": ("Ann", "Bea")[n % 2],
             "text": f"{number} {n}"} for n in range(4)]}
        for number, name in ((1, "Sam"), (2, "Sam"), (3, "Cy"))
    ]  # fmt: skip
    found = import_chats(write("result.json", {"chats": {"list": chats}}))
    assert sorted(turn["text"] for row in found.dialogues for turn in row["turns"]) == sorted(
        f"{number} {n}" for number in (1, 2, 3) for n in range(4)
    )
    assert len(found.dialogues) == 3


@pytest.mark.parametrize("n_words", [1, 2, 4, 5, 6, 8, 10])
def test_a_marked_text_of_a_few_words_is_a_file(n_words: int, write: Write) -> None:
    marked = "\u200e" + " ".join(["word"] * n_words)
    log = [f"06/05/2024, 10:0{n} - {name}: {text}" for n, (name, text) in enumerate(
        [("Ann", "hi"), ("Bea", "hello"), ("Ann", marked), ("Bea", "ok")])]  # fmt: skip
    report = import_chats(write("chat.txt", "\n".join(log))).report
    kind = Reason.ATTACHMENT if n_words < 5 else Reason.SYSTEM
    assert {reason: n for reason, n in report.left_out.items() if n} == {kind: 1}


@pytest.mark.parametrize("n_without", [1, 2, 3])
def test_replies_divide_conversations_if_all_but_one_of_each_answer(n_without: int, write: Write) -> None:
    """Two conversations of five messages; the first messages of some, and one in the middle, answer none."""
    rows = []
    for n in range(10):
        answers = "" if n in (0, 5, 7)[:n_without] else (n - 1 if n not in (0, 5) else "")
        rows.append(f"{n},c{n // 5},{('Ann', 'Bea')[n % 2]},{answers},text {n}")
    report = import_chats(write("x.csv", "\n".join(["id,conversation_id,sender,reply_to,text", *rows]))).report
    follows = any("conversations follow the replies" in note for note in report.notes)
    assert follows == (n_without <= 2)


def test_a_few_rows_of_another_width_do_not_move_the_header(write: Write) -> None:
    rows = [f"t{n // 2},{('Ann', 'Bea')[n % 2]},text {n}" for n in range(20)]
    rows[7:7] = ["t3,Ann,text,with,commas", "t3,Bea,one,more,row"]
    found = import_chats(write("x.csv", "\n".join(["conversation,sender,text", *rows])), skip_bad=True)
    assert (found.report.n_conversations, found.report.n_turns, found.report.n_bad) == (10, 20, 2)
