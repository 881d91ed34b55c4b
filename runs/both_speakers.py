"""Adds the pairs of the other speaker, whose turn is the last of each context. That speaker has no background.

python runs/both_speakers.py PAIRS.jsonl.gz BOTH.jsonl
"""

import sys
from dataclasses import replace

from polyrank.data import read_examples, write_examples
from polyrank.records import Example


def main(pairs: str, both: str) -> None:
    """Write the pairs of each speaker."""
    own = read_examples(pairs).examples
    write_examples(both, [*own, *(of_other(one) for one in own if len(one.context) > 1)])


def of_other(pair: Example) -> Example:
    """The pair whose response is the last turn of the context.

    >>> of_other(Example(("a", "b"), ("c",), (0,), "1", ("I like c.",)))
    Example(context=('a',), candidates=('b',), relevant=(0,), id='1, other', background=(), relevant_ids=())
    """
    return replace(pair, context=pair.context[:-1], candidates=pair.context[-1:], id=f"{pair.id}, other", background=())


if __name__ == "__main__":
    main(*sys.argv[1:])
