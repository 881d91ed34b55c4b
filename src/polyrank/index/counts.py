"""How often a reply was said: the number in its metadata field `count`. No torch."""

from math import inf

from polyrank.data.values import is_number

COUNT_FIELD = "count"


def as_count(value: object) -> float:
    """The metadata field `count` as a number: 0 unless it is a number above 0 or consists of digits.

    >>> [as_count(value) for value in (3, 2.5, "7", None, -1, True, "many")]
    [3.0, 2.5, 7.0, 0.0, 0.0, 0.0, 0.0]
    """
    is_digits = isinstance(value, str) and value.isascii() and value.isdigit()  # a table holds texts
    if not is_digits and not is_number(value):
        return 0.0
    try:
        number = float(value)  # type: ignore[arg-type]  # a number, or digits
    except OverflowError:
        return 0.0
    return number if 0 < number < inf else 0.0
