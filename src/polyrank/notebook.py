"""Answers and explanations as HTML, for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def table(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """An HTML table, with floats to four digits.

    >>> table(["reply"], [["a < b"]])
    '<table><tr><th>reply</th></tr><tr><td style="text-align:left">a &lt; b</td></tr></table>'
    """
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table>{f'<caption>{escape(caption)}</caption>' if caption else ''}<tr>{heads}</tr>{body}</table>"


def shares(text: str, tokens: Iterable[tuple[int, int, float]], largest: float) -> str:
    """A text as HTML; tokens that raise a score are green, tokens that lower it are red.

    Args:
        text: the whole text.
        tokens: start, end and share of each, in order.
        largest: absolute value of all shares.

    >>> shares("hi you", [(3, 6, 1.0)], 2.0)
    'hi <span title="+1.0000" style="background:rgba(0,140,0,0.25)">you</span>'
    """
    parts, at = [], 0
    for start, end, share in tokens:
        colour = "0,140,0" if share >= 0 else "200,0,0"
        style = f"background:rgba({colour},{0.5 * abs(share) / (largest or 1.0):.2f})"
        parts += [
            escape(text[at : max(start, at)]),
            f'<span title="{share:+.4f}" style="{style}">{escape(text[max(start, at) : end])}</span>',
        ]
        at = max(end, at)
    return "".join([*parts, escape(text[at:])])


def _cell(value: object) -> str:
    shown = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f'<td style="text-align:{"right" if isinstance(value, float) else "left"}">{escape(shown)}</td>'
