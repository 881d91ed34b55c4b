"""The app of ``polyrank serve`` as replicas of Ray Serve, each with its own model process.

Ray's proxy assigns each request to a replica; the app in the replica checks keys and limits and forms batches.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyrank import ConfigError, ResourceError, UsageError
from polyrank.config.serving import ServingSettings, check_reach
from polyrank.loading import absolute_name
from polyrank.serving.pool import StartupError, Worker
from polyrank.serving.tasks import Started
from polyrank.serving.worker import Setup
from polyrank_ray.cluster import check_arguments, connected, share_of_gpus

APP = "polyrank"
STATUS_S = 1.0  # between two queries of the replicas' status


def serve(
    models: Mapping[str, str],
    settings: ServingSettings,
    *,
    replicas: int = 1,
    cpus: int = 1,
    address: str = "auto",
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve with replicas until SIGTERM or SIGINT; call this in the main thread.

    Args:
        models: paths by name, on a disk that all nodes share; an index must be remote or never change.
        settings: as for ``polyrank serve``; ``host`` and ``port`` are those of Ray's proxy on the head node.
        replicas: number of replicas, each with ``settings.workers`` model processes.
        cpus: of each replica.
        address: see ``connected``.
        ready: called with the URL once all replicas answer.

    Raises:
        UsageError: the address is reachable from other machines and no API keys are set.
        ConfigError: feedback is requested, but its file allows one writer.
        OfflineError: no cluster answers.
        ResourceError: replicas do not start.
        PolyrankError: a model or index cannot be opened.
    """
    check_arguments(address, settings.device, replicas=replicas, cpus=cpus)
    _check(settings)
    with connected(address), _stop_signal() as stopped:
        from ray import serve as ray_serve

        deploy(models, settings, replicas=replicas, cpus=cpus)
        try:
            while not stopped.is_set() and not is_ready():
                stopped.wait(STATUS_S)
            if not stopped.is_set():
                ready(f"http://{settings.host}:{settings.port}")
                stopped.wait()
        finally:
            ray_serve.shutdown()


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def deploy(models: Mapping[str, str], settings: ServingSettings, *, replicas: int = 1, cpus: int = 1) -> None:
    """Start replicas on the connected cluster without waiting for them; arguments as for ``serve``."""
    from ray import serve as ray_serve

    _check(settings)
    models = {name: absolute_name(path) for name, path in models.items()}
    if settings.api_key_file is not None:
        settings = replace(settings, api_key_file=str(Path(settings.api_key_file).absolute()))
    _check_models(models, replace(settings, device="cpu"))  # this machine may have no GPU
    if ray_serve.status().proxies:
        raise UsageError("Ray Serve already runs on this cluster; end it with `serve shutdown`, or use another cluster")
    ray_serve.start(
        proxy_location="HeadOnly",
        http_options={"host": settings.host, "port": settings.port, "request_timeout_s": None},
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )
    replica = ray_serve.deployment(
        name=APP,
        num_replicas=replicas,
        max_ongoing_requests=settings.limits.queue,  # requests wait in the app, which forms batches
        ray_actor_options={"num_cpus": cpus, "num_gpus": share_of_gpus(settings.device, replicas)},
    )(ray_serve.ingress(_builder(models, settings))())
    ray_serve.run_many(
        [ray_serve.RunTarget(replica.bind(), name=APP)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def _check(settings: ServingSettings) -> None:
    check_reach(settings)
    if settings.feedback.file is not None:
        raise ConfigError("replicas cannot share a feedback file; omit it, or use polyrank serve without Ray")


def is_ready() -> bool:
    """Whether all replicas answer.

    Raises:
        ResourceError: they do not start.
    """
    from ray import serve as ray_serve

    app = ray_serve.status().applications.get(APP)
    if app is not None and app.status in ("DEPLOY_FAILED", "UNHEALTHY"):
        message = " ".join(app.message.split())
        raise ResourceError(f"the replicas do not start: {message[:300]}; see Ray's logs")
    return app is not None and app.status == "RUNNING"


def _check_models(models: Mapping[str, str], settings: ServingSettings) -> None:
    """Open the models once here, because Ray reports a replica's error as a long text after several retries."""
    worker = Worker.start(Setup.of(models, settings))
    try:
        started = worker.wait_started()
    except EOFError:
        died = "the process that opened the models died; check that the machine has enough memory for them"
        started = Started(exit_code=1, error=died)
    finally:
        worker.kill()
    if started.exit_code:
        raise StartupError(started.error, started.exit_code)


def _builder(models: dict[str, str], settings: ServingSettings) -> Callable[[], Any]:
    def build() -> Any:
        from polyrank.serving.app import create_app

        app, server = create_app(models, settings)

        async def app_when_ready(scope: Any, receive: Any, send: Any) -> None:
            """The app; startup completes only when its models are open, because Ray counts the replica from then."""

            async def send_when_ready(message: Any) -> None:
                if message["type"] == "lifespan.startup.complete":
                    await server.pool.until_ready()
                await send(message)

            await app(scope, receive, send_when_ready if scope["type"] == "lifespan" else send)

        return app_when_ready

    return build
