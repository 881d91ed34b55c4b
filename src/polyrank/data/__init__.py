"""Files of the world become Examples, and Examples become batches in a seeded order."""

from polyrank.data.batches import batch_order, sample_negatives
from polyrank.data.reading import Loaded, ReadReport, read_examples, read_pool, write_examples

__all__ = ["Loaded", "ReadReport", "batch_order", "read_examples", "read_pool", "sample_negatives", "write_examples"]
