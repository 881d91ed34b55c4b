"""Importers of public corpora, one for each published format.

An importer accepts a file and returns a source (see ``polyrank.data.read_report``), which yields the examples of each
good row and reports the errors of others with file and line.
"""

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

from polyrank.data.importers.dialogue import convai2, dailydialog, labelled_turns, pairs, parlai, personachat
from polyrank.data.importers.texts import wikipedia
from polyrank.data.importers.ubuntu import dstc7, dstc7_pool, ubuntu_v2
from polyrank.data.read_report import Loaded, Source, collect
from polyrank.errors import UsageError

Importer = Callable[..., Source]
"""Accepts the source file and its own keyword options."""

_ALL = convai2, dailydialog, dstc7, dstc7_pool, labelled_turns, pairs, parlai, personachat, ubuntu_v2, wikipedia
IMPORTERS: Mapping[str, Importer] = MappingProxyType({one.__name__.replace("_", "-"): one for one in _ALL})


def import_examples(format_: str, source: Path | str, *, skip_bad: bool = False, **options: Any) -> Loaded:
    """Read a published corpus.

    Args:
        format_: one of ``IMPORTERS``.
        source: the published file.
        skip_bad: count bad rows in the report and continue, instead of stopping at the first.
        options: keywords of the importer: ``seed`` and ``max_words`` of wikipedia, ``answers`` of dstc7 and dstc7-pool,
            ``every_turn`` of convai2, dstc7 and ubuntu-v2, ``as_released`` of dstc7, ``part`` of personachat.

    Raises:
        UsageError: the format is unknown, or does not have an option.
        DataError: ``file:line: what is wrong; what to do``.

    >>> import_examples("conll", "x.txt")
    Traceback (most recent call last):
    polyrank.errors.UsageError: format 'conll' is unknown; use convai2, dailydialog, dstc7, ... or wikipedia
    """
    if format_ not in IMPORTERS:
        *most, last = IMPORTERS
        raise UsageError(f"format {format_!r} is unknown; use {', '.join(most)} or {last}")
    for name in options:
        if name not in signature(IMPORTERS[format_]).parameters:
            raise UsageError(f"`{name}` does not apply to {format_}; leave it out")
    path = Path(source)
    return collect(IMPORTERS[format_](path, **options), path, skip_bad=skip_bad)
