"""Measurements that help a user choose a model, as functions that return plain JSON values."""

from polyrank.bench.machine import describe_machine as describe_machine
from polyrank.bench.profile import bench_profile as bench_profile
from polyrank.bench.responding import bench_responding as bench_responding
