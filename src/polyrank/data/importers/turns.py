"""Every turn of a conversation as a response to those before it: more to learn from than the last one alone.

Source: Chen and Wang, Sequential Attention-based Network (DSTC7, 2019), taken up in Humeau et al., Real-time Inference
in Multi-sentence Tasks (2019), section 5.1.
"""

from collections.abc import Iterator, Sequence

from polyrank.records import Example


def every_turn(example: Example, responses: Sequence[str] | None = None, step: int = 1) -> Iterator[Example]:
    """A pair for each turn of the context but the first, then the example itself with the candidates that it has.

    The ids of the pairs end in the number of the turn, counted from 0. An empty turn is nobody's response.

    Args:
        example: whose turns they are.
        responses: what each turn is as a response; None: as it is in the context.
        step: 2 takes every second turn back from the response.

    >>> [(each.id, each.response) for each in every_turn(Example(("hi", "hello?", "yes"), ("my wifi",), (0,), "7"))]
    [('7#1', 'hello?'), ('7#2', 'yes'), ('7', 'my wifi')]
    """
    for number, turn in enumerate(responses or example.context):
        if number and turn.strip() and (len(example.context) - number) % step == 0:
            yield Example(example.context[:number], (turn,), (0,), f"{example.id}#{number}", example.background)
    yield example
