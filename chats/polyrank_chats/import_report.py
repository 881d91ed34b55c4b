"""The result of importing chats: the dialogues, and counts of all messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyrank_chats.values import Row
from polyrank_chats.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatsReport:
    """Counts of messages: each is a turn, part of a turn, background, left out, or bad.

    Args:
        form: the detected form of the file.
        n_messages: all messages.
        n_conversations: dialogues.
        n_turns: turns of the dialogues.
        n_joined: messages that were appended to the previous turn of the same sender.
        n_background: system texts that became background.
        left_out: messages that were left out, by reason.
        redacted: texts that were replaced by placeholders, by kind.
        speakers: turns of each speaker.
        n_bad: bad rows.
        messages: error messages of the first three bad rows.
        notes: guesses, one line each.
    """

    form: str
    n_messages: int
    n_conversations: int
    n_turns: int
    n_joined: int = 0
    n_background: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    redacted: Mapping[str, int] = field(default_factory=dict)
    speakers: Mapping[str, int] = field(default_factory=dict)
    n_bad: int = 0
    messages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line without the counts that are zero.

        >>> print(ChatsReport(form="whatsapp", n_messages=8, n_conversations=1, n_turns=5, n_joined=2,
        ...                   left_out={"attachment": 1}, speakers={"Ann": 3, "Ben": 2}))
        8 messages, 1 conversation of 5 turns (Ann 3, Ben 2); 2 messages joined; left out: 1 attachment
        """
        by = [f"{name} {n:,}" for name, n in self.speakers.items()]
        more = [f"{len(by) - 5:,} more"] if len(by) > 5 else []
        left_out = ", ".join(counted(n, reason) for reason, n in self.left_out.items())
        replaced = ", ".join(f"{n:,} [{what}]" for what, n in self.redacted.items())
        notes = [
            (self.n_joined, f"{counted(self.n_joined, 'message')} joined"),
            (self.n_background, f"{counted(self.n_background, 'system text')} as background"),
            (self.left_out, f"left out: {left_out}"),
            (self.redacted, f"replaced: {replaced}"),
            (self.n_bad, f"{counted(self.n_bad, 'bad row')} left out ({' | '.join(self.messages)})"),
        ]
        start = (
            f"{counted(self.n_messages, 'message')}, {counted(self.n_conversations, 'conversation')}"
            f" of {counted(self.n_turns, 'turn')} ({', '.join([*by[:5], *more])})"
        )
        return "; ".join([start, *(note for condition, note in notes if condition)])


@dataclass(frozen=True, slots=True)
class Chats:
    """Rows of dialogues, for ``write_dialogues`` and ``read_examples``, and the report of the import.

    A row is ``{"id", "time", "turns": [{"speaker", "text"}]}``; without ``time`` if the file has none, and with
    ``background`` if system texts are kept.
    """

    dialogues: list[Row]
    report: ChatsReport
