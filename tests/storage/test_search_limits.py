"""The time limit of searches: each search has its own time, in its own thread."""

import threading
from math import inf

import pytest

from polyrank.errors import DeadlineError
from polyrank.storage.time_limit import (
    TimeLimit,
    check_time_left,
    deadline_error,
    limit_searches,
    limited_search,
    seconds_left,
    time_is_over,
)


def test_several_searches_have_the_time_of_one_each() -> None:
    limit = TimeLimit(60.0)
    with limit_searches(limit):
        for _ in range(2):
            assert seconds_left() == inf  # between searches
            with limited_search():
                assert 50 < seconds_left() <= 60
                check_time_left()
                check_time_left(40)
                with pytest.raises(DeadlineError, match="took longer than 60 s and was stopped"):
                    check_time_left(70)
        with pytest.raises(ZeroDivisionError), limited_search():
            raise ZeroDivisionError
        assert (seconds_left(), limit.end, limit.is_over) == (inf, inf, False)


def test_limits_are_nested_and_of_one_thread() -> None:
    outer, inner, seen = TimeLimit(60.0), TimeLimit(0.0), list[float]()
    with limit_searches(outer), limited_search():
        with limit_searches(inner):
            check_time_left()  # no search has begun
            with limited_search():
                assert (seconds_left(), time_is_over()) == (0.0, True)
                with pytest.raises(DeadlineError, match="longer than 0 s"):
                    check_time_left()
        assert not time_is_over()
        assert 50 < seconds_left() <= 60
        other = threading.Thread(target=lambda: seen.append(seconds_left()))
        other.start()
        other.join()
        assert seen == [inf]
    assert (seconds_left(), time_is_over(), deadline_error()) == (inf, False, None)
    check_time_left(1e9)
    with limited_search():  # without a limit
        check_time_left(1e9)


def test_a_cancelled_search_and_those_after_it_end_at_once() -> None:
    limit = TimeLimit(60.0)
    with limit_searches(limit):
        for _ in range(2):
            with limited_search():
                other = threading.Thread(target=limit.cancel)
                other.start()
                other.join()
                assert time_is_over()
                with pytest.raises(DeadlineError):
                    check_time_left()
    with limit_searches(TimeLimit(60.0)), limited_search():
        check_time_left()
