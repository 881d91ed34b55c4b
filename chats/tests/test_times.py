"""Times in the forms of many languages, and the order of day and month of a whole column."""

import datetime
import random
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from babel.dates import format_date, format_datetime, format_time

from polyrank_chats import import_chats
from polyrank_chats.errors import DataError
from polyrank_chats.names import NAMES
from polyrank_chats.times import DateForm, date_form, read_time

Write = Callable[[str, Any], Path]
AFTERNOON = [datetime.datetime(2024, month, 12 + month, 15, 4) for month in range(1, 13)]
REPORTS = Path(__file__).parents[3] / "shared" / "reports"


@pytest.mark.deep
@pytest.mark.parametrize("language", NAMES["languages"])
def test_dates_of_every_language(language: str) -> None:
    for form in ("short", "medium", "long", "full"):
        texts = [format_date(at, form, language) + " " + format_time(at, "short", locale=language) for at in AFTERNOON]
        assert [read_time(text, date_form(texts)[0]) for text in texts] == AFTERNOON, form
    texts = [format_datetime(at, "medium", locale=language) for at in AFTERNOON]
    assert [read_time(text, date_form(texts)[0]) for text in texts] == AFTERNOON


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15:04 05/01/2024", "2024-01-05T15:04"),
        ("05.01.2024 15.04", "2024-01-05T15:04"),
        ("15.04 05.01.2024", "2024-01-05T15:04"),
        ("pe 5.1.2024 klo 15.04", "2024-01-05T15:04"),
        ("20240105T150405Z", "2024-01-05T15:04:05"),
        ("20240105T1504", "2024-01-05T15:04"),
        ("20240105150405", "2024-01-05T15:04:05"),
        ("2024-01-05 15:04 Europe/Berlin", "2024-01-05T14:04"),
        ("2024-07-05T15:04[America/New_York]", "2024-07-05T19:04"),
        ("Fri Jan 05 2024 15:04:05 GMT+0100 (Central European Standard Time)", "2024-01-05T14:04:05"),
        ("5 January, 2024 15:04 (GMT+2)", "2024-01-05T13:04"),
        ("05-JAN-24 03.04.05.123456 PM", "2024-01-05T15:04:05.123456"),
        ("05/Jan/2024:15:04:05 +0100", "2024-01-05T14:04:05"),
        ("5 ม.ค. 2567 15:04", "2024-01-05T15:04"),
        ("5 ม.ค. 67 15:04 น.", "2024-01-05T15:04"),
        ("2024年1月5日 下午3:04", "2024-01-05T15:04"),
        ("2024年1月5日15时04分05秒", "2024-01-05T15:04:05"),
        ("2024/1/5(金) 15:04", "2024-01-05T15:04"),
        ("2024년 1월 5일 오후 3시 4분", "2024-01-05T15:04"),
        ("1er août 2024 à 15h04", "2024-08-01T15:04"),
        ("AOUT 1 2024 3pm", "2024-08-01T15:00"),
        ("mar. 5 mars 2024", "2024-03-05T00:00"),
        ("5 de enero de 2024, 3:04 p. m.", "2024-01-05T15:04"),
        ("Mrz 5 24", "2024-03-05T00:00"),
        ("5.1.69 15:04", "2069-01-05T15:04"),
        ("5.1.70 15:04", "1970-01-05T15:04"),
        ("5 Jan 2024 12:30 am", "2024-01-05T00:30"),
        ("5 Jan 2024 12:30 pm", "2024-01-05T12:30"),
        ("5 Jan 2024 11:59:59 pm", "2024-01-05T23:59:59"),
        ("5 ม.ค. 2490 15:04", "1947-01-05T15:04"),
        ("fe\u0301vr. 5, 2024", "2024-02-05T00:00"),
    ],
)
def test_a_text_is_read_as_a_time(text: str, expected: str) -> None:
    assert read_time(text) == datetime.datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    "text",
    ["yesterday 15:04", "2 hours ago", "令和6年1月5日", "Mai 2024", "2024-02-30", "1,234.56", "10 20 30", "5 foo 2024",
     "2024-01-05 15:04 Mars/Olympus", "2024-01-05 25:00"],
)  # fmt: skip
def test_a_text_without_a_whole_date_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a readable time"):
        read_time(text)


def test_names_of_months_with_two_meanings() -> None:
    croatian, polish = ["5. lip 2024.", "5. srp 2024.", "1. stu 2024."], ["5 lip 2024", "5 maj 2024", "1 gru 2024"]
    assert read_time(croatian[0], date_form(croatian)[0]) == datetime.datetime(2024, 6, 5)
    assert read_time(polish[0], date_form(polish)[0]) == datetime.datetime(2024, 7, 5)


