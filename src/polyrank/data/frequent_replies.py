"""The frequent replies of conversations as a catalogue: with slots in place of customers' data, near-copies as one."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from polyrank import slots
from polyrank.data.language import LANGUAGE_FIELD, detect
from polyrank.data.pool import text_id
from polyrank.data.same_words import same_words, word_pattern
from polyrank.data.small_talk import KIND_FIELD, small_talk
from polyrank.errors import DataError, UsageError
from polyrank.records import Candidate, Example
from polyrank.remembered import Remembered
from polyrank.slots import template
from polyrank.unicode import normal_form
from polyrank.wording import brief, counted

N_OF_FIRM = 3
"""A value that replies to so many customers hold, and that no customer said, is the firm's, such as its phone."""
MIN_SHARE = 0.02
"""Languages of a smaller share of the conversations count as errors of the detection."""
N_SPELLED = 5
"""Shorter words are not corrected: "now" and "not" differ in one letter."""
_CAPITALIZED = re.compile(r"(?<![\w'’])(?=[^\W\d_a-zß-ÿ])(?!I\b)\w[\w'’-]+")
_PHRASE = re.compile(
    r"(?<![\w{])(?:\d+[a-z]?,? (?:[a-zß-ÿ]+ )?[^\W\d_a-zß-ÿ][\w'’-]+|[^\W\d_a-zß-ÿ][\w'’-]+ \d+[a-z]?)(?!\w)"
)


