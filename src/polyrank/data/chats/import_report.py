"""What importing chats gave: the dialogues, and what became of every message."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyrank.data.read_report import counted
from polyrank.data.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatsReport:
    """Every message is in a turn of its own, joined to one, background, left out or bad.

    Args:
        form: what the file was read as.
        n_messages: all that were read.
        n_conversations: dialogues that they make.
        n_turns: turns of these.
        n_joined: messages that were added to the turn before, their sender's own.
        n_background: system texts that became background.
        left_out: how many were left out, by reason.
        redacted: how many were replaced by placeholders, by kind.
        speakers: turns of each speaker.
        n_bad: rows that are bad.
        messages: what was wrong with the first three of them.
        notes: what was guessed, one line for each.
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
        """One line; what is zero goes unsaid.

        >>> print(ChatsReport(form="whatsapp", n_messages=8, n_conversations=1, n_turns=5, n_joined=2,
        ...                   left_out={"attachment": 1}, speakers={"Ann": 3, "Ben": 2}))
        8 messages, 1 conversation of 5 turns (Ann 3, Ben 2); 2 messages joined; left out: 1 attachment
        """
        names = list(self.speakers.items())
        by = ", ".join(f"{name} {n:,}" for name, n in names[:5]) + (
            f", {len(names) - 5:,} more" if len(names) > 5 else ""
        )
        parts = [
            f"{counted(self.n_messages, 'message')}, {counted(self.n_conversations, 'conversation')}"
            f" of {counted(self.n_turns, 'turn')} ({by})"
        ]
        if self.n_joined:
            parts.append(f"{counted(self.n_joined, 'message')} joined")
        if self.n_background:
            parts.append(f"{counted(self.n_background, 'system text')} as background")
        if self.left_out:
            parts.append(f"left out: {', '.join(counted(n, reason) for reason, n in self.left_out.items())}")
        if self.redacted:
            parts.append(f"replaced: {', '.join(f'{n:,} [{what}]' for what, n in self.redacted.items())}")
        if self.n_bad:
            parts.append(f"{counted(self.n_bad, 'bad row')} left out ({' | '.join(self.messages)})")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Chats:
    """Rows of dialogues, which ``write_dialogues`` writes and ``read_examples`` reads, and how they were read.

    A row is ``{"id", "time", "turns": [{"speaker", "text"}]}``; without ``time`` where the file has none, and with
    ``background`` where system texts are kept.
    """

    dialogues: list[Row]
    report: ChatsReport
