"""The report of an import, which accounts for every message, and the result."""

from collections import Counter
from dataclasses import dataclass, field

from polyrank_chats.errors import DataError
from polyrank_chats.values import Row
from polyrank_chats.wording import counted

KEPT_ERRORS = 3


@dataclass(slots=True, kw_only=True)
class Report:
    """Counts of messages: each is a turn, part of a turn, background, left out, or bad.

    Args:
        skip_bad: count bad rows, instead of raising the error of the first.
        forms: the detected forms of the files.
        n_messages: all messages.
        n_conversations: dialogues.
        n_turns: turns of the dialogues.
        n_joined: messages that were appended to the previous turn of the same sender.
        left_out: messages that were left out, by reason.
        redacted: texts that were replaced by placeholders, by kind.
        speakers: turns of each speaker.
        senders: messages of each sender, the most frequent first.
        guessed: the agents, if only the senders' behaviour shows them; empty if nothing does, None if words do.
        n_bad: bad rows.
        errors: error messages of the first three bad rows.
        notes: guesses, one line each.

    >>> print(Report(n_messages=8, n_conversations=1, n_turns=5, n_joined=2, left_out=Counter({"attachment": 1}),
    ...              speakers=Counter(Ann=3, Ben=2)))
    8 messages, 1 conversation of 5 turns (Ann 3, Ben 2); 2 messages joined; left out: 1 attachment
    """

    skip_bad: bool = field(default=False, repr=False)
    forms: list[str] = field(default_factory=list)
    n_messages: int = 0
    n_conversations: int = 0
    n_turns: int = 0
    n_joined: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    speakers: Counter[str] = field(default_factory=Counter)
    senders: Counter[str] = field(default_factory=Counter, repr=False)
    guessed: list[str] | None = None
    n_bad: int = 0
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Add a note about a guess, once."""
        if line not in self.notes:
            self.notes.append(line)

    def count_bad(self, error: DataError) -> None:
        """Count a bad row, or raise its error unless bad rows are skipped."""
        if not self.skip_bad:
            raise error
        self.n_bad += 1
        self.errors += [str(error)] * (len(self.errors) < KEPT_ERRORS)

    def __str__(self) -> str:
        """One line without the counts that are zero."""
        by = [f"{name} {n:,}" for name, n in self.speakers.most_common(5)]
        by += [f"{len(self.speakers) - 5:,} more"] * (len(self.speakers) > 5)
        left_out = [counted(n, reason) for reason, n in self.left_out.most_common() if n]
        notes = {
            f"{counted(self.n_joined, 'message')} joined": self.n_joined,
            f"left out: {', '.join(left_out)}": left_out,
            f"replaced: {', '.join(f'{n:,} {{{what}}}' for what, n in self.redacted.items())}": self.redacted,
            f"{counted(self.n_bad, 'bad row')} left out ({' | '.join(self.errors)})": self.n_bad,
        }
        counts = f"{counted(self.n_messages, 'message')}, {counted(self.n_conversations, 'conversation')}"
        start = f"{counts} of {counted(self.n_turns, 'turn')} ({', '.join(by)})"
        return "; ".join([start, *(note for note, condition in notes.items() if condition)])


@dataclass(frozen=True, slots=True)
class Chats:
    """Rows of dialogues, for ``write_dialogues``, and the report of the import.

    A row is ``{"id", "time", "turns": [{"speaker", "text"}]}``; without ``time`` if the file has none.
    """

    dialogues: list[Row]
    report: Report
