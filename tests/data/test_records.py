"""Records, words of messages, normal forms and remembered results, each with several parts."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from polyrank.errors import UsageError, is_out_of_memory
from polyrank.notebook import table
from polyrank.records import SHOWN, Candidate, Context, Example, contexts_of, turns_of
from polyrank.remembered import ENTRY_BYTES, INTEGER_BYTES, Remembered
from polyrank.unicode import MOST_MARKS, normal_form
from polyrank.wording import counted, percent


def test_messages_become_turns_of_those_who_speak() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}, {"text": 3}]
    messages = [
        *({"role": role, "content": role} for role in ("system", "developer", "tool", "function")),
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": " \n"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "function_call": {"name": "f"}},
        {"role": "agent", "content": "three"},
    ]
    assert turns_of(messages) == ("one\ntwo", "three")
    assert Context.of(messages, "a fact").background == ("a fact",)
    with pytest.raises(TypeError, match=r"turns\[1\] = 'b' is not a message"):
        turns_of([{"role": "user", "content": "a"}, "b"])
    with pytest.raises(TypeError, match=r"turns\[1\] has content 5; give a text"):
        turns_of([messages[4], {"role": "user", "content": 5}])


def test_a_context_may_be_only_a_background() -> None:
    assert Context.of([], ["it rains"]) == Context((), ("it rains",))
    for empty in ([], [" "], "", [{"role": "system", "content": "be brief"}]):
        with pytest.raises(UsageError, match="the context is empty"):
            Context.of(empty, [" "])


def test_one_context_is_no_list_of_contexts() -> None:
    """The keys of a message would be contexts, and the letters of a string."""
    message, turns = {"role": "user", "content": "hi"}, ["a", "b"]
    for one in ("hi", Context("hi"), message, [message], [turns, message], (message, "a")):
        with pytest.raises(TypeError, match="is one context, not a list of contexts; write"):
            contexts_of(one)  # type: ignore[arg-type]
    for several in (["hi", turns, Context("hi"), [message, message]], []):
        assert contexts_of(iter(several)) == [Context.of(one) for one in several] == contexts_of(several)


def test_the_error_of_a_wrong_text_names_its_field_and_place() -> None:
    makes: list[tuple[str, Callable[[Any], object]]] = [
        ("turns", Context), ("turns", lambda some: Context.of(some, "a fact")),
        ("background", lambda some: Context("hi", some)), ("context", Example),
        ("background", lambda some: Example("hi", background=some)), ("candidates", lambda some: Example("hi", some)),
    ]  # fmt: skip
    for name, make in makes:
        make(("a", "b"))
        with pytest.raises(TypeError, match=rf"^{name}\[1\] = 3 is int; give a text$"):
            make(["a", 3])
        with pytest.raises(TypeError, match=rf"^{name}\[0\] = None is NoneType; give a text$"):
            make((None, "a"))
        with pytest.raises(TypeError, match=rf"^{name} = 5 is int; give a text or a list of texts$"):
            make(5)


def test_metadata_are_the_same_in_any_order_but_not_of_another_type() -> None:
    one = Candidate("a", "hi", {"vip": 1, "tags": {"x": True, "y": 0}})
    assert one.is_same(Candidate("a", "hi", {"tags": {"y": 0, "x": True}, "vip": 1}))
    for other in ({"vip": 1, "tags": {"x": 1, "y": 0}}, {"vip": 1.0, "tags": {"x": True, "y": 0}}, {"vip": 1}):
        assert not one.is_same(Candidate("a", "hi", other))
    assert not one.is_same(Candidate("b", "hi", one.metadata))
    assert not one.is_same(None)


def test_relevant_indices_are_of_the_candidates() -> None:
    """Not counted from the end, as Python does: another candidate would be the right one."""
    for n in (0, 1, 3):
        texts = tuple("abc"[:n])
        assert Example(("hi",), texts, tuple(range(n))).response == ("a" if n else None)
        for index in (-n - 1, -n or -1, -1, n, n + 1):
            for relevant in ((index,), (*range(n), index)):
                with pytest.raises(ValueError, match=f"relevant index {index} is outside the {n} candidates"):
                    Example(("hi",), texts, relevant)


def test_an_example_shows_ten_candidates_and_how_many_follow() -> None:
    assert Example(("hi",), ("a", "b", "c"), (2, 1)).response == "c"  # the one that is named first
    for n, more in ((SHOWN, ""), (SHOWN + 1, "1 more candidates"), (SHOWN + 1_000, "1,000 more candidates")):
        example = Example(("hi",), tuple(f"text {i}" for i in range(n)), (1, SHOWN - 1), "name", ("fact",))
        shown = example._repr_html_()
        assert (shown.count("right"), shown.count("wrong")) == (2, SHOWN - 2)
        assert more in shown
        assert ("more candidates" in shown) is bool(more)
        assert (f"text {SHOWN - 1}<" in shown, f"text {SHOWN}<" in shown) == (True, False)
        assert re.findall("<td[^>]*>([^<]*)</td>", shown)[:6] == ["background", "fact", "turn", "hi", "wrong", "text 0"]
    assert len(repr(example)) < 400
    page = Example(("<b>",), ("<i>",), (0,), "<u>", ("<s>",))._repr_html_() + table(["<q>"], [[1.5, 1.50004]], "<p>")
    assert not re.search("<[bisuqp]>", page)  # texts are not markup
    assert page.endswith(">1.5000</td></tr></table>")


def test_a_full_memory_is_known_by_the_words_of_each_library() -> None:
    for message in (
        "CUDA out of memory. Tried to allocate 2 GiB", "DefaultCPUAllocator: not enough memory: you tried to allocate",
        "DefaultCPUAllocator: can't allocate memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `create`",
    ):  # fmt: skip
        assert is_out_of_memory(RuntimeError(message))
        assert not is_out_of_memory(ValueError(message))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))


def test_numbers_have_their_noun() -> None:
    assert [counted(n, "row") for n in (0, 1, 2, 1_000_000)] == ["0 rows", "1 row", "2 rows", "1,000,000 rows"]
    assert percent({"mean": 0.0, "low": -0.01, "high": 0.02}, signed=True) == "+0.0 (-1.0 to +2.0)"
    assert percent({}) == ""


@pytest.mark.parametrize("form", ["NFC", "NFKC", "NFD", "NFKD"])
def test_only_marks_after_the_thirtieth_on_one_letter_are_dropped(form: str) -> None:
    marks, dots, grave, acute = "\u0316\u0301" * 15, "\u00b7" * 3, "\u0316", "\u0301"  # dots are not marks
    for text, kept in (
        (f"e{acute}\ufb01", f"e{acute}\ufb01"),
        (f"a{marks}b{marks}", f"a{marks}b{marks}"),
        (f"a{marks}{grave * 5}b", f"a{marks}b"),
        (f"a{marks}{dots}{marks}", f"a{marks}{dots}{marks}"),
        (f"a{marks}{acute * 4}{dots}{marks}{grave}", f"a{marks}{dots}{marks}"),
    ):
        assert normal_form(form, text) == unicodedata.normalize(form, kept)  # type: ignore[arg-type]
    assert len(marks) == MOST_MARKS


def test_results_are_remembered_up_to_their_bytes() -> None:
    calls = list[str]()

    def words(text: str) -> tuple[str, ...]:
        calls.append(text)
        return tuple(text.split())

    known = Remembered(words, longest=5, most_bytes=4 * (ENTRY_BYTES + 200))
    for text in ("a b", "a b c", "a b c d", "a b c d", "e f g h", "a b"):  # the latter are longer than five
        assert known[text] == tuple(text.split())
    assert calls == ["a b", "a b c", "a b c d", "e f g h"]
    assert known["a b c d"] == (*"abcd",)
    assert len(calls) == 5  # of long texts only the latest is kept
    for number in range(20):
        known[f"x {number}"]
        assert 0 < known.n_bytes <= known.most_bytes
    known.clear()
    assert (known.n_bytes, len(known)) == (0, 0)
    known["a b c d"]
    assert calls[-1] == "a b c d"  # also the latest is forgotten


def test_results_that_are_too_large_are_not_remembered() -> None:
    calls = list[str]()

    def numbers(text: str) -> tuple[int, ...]:
        calls.append(text)
        return tuple(range(1000, 1000 + len(text)))

    most = ENTRY_BYTES + 2_000
    known = Remembered(numbers, longest=3, most_bytes=most)
    for text in ("y" * 40, "y" * 40, "y" * 400, "y" * 400):
        assert len(known[text]) == len(text)
    assert [len(text) for text in calls] == [40, 400, 400]
    before = known.n_bytes
    known["yyy"]
    assert known.n_bytes - before > ENTRY_BYTES + 3 * INTEGER_BYTES
    for kind in (tuple, list, frozenset):
        texts = Remembered(lambda text, kind=kind: kind([text * 100, text * 200]), longest=3)
        texts["abc"]
        assert texts.n_bytes > 900
