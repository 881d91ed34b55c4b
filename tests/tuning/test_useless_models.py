"""``tune`` with a model that ranks the lists no better than chance: an answer, not an error."""

from collections.abc import Sequence

import numpy as np
import pytest

import polyrank
from polyrank.records import Context, Example

WORDS = ["wifi", "bill", "router", "parcel"]


class Backwards:
    """Vectors that give the right reply the lowest score."""

    name, dimension = "backwards", len(WORDS)

    def encode_contexts(self, contexts: Sequence[Context]) -> np.ndarray:
        return -self.encode_candidates([context.turns[-1] for context in contexts])

    def encode_candidates(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[float(word in text) for word in WORDS] for text in texts], np.float32)


@pytest.mark.parametrize("others", [(), ("bm25",)])
def test_a_model_that_ranks_backwards_is_answered_about(others: tuple[str, ...]) -> None:
    replies = [f"the {word} works" for word in WORDS]
    lists = [Example((f"my {WORDS[i % 4]} {i}",), tuple(replies), (i % 4,), id=str(i)) for i in range(24)]
    tuning = polyrank.tune([Backwards(), *others], lists, without=["words", "counts", "hubs"])
    assert bool(others) == tuning.is_better
    scores = tuning.ranker.score([lists[0].context], [replies])[0]
    assert np.isfinite(scores).all()
    assert (scores.argmax() == 0) == bool(others)