def frequent_replies(
    examples: Iterable[Example],
    *,
    min_count: int = 2,
    top: int | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Candidate]:
    """The most frequent replies of examples, most frequent first, without the data of single customers.

    Names of participants, numbers of orders and phones, addresses, dates and amounts become slots, see
    ``polyrank.slots``. A value stays text if replies to three customers hold it and no customer said it. A reply is
    left out if it holds a word that may be a customer's data but fits no slot: several numbers of orders, or a
    capitalized word of a single conversation.

    Near-copies count as one reply: they differ only in case, punctuation, spaces, the values of slots, or misspelled
    words. The most frequent variant represents them. ``metadata`` holds their total count, the number of variants, and
    ``gaps``: slots that agents looked up, so that an answer does not fill them from its context; the ``language`` of
    their conversations; and the ``kind`` of greetings and thanks.

    Args:
        examples: examples with right answers. Those of a conversation have ids with a common beginning before "#".
        min_count: leave out replies that occur less often.
        top: keep this many; None: all.
        notify: called with messages about replies that were left out.

    Raises:
        UsageError: ``top`` is below 1.
        DataError: no reply occurs ``min_count`` times, or each may hold a customer's data.

    >>> said = ["Hi Ann, restart it.", "hi Bob: restart it", "Is AR-12345 it?", "Is AR-99881 it?", "Is that it?"]
    >>> for reply in frequent_replies(Example(("hi",), (text,), (0,)) for text in said):
    ...     print(reply.text, reply.metadata)
    Hi {customer}, restart it. {'count': 2, 'n_variants': 2}
    Is {order} it? {'count': 2, 'n_variants': 2, 'gaps': ['order']}
    """
    if top is not None and top < 1:
        raise UsageError(f"`top` is {top}; keep at least 1 reply")
    corpus = _Corpus(_conversations(examples))
    replies = corpus.replies()
    n_numbers = sum(reply.template is not None and _is_number(reply.template) for reply in replies)
    untold = [reply.text for reply in replies if reply.template is None]
    groups: dict[str, list[_Reply]] = defaultdict(list)
    for reply in replies:
        if reply.template and not _is_number(reply.template):
            groups[corpus.key(reply.template)].append(reply)
    by_count = sorted(groups.values(), key=lambda group: -len(group))
    rare = [len(group) for group in by_count if len(group) < min_count]
    kept = by_count[: len(by_count) - len(rare)][:top]
    if untold and not groups:
        raise DataError(
            f"all {counted(len(untold), 'reply')} are left out because a word may be a customer's data and fits no"
            f" slot, such as {brief(untold[0])}; give a catalogue of those that every customer may see"
        )
    if not kept:
        most = len(by_count[0]) if by_count else 0
        raise DataError(
            f"none of {len(groups):,} different replies occurs {min_count} times, the most frequent {most} times; lower"
            " `min_count`"
        )
    if rare:
        n_said = sum(map(len, by_count))
        notify(
            f"{len(rare):,} of {len(groups):,} different replies, {sum(rare) / n_said:.0%} of all {n_said:,} replies,"
            f" are left out because they occur fewer than {min_count} times (`min_count`)"
        )
    if n_numbers:
        notify(f"{counted(n_numbers, 'number')} without a word left out")
    if untold:
        notify(
            f"{counted(len(untold), 'reply')} left out because a word may be a customer's data and fits no slot, such"
            f" as {brief(untold[0])}; add those that every customer may see to your own catalogue"
        )
    return [_candidate(group) for group in kept]


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply as it was said.

    Args:
        text: its words.
        template: with slots; None: its data fits no slot.
        looked_up: kinds of its values that are not from the customer.
        language: of its conversation; None: unknown.
    """

    text: str
    template: str | None
    looked_up: frozenset[str]
    language: str | None


def _candidate(group: list[_Reply]) -> Candidate:
    """The most frequent variant of near-copies."""
    text = Counter(reply.template for reply in group if reply.template).most_common(1)[0][0]
    looked_up = Counter(kind for reply in group for kind in reply.looked_up)
    gaps = sorted(kind for kind, n in looked_up.items() if 2 * n > len(group) and f"{{{kind}}}" in text)
    languages = Counter(reply.language for reply in group if reply.language)
    known = {
        slots.GAPS_FIELD: gaps,
        LANGUAGE_FIELD: max(languages, key=lambda code: languages[code], default=None),
        KIND_FIELD: small_talk(text),
    }
    metadata = {"count": len(group), "n_variants": len({reply.text for reply in group})}
    return Candidate(text_id(text), text, metadata | {name: value for name, value in known.items() if value})


def _is_number(text: str) -> bool:
    """Whether a template has values or digits, but no words."""
    rest = slots.SLOT.sub("0", text)
    return any(map(str.isdigit, rest)) and not any(map(str.isalpha, rest))


@dataclass(eq=False)
class _Conversation:
    """A conversation's turns in the contexts of its examples, the answered ones, and the replies as often as said."""

    name: str
    turns: dict[str, None] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)

    @cached_property
    def heard(self) -> list[str]:
        """The customer's turns. If the turns of all speakers are replies, the customer's are unknown: all turns."""
        said = set(self.replies)
        if 2 * sum(turn in said for turn in self.answered) > len(self.answered):
            return [*self.turns]
        return [turn for turn in self.turns if turn not in said]

    @cached_property
    def values(self) -> set[str]:
        """The customer's values, normalized."""
        return {found.key for turn in self.heard for found in slots.data_in(turn)}

    @cached_property
    def people(self) -> dict[str, str]:
        """The kind of slot of each word of the participants' names, in lower case."""
        heard = {"speaker": "customer", "listener": "agent"}
        said = {"speaker": "agent", "listener": "customer", "either": "customer"}
        kinds = {
            (slots.lowered(part), kinds[name.whose])
            for texts, kinds in ((self.heard, heard), (self.replies, said))
            for text in dict.fromkeys(texts)
            for name in slots.people_in(text)
            if name.sure and name.whose in kinds
            for part in slots.parts_of(name.name)
        }
        return dict(sorted(kinds))  # a word of both names is the customer's

    @cached_property
    def customer(self) -> str:
        """The customer's name; the conversation's, if it is unknown."""
        return " ".join(part for part, kind in self.people.items() if kind == "customer") or f"#{self.name}"


def _conversations(examples: Iterable[Example]) -> list[_Conversation]:
    conversations: dict[str, _Conversation] = {}
    for number, example in enumerate(examples):
        name = example.id.rpartition("#")[0] or example.id or f"example {number}"
        conversation = conversations.setdefault(name, _Conversation(name))
        turns = [*map(_clean, example.context)]
        conversation.turns.update(dict.fromkeys((*map(_clean, example.background), *turns)))
        conversation.answered += turns[-1:]
        conversation.replies += filter(None, dict.fromkeys(_clean(example.candidates[i]) for i in example.relevant))
    return [*conversations.values()]


def _cleaned(text: str) -> str:
    """A text in composed Unicode, with single spaces."""
    return re.sub(r"[^\S\n]+", " ", normal_form("NFC", text)).strip()


_clean = Remembered(_cleaned).__getitem__  # contexts repeat the turns of a conversation


