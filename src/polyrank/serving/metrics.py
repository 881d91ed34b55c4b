"""A server's metrics for Prometheus."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from polyrank.serving.jobs import Job

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOGETHER = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters and histograms of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry, of = self.registry, ("operation",)
        self._requests = Counter("polyrank_requests", "Requests answered.", ("route", "status"), registry=registry)
        what = "From a request to its answer."
        self._seconds = Histogram("polyrank_request_seconds", what, ("route",), buckets=SECONDS, registry=registry)
        what = "Jobs computed together."
        self._batches = Histogram("polyrank_batch_jobs", what, of, buckets=TOGETHER, registry=registry)
        self._busy = Counter("polyrank_model_seconds", "Seconds in which models computed.", of, registry=registry)
        self._tokens = Counter("polyrank_tokens", "Tokens read, as estimated.", of, registry=registry)
        self._deaths = Counter("polyrank_worker_deaths", "Processes that died.", registry=registry)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def computed(self, batch: Sequence[Job] | None, seconds: float) -> None:
        """Count a batch or, with None, the death of a process."""
        if batch is None:
            self._deaths.inc()
            return
        operation = batch[0].task.operation
        self._batches.labels(operation).observe(len(batch))
        self._busy.labels(operation).inc(seconds)
        self._tokens.labels(operation).inc(sum(job.n_tokens for job in batch))

    def gauge(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when Prometheus reads it."""
        Gauge(f"polyrank_{name}", what, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
