"""Speed tables, as functions that return plain JSON values: ``{"machine": {...}, "rows": [{...}]}``."""

from polyrank.bench.machine import describe_machine
from polyrank.bench.scoring import bench_scoring

__all__ = ["bench_scoring", "describe_machine"]