@pytest.mark.parametrize("order", ["day", "month"])
@pytest.mark.parametrize("repeated", [1, 6])
@pytest.mark.parametrize("is_falling", [False, True])
def test_the_order_of_day_and_month_when_no_day_is_above_12(order: str, repeated: int, is_falling: bool) -> None:
    days = [datetime.date(2024, 3, day) for day in range(1, 10) for _ in range(repeated)]
    days = days[::-1] if is_falling else days
    texts = [f"{d.day}/{d.month}/24" if order == "day" else f"{d.month}/{d.day}/24" for d in days]
    assert date_form(texts)[0].order == order
    random.Random(1).shuffle(tickets := [texts[i : i + 2] for i in range(0, len(texts), 2)])
    assert date_form([text for ticket in tickets for text in ticket])[0].order == order


def table(write: Write, *times: str, names: str = "Ann Agent", header: str = "Time,Sender,Message") -> Path:
    rows = [f'"{time}",{names.split()[i % 2]},text {i}\n' for i, time in enumerate(times)]
    return write("x.csv", f"{header}\n{''.join(rows)}")


def test_dates_of_a_newest_first_table_without_clocks(write: Write) -> None:
    texts = [f"{10 - i // 4}.5.2024" for i in range(12)]
    found = import_chats(table(write, *texts, names="Agent Ann"), gap=20)
    assert [[turn["text"] for turn in row["turns"]] for row in found.dialogues] == [
        [f"text {i}" for i in range(start, start - 4, -1)] for start in (11, 7, 3)
    ]


def test_a_column_of_times_with_bad_rows_is_an_error_that_names_the_first(write: Write) -> None:
    bad = ["5 foo 2024 15:04", "6 foo 2024 15:04"]
    with pytest.raises(DataError, match=r"x\.csv:4: '5 foo 2024 15:04' is not a readable time"):
        import_chats(table(write, "5 May 2024 15:04", "6 May 2024 15:04", *bad, header="Gesendet am,Sender,Message"))
    with pytest.raises(DataError, match="column 'Time' holds values that are not readable times, such as '5 foo"):
        import_chats(table(write, *bad))


@pytest.mark.deep
def test_tens_of_thousands_of_dates_take_seconds() -> None:
    start = datetime.datetime(2023, 2, 1)
    texts = [f"{start + datetime.timedelta(seconds=20 * i):%d. février %Y à %H:%M:%S}" for i in range(10_000)]
    started = process_time()
    form, _ = date_form(texts)
    for text in texts:
        read_time(text, form)
    assert process_time() - started < 4


@pytest.mark.skipif(not REPORTS.exists(), reason="needs the reports next to the repository")
def test_reported_dates() -> None:
    found = import_chats(REPORTS / "dt01_fr_fevrier_mars.csv", gap=40)
    assert [row["time"][:10] for row in found.dialogues] == ["2024-02-01", "2024-03-01"]
    found = import_chats(REPORTS / "dt04_time_first.csv")
    assert [row["time"] for row in found.dialogues] == ["2024-01-05T15:04:00", "2024-01-13T09:00:00"]


@pytest.mark.parametrize("year", ["24", "2024"])
@pytest.mark.parametrize(
    ("days", "is_guess"),
    [
        (("2/1", "2/2", "3/1"), False),
        (("2/1", "2/1", "2/2", "2/2", "3/1"), False),
        (("12/9", "12/10", "12/10", "12/11"), True),  # may be days of three months
        (("2/1", "2/1"), True),
    ],
)
def test_the_order_of_rows_decides_the_order_of_numbers(year: str, days: tuple[str, ...], is_guess: bool) -> None:
    if len({*days}) > 1:
        assert date_form([f"{day}/{year}" for day in days]) == (DateForm("month"), is_guess)
    turned = [f"{'/'.join(day.split('/')[::-1])}/{year}" for day in days]
    assert date_form(turned) == (DateForm("day"), is_guess)


def test_each_step_between_rows_counts_also_if_its_dates_repeat() -> None:
    """Two days of January alternate, then a day of February; as days of months, all but the last step are a month."""
    assert date_form([*["1/2/24", "1/3/24"] * 3, "2/3/24"])[0].order == "month"
    assert date_form([*["2/1/24", "3/1/24"] * 3, "3/2/24"])[0].order == "day"


def test_two_digits_of_the_year_may_come_first() -> None:
    assert date_form(["24/2/1", "24/2/2", "24/3/1"]) == (DateForm("year"), False)
