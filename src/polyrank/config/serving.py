"""What a server serves, where it listens, and what it refuses: the settings of ``polyrank serve``."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from polyrank.config.checked import Count, Limits, NotNegative, Positive, Settings, from_dict
from polyrank.config.tables import read_tables
from polyrank.errors import ConfigError, UsageError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
Port = Annotated[int, Limits(least=0, most=65_535)]
MetadataBytes = Annotated[int, Limits(least=2, most=65_536)]  # an index takes no more


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings(Settings):
    """What one request, and all that wait, may ask for.

    Args:
        body_bytes: of a request.
        values: JSON values in a request: numbers, texts, lists, objects.
        items: texts in one request: documents, inputs, candidates.
        characters: of one text.
        tokens: in all texts of a request, as estimated.
        metadata_bytes: of one candidate's metadata as JSON.
        turns: of one context.
        k: replies to one context.
        timeout_s: seconds until a request that waits or computes is given up; those that cannot be done in this time
            are refused at once.
        filter_timeout_s: seconds that a filter, or words that are looked for, may search through the candidates.
        body_timeout_s: seconds that a client has to send a request.
        queue: requests that wait for the model.
        connections: open at once.
    """

    body_bytes: Count = 4 * 2**20
    values: Count = 100_000
    items: Count = 2_048
    characters: Count = 100_000
    tokens: Count = 1_000_000
    metadata_bytes: MetadataBytes = 65_536
    turns: Count = 1_000
    k: Count = 1_000
    timeout_s: Positive = 30.0
    filter_timeout_s: Positive = 5.0
    body_timeout_s: Positive = 10.0
    queue: Count = 512
    connections: Count = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackSettings(Settings):
    """What is remembered of how suggestions were taken.

    Args:
        file: a SQLite file; None: nothing is.
        keep_text: whether what users wrote is stored; else only ids and hashes.
    """

    file: str | None = None
    keep_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings(Settings):
    """How a server behaves.

    Args:
        host: an address to listen at; one that other machines reach needs keys.
        port: 0: one that is free.
        api_key_file: keys, one in each line; None: whoever reaches the server may ask.
        device: for networks: auto, cpu or cuda.
        backend: torch, or the models' exports: onnx, onnx-int8, openvino; or auto, whichever of torch, onnx and
            openvino answers soonest when it starts.
        workers: processes that compute, each with every model.
        threads: of each of them; None: their share of the cores.
        reload: whether a model, index or pipeline that is replaced on disk is opened anew.
        drain_s: seconds after SIGTERM in which requests are still taken, while ``/ready`` says 503 and whoever sends
            requests here learns of it. Ctrl-C does without.
        page: whether there is a page at ``/``.
    """

    host: str = "127.0.0.1"
    port: Port = 8600
    api_key_file: str | None = None
    device: str = "auto"
    backend: Literal["torch", "onnx", "onnx-int8", "openvino", "auto"] = "torch"
    workers: Count = 1
    threads: Count | None = None
    reload: bool = False
    drain_s: NotNegative = 1.0
    page: bool = True
    limits: LimitSettings = field(default_factory=LimitSettings)
    feedback: FeedbackSettings = field(default_factory=FeedbackSettings)


def read_serving(
    file: Path | None, paths: Iterable[str] = (), changes: Mapping[str, Any] | None = None
) -> tuple[dict[str, str], ServingSettings]:
    """What is served by name, and the settings.

    Args:
        file: TOML, with a table ``[models]`` of names and paths; paths in it are relative to its folder. None: none.
        paths: further ones, as NAME=PATH or a path, whose last part is its name.
        changes: settings that count instead of the file's, by key.

    Raises:
        ConfigError: a key or a value is none.
        UsageError: two have the same name, a name is none, or there is nothing to serve.
    """
    values: dict[str, Any] = {}
    models: dict[str, str] = {}
    if file is not None:
        values, folder = read_tables(file)
        named = values.pop("models", {})
        if not isinstance(named, dict) or not all(isinstance(path, str) for path in named.values()):
            raise ConfigError('models is no table of names and paths; write [models] and name = "path" below it')
        models = {checked_name(name): _located(path, folder) for name, path in named.items()}
        for table, key in ((values, "api_key_file"), (values.get("feedback"), "file")):
            if isinstance(table, dict) and isinstance(table.get(key), str):
                table[key] = str(folder / table[key])
    for path in paths:
        name, location = _named(path)
        if name in models:
            raise UsageError(f"{name} is the name of {models[name]} already; write another one, as OTHER={location}")
        models[name] = location
    if not models:
        raise UsageError("there is nothing to serve; name an index, a pipeline or a model")
    settings = _changed(from_dict(ServingSettings, values), changes or {})
    if settings.feedback.keep_text and settings.feedback.file is None:
        raise ConfigError("texts are to be kept, but in no file; name one with --feedback, or as feedback.file")
    return models, settings


def checked_name(name: str) -> str:
    """A name that something may be served by.

    Raises:
        UsageError: it is none.

    >>> checked_name("support-en")
    'support-en'
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is no name to be served by; use 1 to 64 of a-z, 0-9, _ and -, the first a letter or digit"
        )
    return name


def is_loopback(host: str) -> bool:
    """Whether nothing but this machine reaches a server there.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_reach(settings: ServingSettings) -> None:
    """Refuse to let other machines ask without a key.

    Raises:
        UsageError: they could.
    """
    if not is_loopback(settings.host) and not settings.api_key_file:
        raise UsageError(
            f"{settings.host} can be reached by other machines; name a file of keys with --api-key-file, or listen at"
            " 127.0.0.1"
        )


def _changed(settings: ServingSettings, changes: Mapping[str, Any]) -> ServingSettings:
    feedback = {key.removeprefix("feedback_"): value for key, value in changes.items() if key.startswith("feedback_")}
    own = {key: value for key, value in changes.items() if not key.startswith("feedback_")}
    return replace(settings, **own, feedback=replace(settings.feedback, **feedback))


def _located(path: str, folder: Path) -> str:
    """As seen from the working directory; what is no path beside the file is a name as on the command line."""
    return str(folder / path) if (folder / path).exists() else path


def _named(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if equals and path and not Path(text).exists():
        return checked_name(name), path
    last = re.split(r"[/:\\]", text.rstrip("/\\"))[-1] if text not in (".", "..") else Path(text).resolve().name
    name = re.sub(r"[^a-z0-9_-]+", "-", last.lower()).strip("-_")[:64]
    if not NAME.fullmatch(name):
        raise UsageError(f"{text!r} gives no name to be served by; write one before it, as NAME={text}")
    return name, text
