"""The columns by which a collection is filtered: facts, and the partition of each row if a field divides them.

A filter that demands values of this field reads their partitions only. No torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyrank.errors import UsageError
from polyrank.index.filters import Tree, read_filter
from polyrank.index.remote.facts import COLUMN, condition, fact_name, facts, paths_of

PARTITION = "partition"
REST = "-"  # the partition of rows without a single value of the field


@dataclass(frozen=True, slots=True)
class Columns:
    """How a collection stores what filters need.

    Args:
        field: the path of the field that divides the rows; empty: nothing does.
    """

    field: tuple[str, ...] = ()

    def of(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a row's columns.

        Args:
            metadata: of the candidate, as the JSON parser returns them.

        >>> Columns(("lang",)).of({"lang": ["en", "de"]})["partition"]
        '-'
        """
        row: dict[str, Any] = {COLUMN: facts(metadata)}
        if self.field:
            value = dict(paths_of(metadata)).get(self.field, [])
            row[PARTITION] = REST if isinstance(value, list | dict) else fact_name("v", self.field, value)
        return row

    def condition(self, tree: Tree) -> str:
        """A filter as a Milvus expression that names the partitions to read, if it demands values of the field."""
        passes, read = condition(tree), self.partitions(tree)
        return passes if read is None else f"{PARTITION} in {json.dumps(sorted(read))} and {passes}"

    def partitions(self, tree: Tree) -> frozenset[str] | None:
        """Partitions that hold all candidates that pass a filter; None: any may.

        >>> def n_read(text): return len(Columns(("lang",)).partitions(read_filter(text).tree) or ())
        >>> n_read('lang = "en"'), n_read('lang in ("en", "de") and tier > 1'), n_read('lang = "en" or tier > 1')
        (2, 3, 0)
        """
        kind, *rest = tree
        if kind == "in" and self.field and tuple(rest[0]) == self.field:  # an array may hold the value
            return frozenset([REST, *(fact_name("v", self.field, one) for one in rest[1])])
        if kind not in ("and", "or"):
            return None
        parts = [self.partitions(part) for part in rest]
        known = [part for part in parts if part is not None]
        if kind == "and":
            return frozenset.intersection(*known) if known else None
        return frozenset.union(*known) if len(known) == len(parts) else None


def read_field(text: str) -> tuple[str, ...]:
    """The path of a field, written as in a filter; empty if the text is.

    Raises:
        UsageError: the text is not the name of a field.

    >>> read_field("customer.tier"), read_field("")
    (('customer', 'tier'), ())
    """
    try:
        kind, *rest = read_filter(f"exists {text}").tree if text else ("exists", ())
    except UsageError:
        kind = ""
    if kind != "exists":
        raise UsageError(f'a collection cannot be divided by {text!r}; name one field, such as lang or "first seen"')
    return tuple(rest[0])
