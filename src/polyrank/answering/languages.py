"""Replies in the language of their context, if a catalogue has several languages. Its metadata name them."""

from collections.abc import Sequence

from polyrank.data.language import LANGUAGE_FIELD, detect
from polyrank.index import Filter, Index, read_filter
from polyrank.index.filters import joined
from polyrank.records import Context

N_FIRST = 1000
"""Candidates whose languages are those of the catalogue; a catalogue starts with the most frequent replies."""


class Languages:
    """The languages of a catalogue, read again when it has changed.

    Args:
        index: whose candidates may have the metadata field ``language``, an ISO 639-1 code.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._read: tuple[object, frozenset[str]] = None, frozenset()

    def of(self, contexts: Sequence[Context]) -> list[str | None]:
        """The language of each context; None if it is not clear, or the catalogue has no others or not this one."""
        present = self._present()
        codes = [detect("\n".join(context.turns)) if len(present) > 1 else None for context in contexts]
        return [code if code in present else None for code in codes]

    def _present(self) -> frozenset[str]:
        if self._index.reports_changes:
            self._index.refresh()
        # otherwise a server's version counts refreshes, one for each answer
        opening, change = self._index.version
        version = opening, change if self._index.reports_changes else change // N_FIRST
        if self._read[0] != version:
            codes = (candidate.metadata.get(LANGUAGE_FIELD) for candidate in self._index.page(n=N_FIRST).candidates)
            self._read = version, frozenset(code for code in codes if isinstance(code, str))
        return self._read[1]


def in_language(filter: Filter | None, code: str) -> Filter | None:
    """A filter with the condition that a candidate is in a language, or its language is unknown.

    >>> str(in_language(read_filter("tier = 2"), "de"))
    'tier = 2 and (language = "de" or not exists language)'
    """
    return joined(filter, read_filter(f'{LANGUAGE_FIELD} = "{code}" or not exists {LANGUAGE_FIELD}'))
