"""Texts of models that read messages: which tokens stay when a context, a candidate or a pair is too long."""

from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit

from polyrank.config.models import TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.records import Context
from polyrank.text.messages import MessageTexts
from polyrank.text.subwords import Subwords

SAID, ANSWERED = [f"a{n}" for n in range(40)], [f"b{n}" for n in range(40)]
OTHERS = ["sys", "sysc", "|", "alpha", "bravo", "charlie", "foxtrot"]
WORDS = ["<pad>", "<end>", "user", "query", "document", "system", *OTHERS, *SAID, *ANSWERED]
N_AROUND = 2  # words of the template around each text


class Template:
    """A tokenizer's chat template: the role before each text, and an end after it; some roles may be left out."""

    def __init__(self, chat_template: Any = "a template", left_out: str = "") -> None:
        self.chat_template, self.left_out, self.given = chat_template, left_out, list[dict[str, Any]]()

    def apply_chat_template(self, chat: list[dict[str, Any]], **settings: Any) -> str:
        self.given.append(settings)
        texts = [(message["role"], message["content"]) for message in chat if message["role"] != self.left_out]
        plain = [(role, text if isinstance(text, str) else text[0]["text"]) for role, text in texts]
        return " ".join(f"{role} {text} <end>" for role, text in plain)


def message_texts(
    context: int,
    candidate: int,
    pair: int,
    prompts: tuple[str, str] = ("", ""),
    template: Template | None = None,
    form: str = "flat",
    **settings: Any,
) -> MessageTexts:
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.normalizer = Replace("\n", " | ")  # the end of a line is a token
    tokenizer.pre_tokenizer = WhitespaceSplit()
    policy = TextPolicy(max_context_tokens=context, max_candidate_tokens=candidate)
    return MessageTexts(
        template or Template(), Subwords(tokenizer, "<end>", "<end>", "<pad>"), policy, 100, form=form,
        settings=settings, max_pair_tokens=pair, prompts=prompts, where="the model",
    )  # fmt: skip


def words(ids: list[int]) -> list[str]:
    return [WORDS[number] for number in ids]