class _Corpus:
    """Statistics of the words of all conversations: whose they are, and how they are spelled."""

    def __init__(self, conversations: Sequence[_Conversation]) -> None:
        self.conversations = conversations
        self.n_customers: Counter[str] = Counter()  # whose conversations have a word, in lower case
        self.n_lower: Counter[str] = Counter()  # conversations that have a word written so
        kinds: Counter[tuple[str, str]] = Counter()
        last: dict[str, str] = {}
        holders: dict[str, set[str]] = defaultdict(set)
        said_by_customers: set[str] = set()
        for one in sorted(conversations, key=lambda one: one.customer):
            texts = dict.fromkeys((*one.turns, *one.replies))
            plain = {word for text in texts for word in _words(_without_data(text, one.people))}
            self.n_lower.update(filter(str.islower, plain))
            kinds.update(one.people.items())
            for word in {part.lower() for text in texts for part in (*_words(text), *_PHRASE.findall(text))}:
                self.n_customers[word] += last.get(word) != one.customer
                last[word] = one.customer
            said_by_customers |= one.values
            for found in (found for text in one.replies for found in slots.data_in(text)):
                holders[found.key].add(one.customer)
        n_named = Counter(word for word, _ in kinds.elements())
        self.common = {word for word, n in n_named.items() if self.n_lower[word] > 3 * n}
        self.names = {  # the kind of slot of words that are mostly names
            word: kind
            for (word, kind), _ in sorted(kinds.items(), key=lambda item: item[1])
            if word not in self.common and self.n_customers[word] <= (10 if n_named[word] > 2 else 2) * n_named[word]
        }
        self.of_firm = {value for value, of in holders.items() if len(of) >= N_OF_FIRM} - said_by_customers
        self.spelling = _spelling(self.n_customers)
        detected = {one.name: detect("\n".join((*one.turns, *one.replies))) for one in conversations}
        n_of = Counter(detected.values())
        self.language = {
            name: code if n_of[code] >= MIN_SHARE * len(detected) else None for name, code in detected.items()
        }

    def replies(self) -> list[_Reply]:
        """All replies, as templates."""
        masked = [
            (text, template(text, self._people(one), common=self.common, kept=self._is_of_firm), one)
            for one in self.conversations
            for text in one.replies
        ]
        names_at: dict[str, set[str]] = defaultdict(set)  # words at the place of a name, by the rest of the reply
        for _, made, _ in masked:
            if "{customer}" in made:
                names_at[self.key(made)].add("{customer}")
            for rest, name in _holes(made):
                names_at[self.key(rest)].add(name.lower())
        return [self._reply(text, made, one, names_at) for text, made, one in masked]

    def _people(self, one: _Conversation) -> Mapping[str, str]:
        """The participants of a conversation; if the customer's name is unknown, a name of others is the customer's."""
        return self.names | one.people if one.customer.startswith("#") else one.people

    def _reply(self, text: str, made: str, one: _Conversation, names_at: Mapping[str, Collection[str]]) -> _Reply:
        made = next((rest for rest, name in _holes(made) if self._is_name(rest, name, one, names_at)), made)
        alike = ((rest, names_at.get(self.key(rest), ()), name) for rest, name in _holes_of_capitals(made))
        made = next(
            (rest for rest, there, name in alike if "{customer}" in there and self._is_rarely_lower(name)), made
        )
        made = slots.NUMBER.sub(lambda number: "{number}" if self._is_rare(number[0]) else number[0], made)
        several = any(
            name.endswith("_2") and name.removesuffix("_2") not in slots.SEVERAL for name in slots.slots_in(made)
        )
        values = [found for found in slots.data_in(text) if not self._is_of_firm(found)]
        looked_up = frozenset(found.kind for found in values if found.key not in one.values)
        personal = several or self._is_personal(made)
        return _Reply(text, None if personal else made, looked_up, self.language[one.name])

    def _is_of_firm(self, found: slots.Found) -> bool:
        return found.key in self.of_firm and not found.value.startswith("{")

    def _is_name(self, rest: str, name: str, one: _Conversation, names_at: Mapping[str, Collection[str]]) -> bool:
        """Whether the words at the place of a name are one: known, or otherwise equal replies have others there."""
        words = name.lower().split()
        if all(word in self.names or word in self.common or word in one.people for word in words):
            return True
        return len(names_at[self.key(rest)]) > 1 and all(map(self._is_rarely_lower, name.split()))

    def _is_rarely_lower(self, word: str) -> bool:
        """Whether a word has a capital in most conversations; words that have none here may be names in lower case."""
        return word.islower() or 2 * self.n_lower[word.lower()] <= self.n_customers[word.lower()]

    def _is_rare(self, words: str, n: int = N_OF_FIRM) -> bool:
        """Whether the conversations of fewer than ``n`` customers have each of these words."""
        return all(self.n_customers[word] < n for word in _words(words.lower()))

    def _is_personal(self, made: str) -> bool:
        """Whether a template holds a word that may be a customer's data: a name, or one in no other conversation."""
        for match in _CAPITALIZED.finditer(slots.SLOT.sub(lambda slot: " " * len(slot[0]), made)):
            starts = re.search(r"(?:^|[.!?:…\n(\"“„«*•–-])\s*$", made[: match.start()])
            known = _spelled(match[0], self.spelling)
            word = known.lower().removesuffix("'s").removesuffix("’s")
            if made[: match.start()].endswith("{customer} ") and self._is_rarely_lower(word):
                return True
            if word in self.names or (not starts and (word in self.common or self._is_rare(known, 2))):
                return True
        if any(self.n_customers[phrase.lower()] < 2 for phrase in _PHRASE.findall(made)):
            return True
        return any(self._is_rare(_spelled(name, self.spelling), 2) for _, name in _holes(made))

    def key(self, made: str) -> str:
        """The key that near-copies share: the template without case, punctuation, spaces and rare misspellings."""
        words = _spelled(same_words(slots.SLOT.sub(r" slot\1 ", made)), self.spelling)
        return re.sub(r"(?<!\d) | (?!\d)", "", words)


