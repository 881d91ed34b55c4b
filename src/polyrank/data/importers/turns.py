"""Every turn of a conversation as a response to those before it: more to learn from than the last one alone.

Source: Chen and Wang, Sequential Attention-based Network (DSTC7, 2019), taken up in Humeau et al., Real-time Inference
in Multi-sentence Tasks (2019), section 5.1.
"""

from collections.abc import Iterator

from polyrank.records import Example


def every_turn(example: Example) -> Iterator[Example]:
    """A pair for each turn of the context but the first, then the example itself with the candidates that it has.

    The ids of the pairs end in the number of the turn, counted from 0. An empty turn is nobody's response.

    >>> [(each.id, each.response) for each in every_turn(Example(("hi", "hello?", "yes"), ("my wifi",), (0,), "7"))]
    [('7#1', 'hello?'), ('7#2', 'yes'), ('7', 'my wifi')]
    """
    for number, turn in enumerate(example.context):
        if number and turn.strip():
            yield Example(example.context[:number], (turn,), (0,), f"{example.id}#{number}", example.background)
    yield example
