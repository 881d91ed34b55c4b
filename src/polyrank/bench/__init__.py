"""Benchmarks, as functions that return plain JSON values: ``{"machine": {...}, "rows": [{...}]}``."""

from polyrank.bench.encoding import bench_encoding
from polyrank.bench.host import bench_host
from polyrank.bench.machine import describe_machine
from polyrank.bench.profile import bench_profile
from polyrank.bench.responding import KINDS, USUAL, bench_responding
from polyrank.bench.scoring import bench_scoring
from polyrank.bench.training import bench_training

__all__ = [
    "KINDS",
    "USUAL",
    "bench_encoding",
    "bench_host",
    "bench_profile",
    "bench_responding",
    "bench_scoring",
    "bench_training",
    "describe_machine",
]