def _holes(made: str) -> Iterator[tuple[str, str]]:
    """For each name at a place of names: the template with a slot instead, and the name."""
    for name in slots.people_in(made):
        yield f"{made[: name.start]}{{customer}}{made[name.end :]}", name.name


def _holes_of_capitals(made: str) -> Iterator[tuple[str, str]]:
    """For each capitalized word: the template with a slot for it and for names next to it, and the word."""
    for match in _CAPITALIZED.finditer(slots.SLOT.sub(lambda slot: slot[0].lower(), made)):
        rest = f"{made[: match.start()]}{{customer}}{made[match.end() :]}"
        yield rest.replace("{customer} {customer}", "{customer}"), match[0]


def _without_data(text: str, people: Mapping[str, str]) -> str:
    """A text without slots and names at the places of names.

    >>> _without_data("Dear Mr X, sure thing", {})
    'Dear , sure thing'
    """
    made = slots.SLOT.sub(" ", template(text, people))
    # a name may match several patterns
    names = {at for name in slots.people_in(made) for at in range(name.start, name.end)}
    return "".join(letter for at, letter in enumerate(made) if at not in names)


def _words(text: str) -> list[str]:
    return word_pattern().findall(text)


def _spelled(words: str, spelling: Mapping[str, str]) -> str:
    return " ".join(spelling.get(word.lower(), word) for word in words.split())


def _spelling(counts: Mapping[str, int]) -> dict[str, str]:
    """Corrections of words with one typing error: a letter too many, too few, another, or two exchanged.

    Args:
        counts: of customers by word. A word of one customer is corrected to a word of several, if both begin alike;
            a word with a letter too few also if ten times as many have the other.

    >>> _spelling({"restart": 5, "restrat": 1, "restrt": 1, "start": 2, "keine": 9, "deine": 1})
    {'restrat': 'restart', 'restrt': 'restart'}
    """
    by_part: dict[str, str] = {}
    long = {word: n for word, n in counts.items() if len(word) >= N_SPELLED and word.isalpha()}
    for word, _ in sorted(((word, n) for word, n in long.items() if n > 1), key=lambda pair: pair[1]):
        by_part |= dict.fromkeys(_parts(word), word)
    nearest = (
        (word, n, next((by_part[part] for part in _parts(word) if part in by_part), word)) for word, n in long.items()
    )
    return {word: near for word, n, near in nearest if n < 2 <= long[near] or 10 * n <= long[near]}


def _parts(word: str) -> list[str]:
    """A word, and the word without each of its letters but the first."""
    return [word, *(word[:i] + word[i + 1 :] for i in range(1, len(word)))]