@pytest.mark.parametrize("budget", [7, 8, 11, 12])
def test_the_longer_text_of_a_pair_loses_tokens_until_both_fit(budget: int) -> None:
    texts, free = message_texts(50, 50, budget), budget - 2 * N_AROUND
    for n, m in ((0, 20), (1, 20), (2, 2), (3, 4), (4, 3), (5, 5), (5, 6), (20, 1), (9, 30), (30, 30)):
        said, answered = SAID[:n], ANSWERED[:m]
        ids, segments = texts.pair_ids(Context((" ".join(said),)), " ".join(answered))
        read = words(ids)
        left, right = [w for w in read if w[0] == "a"], [w for w in read if w[0] == "b"]
        assert read == ["query", *left, "<end>", "document", *right, "<end>"]
        assert segments == [0] * len(ids)
        assert (left, right) == (
            said[n - len(left) :],
            answered[: len(right)],
        )  # an end and a start
        if n + m <= free:
            assert (len(left), len(right)) == (n, m)
        else:
            assert len(left) + len(right) == free
            assert min(len(left), len(right)) == min(n, m, free // 2)


@pytest.mark.parametrize("n", [1, 5, 6, 7, 20])
def test_a_context_keeps_its_end_and_a_candidate_its_start(n: int) -> None:
    texts = message_texts(8, 10, 50, ("sys", ""))
    in_context, in_candidate = 8 - 2 * N_AROUND - 1, 10 - N_AROUND
    assert words(texts.context_ids(Context((" ".join(SAID[:n]),)))) == [
        "system", "sys", "<end>", "user", *SAID[:n][-in_context:], "<end>",
    ]  # fmt: skip
    assert words(texts.candidate_ids(" ".join(ANSWERED[:n]))) == ["user", *ANSWERED[:n][:in_candidate], "<end>"]
    assert (len(texts.cut.contexts), len(texts.cut.candidates)) == (n > in_context, n > in_candidate)
    both = message_texts(50, 50, 90, ("sys", "sysc"))  # a system message of each side, and a pair has the context's
    assert words(both.candidate_ids("b0")) == ["system", "sysc", "<end>", "user", "b0", "<end>"]
    pair, _ = both.pair_ids(Context((" ".join(SAID[:n]),)), "b0")
    assert words(pair) == ["system", "sys", "<end>", "query", *SAID[:n], "<end>", "document", "b0", "<end>"]
    long, short = (" ".join(SAID), " ".join(ANSWERED)), ("a0", "b0")  # a text counts once, in however many pairs
    for contexts, candidates, counts in (
        (long[0], ("b0", "b1 b2", "b3"), [1, 0, 0, 0]), ("a0", (long[1],) * 2, [0, 1, 0, 0]),
        ("a1", (long[1], f"{long[1]} b1"), [0, 2, 0, 0]), (short[0], short, [0, 0, 0, 0]),
    ):  # fmt: skip
        counted = message_texts(50, 50, 20)
        for candidate in candidates:
            for turns in ((contexts,), (contexts,)):
                counted.pair_ids(Context(turns), candidate)
        assert [len(kind) for kind in counted.cut.texts] == counts
    for turns in ((long[0], "a1"), (long[0], "a2")):
        counted.pair_ids(Context(turns), long[1])
    assert [len(kind) for kind in counted.cut.texts] == [2, 1, 0, 0]
    with pytest.raises(ConfigError, match="the model needs 5 tokens for its chat template alone, and 4 are allowed"):
        message_texts(4, 10, 50, ("sys", "")).context_ids(Context(("a1",)))


@pytest.mark.parametrize("budget", range(4, 16))
def test_a_character_of_several_tokens_goes_as_a_whole(budget: int) -> None:
    """As of tokenizers of bytes; one that is cut inside would stay for ever."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({sign: number for number, sign in enumerate(["<end>", *alphabet])}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)

    class Bare(Template):
        def apply_chat_template(self, chat: list[dict[str, Any]], **settings: Any) -> str:
            return "".join(message["content"] for message in chat)

    policy = TextPolicy(max_context_tokens=budget, max_candidate_tokens=budget)
    subwords = Subwords(tokenizer, "<end>", "<end>", "<end>")
    texts = MessageTexts(
        Bare(), subwords, policy, 100, form="flat", settings={}, max_pair_tokens=budget, prompts=("", ""), where="it"
    )
    for text in ("hi 😀", "😀😀😀😀", "hi 你好吗"):
        for ids, start in ((texts.candidate_ids(text), True), (texts.context_ids(Context((text,))), False)):
            whole = subwords.encode(text)
            assert len(ids) <= budget
            assert ids == list(whole[: len(ids)] if start else whole[len(whole) - len(ids) :])
            assert len(ids) > min(budget, len(whole)) - 4  # at most the bytes of one character less
        assert sum(map(len, texts.pair_ids(Context((text,)), text)[:1])) <= budget


def test_a_model_reads_facts_before_the_turns_each_on_a_line_and_loses_facts_first() -> None:
    context = Context(("a2", "a3"), ("a0", "a1"))
    lines = ["a0", "|", "a1", "|", "a2", "|", "a3", "<end>"]
    texts = message_texts(20, 20, 20)
    assert words(texts.context_ids(context)) == ["user", *lines]
    assert words(texts.pair_ids(context, "b0")[0]) == ["query", *lines, "document", "b0", "<end>"]
    assert words(texts.context_ids(Context(("a2", "a3")))) == ["user", *lines[4:]]
    for n in range(len(lines)):
        assert words(message_texts(1 + len(lines) - n, 20, 20).context_ids(context)) == ["user", *lines[n:]]


def test_a_template_gets_the_side_of_a_text_if_it_reads_one() -> None:
    """A pair has both sides, and settings of the model take precedence."""
    for chat_template, more, wanted in (
        ("{{ task }}", {}, [{"task": "query"}, {"task": "document"}, {}]),
        ("{{ task }}", {"task": "own"}, [{"task": "own"}] * 3),
        ("{{ role }}", {}, [{}, {}, {}]),
    ):
        template = Template(chat_template)
        texts = message_texts(20, 20, 20, template=template, **more)
        texts.context_ids(Context(("a1",)))
        texts.candidate_ids("b1")
        texts.pair_ids(Context(("a1",)), "b1")
        assert template.given == [{"tokenize": False, **settings} for settings in wanted]


def test_a_message_has_the_form_of_the_model_or_else_of_its_template() -> None:
    for form, chat_template, structured in (
        ("auto", "{{ m.content }}", False), ("auto", "{{ m.content[0].text }}", True), ("auto", {"a": "b"}, True),
        ("flat", "{{ m.content[0].text }}", False), ("structured", "{{ m.content }}", True),
        ("auto", "{{ part.type }}", True), ("auto", "{{ part['type'] }}", True), ("auto", '{{ part["type"] }}', True),
        ("auto", "{{ message.content[-1] }}", True), ("auto", "{{ m.text }}", False),
    ):  # fmt: skip
        texts = message_texts(20, 20, 20, template=Template(chat_template), form=form)
        assert texts.structured == structured
        assert words(texts.candidate_ids("b1 b2")) == ["user", "b1", "b2", "<end>"]


def test_a_template_that_leaves_out_one_text_of_a_pair_is_refused() -> None:
    message_texts(20, 20, 20).check_pairs()
    for role in ("query", "document"):
        texts = message_texts(20, 20, 20, template=Template(left_out=role))
        with pytest.raises(ArtifactError, match="the model reads messages, and its chat template leaves out the roles"):
            texts.check_pairs()


def test_everything_that_changes_ids_is_in_the_key() -> None:
    made = [
        message_texts(8, 10, 50), message_texts(9, 10, 50), message_texts(8, 11, 50), message_texts(8, 10, 49),
        message_texts(8, 10, 50, ("sys", "")), message_texts(8, 10, 50, ("", "sys")),
        message_texts(8, 10, 50, add_generation_prompt=True),
    ]  # fmt: skip
    assert len({texts.key for texts in made}) == len(made)
