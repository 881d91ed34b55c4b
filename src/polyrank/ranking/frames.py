"""Results as pandas tables. pandas is not a dependency."""

from collections.abc import Mapping, Sequence
from typing import Any

from polyrank.errors import UsageError


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> Any:
    """A pandas DataFrame of the rows; ``columns`` come first, the others in order of first appearance.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise UsageError("pandas is not installed; install it with: pip install pandas") from error
    return DataFrame(list(rows), columns=list(dict.fromkeys([*columns, *(name for row in rows for name in row)])))
