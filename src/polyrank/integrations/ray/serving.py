"""The app of ``polyrank serve`` in replicas of Ray Serve: each has its own process that computes.

Ray's proxy takes the requests and gives each to a replica; keys, limits and batches are the app's own.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyrank.config.serving import ServingSettings, check_reach
from polyrank.errors import ConfigError, ResourceError, UsageError
from polyrank.integrations.ray.cluster import check_arguments, connected
from polyrank.loading.models import absolute_name
from polyrank.serving.pool import FailedError, Worker
from polyrank.serving.tasks import Started
from polyrank.serving.worker import Setup

APP = "polyrank"
STATUS_S = 1.0  # between looks at how the replicas are


def serve(
    models: Mapping[str, str],
    settings: ServingSettings,
    *,
    replicas: int = 1,
    cpus: int = 1,
    address: str = "auto",
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve by replicas until SIGTERM or SIGINT comes; call it in the main thread.

    Args:
        models: paths by name, on a disk that all nodes see; an index among them is one that nobody changes, or a remote
            one.
        settings: as for ``polyrank serve``; ``host`` and ``port`` are those of Ray's proxy, on the head.
        replicas: how many, each with ``settings.workers`` processes that compute.
        cpus: of each replica.
        address: see ``connected``.
        ready: called with the address, once all replicas answer.

    Raises:
        UsageError: others can reach the address and there are no keys.
        ConfigError: feedback is asked for, whose file has one writer.
        OfflineError: there is no cluster.
        ResourceError: replicas do not start.
        PolyrankError: what is served cannot be opened.
    """
    check_arguments(address, settings.device)
    _check(settings)
    with connected(address), _asked_to_stop() as asked:
        from ray import serve as ray_serve

        deploy(models, settings, replicas=replicas, cpus=cpus)
        try:
            while not asked.is_set() and not is_ready():
                asked.wait(STATUS_S)
            if not asked.is_set():
                ready(f"http://{settings.host}:{settings.port}")
                asked.wait()
        finally:
            ray_serve.shutdown()


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Set once SIGTERM or SIGINT has come."""
    asked = threading.Event()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def deploy(models: Mapping[str, str], settings: ServingSettings, *, replicas: int = 1, cpus: int = 1) -> None:
    """Ask the cluster that this process has joined for replicas, not ready yet; arguments as for ``serve``."""
    from ray import serve as ray_serve

    _check(settings)
    models = {name: absolute_name(path) for name, path in models.items()}
    if settings.api_key_file is not None:
        settings = replace(settings, api_key_file=str(Path(settings.api_key_file).absolute()))
    _check_models(models, settings)
    if ray_serve.status().proxies:
        raise UsageError("Ray Serve runs on this cluster already; end it with `serve shutdown`, or use another cluster")
    ray_serve.start(
        proxy_location="HeadOnly",
        http_options={"host": settings.host, "port": settings.port, "request_timeout_s": None},
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )
    replica = ray_serve.deployment(
        name=APP,
        num_replicas=replicas,
        max_ongoing_requests=settings.limits.queue,  # who waits does so where batches are made
        ray_actor_options={"num_cpus": cpus},
    )(ray_serve.ingress(_builder(models, settings))())
    ray_serve.run_many(
        [ray_serve.RunTarget(replica.bind(), name=APP)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def _check(settings: ServingSettings) -> None:
    check_reach(settings)
    if settings.feedback.file is not None:
        raise ConfigError(
            "feedback is one file with one writer, and replicas are several; leave it out, or serve alone"
        )


def is_ready() -> bool:
    """Whether all replicas answer.

    Raises:
        PolyrankError: they do not start.
    """
    from ray import serve as ray_serve

    app = ray_serve.status().applications.get(APP)
    if app is not None and app.status in ("DEPLOY_FAILED", "UNHEALTHY"):
        said = " ".join(app.message.split())
        raise ResourceError(f"the replicas do not start: {said[:300]}; see what Ray's logs say of them")
    return app is not None and app.status == "RUNNING"


def _check_models(models: Mapping[str, str], settings: ServingSettings) -> None:
    """Open them once here: a replica's trouble would come back as a page of text, after several tries."""
    worker = Worker.start(Setup.of(models, settings))
    try:
        started = worker.until_started()
    except EOFError:
        died = "the process that opened what is served died; see whether there is memory for it"
        started = Started(exit_code=1, error=died)
    finally:
        worker.kill()
    if started.exit_code:
        raise FailedError(started.error, started.exit_code)


def _builder(models: dict[str, str], settings: ServingSettings) -> Callable[[], Any]:
    def build() -> Any:
        from polyrank.serving.app import create_app

        app, server = create_app(models, settings)

        async def app_when_ready(scope: Any, receive: Any, send: Any) -> None:
            """The app; it has started once its models are open, and only then Ray counts it as a replica."""

            async def send_when_ready(message: Any) -> None:
                if message["type"] == "lifespan.startup.complete":
                    await server.pool.until_ready()
                await send(message)

            await app(scope, receive, send_when_ready if scope["type"] == "lifespan" else send)

        return app_when_ready

    return build
