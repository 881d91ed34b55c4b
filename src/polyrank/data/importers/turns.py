"""Turn every turn of a conversation into a response to the turns before it, for more training pairs.

Source: Chen and Wang, Sequential Attention-based Network (DSTC7, 2019), taken up in Humeau et al., Real-time Inference
in Multi-sentence Tasks (2019), section 5.1.
"""

from collections.abc import Iterator, Sequence

from polyrank.records import Example


def every_turn(example: Example, responses: Sequence[str] | None = None, step: int = 1) -> Iterator[Example]:
    """A pair for each turn of the context except the first, then the example itself.

    The ids of the pairs end in the number of the turn, counted from 0. Empty turns are not responses.

    Args:
        example: the example.
        responses: the text of each turn as a response; None: its text in the context.
        step: 2 uses every second turn, counted back from the response.

    >>> [(each.id, each.response) for each in every_turn(Example(("hi", "hello?", "yes"), ("my wifi",), (0,), "7"))]
    [('7#1', 'hello?'), ('7#2', 'yes'), ('7', 'my wifi')]
    """
    for number, turn in enumerate(responses or example.context):
        if number and turn.strip() and (len(example.context) - number) % step == 0:
            yield Example(example.context[:number], (turn,), (0,), f"{example.id}#{number}", example.background)
    yield example
