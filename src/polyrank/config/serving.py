"""The settings of ``polyrank serve``: models, address, limits and feedback."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from polyrank.config.checked import Count, Limits, NonNegativeFloat, Positive, Settings, from_dict
from polyrank.config.names import Backend
from polyrank.config.tables import read_tables
from polyrank.errors import ConfigError, UsageError

NAME = re.compile(r"(?!.*:(query|candidate|latest)$)[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
UNIX = "unix:"  # before the path of a socket
Port = Annotated[int, Limits(least=0, most=65_535)]
MetadataBytes = Annotated[int, Limits(least=2, most=65_536)]  # the limit of an index


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings(Settings):
    """Limits of one request, and of all requests that wait.

    Args:
        body_bytes: size of a request.
        values: JSON values in a request: numbers, texts, lists, objects.
        items: texts in one request: documents, inputs, candidates.
        characters: length of one text.
        tokens: estimated number in all texts of a request.
        metadata_bytes: size of one candidate's metadata as JSON.
        turns: turns of one context.
        k: replies to one context.
        timeout_s: seconds until the server gives up a request that waits or computes. The server refuses a request at
            once if it expects to exceed this time.
        filter_timeout_s: seconds that a filter or a word search may scan the candidates.
        body_timeout_s: seconds that a client has to send a request.
        queue: requests that wait for the model.
        wait_s: seconds of work that may wait for the model before the server refuses requests; at most 16 requests may
            wait for longer, within ``timeout_s``. More accepts larger bursts; less keeps the delay after them short.
        connections: open at the same time.
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
    wait_s: Positive = 1.0
    connections: Count = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackSettings(Settings):
    """The record of suggestions and their outcomes.

    Args:
        file: a SQLite file; None: the server records nothing.
        keep_text: store the users' texts; if False, only ids and hashes.
        file_bytes: size at which the file is full.
        key_bytes: of entries with their texts that one key may cause in a day (UTC).
    """

    file: str | None = None
    keep_text: bool = False
    file_bytes: Count = 8 * 2**30
    key_bytes: Count = 256 * 2**20


HookKind = Literal["", "chatwoot", "zendesk", "intercom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings(Settings):
    """A help desk whose calls are answered by private notes with suggested replies.

    Args:
        kind: chatwoot, zendesk or intercom; empty: none.
        url: of the help desk, such as https://app.chatwoot.com.
        secret_file: a file with the secret with which it signs its calls.
        token_file: a file with the token that adds notes; for Zendesk, EMAIL/token:TOKEN.
        admin: for Intercom, the id of the teammate who writes the notes.
    """

    kind: HookKind = ""
    url: str = ""
    secret_file: str | None = None
    token_file: str | None = None
    admin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings(Settings):
    """The behaviour of a server.

    Args:
        host: the address to listen on; an address that other machines can reach requires keys. "unix:PATH": a socket.
        port: 0: any free port.
        api_key_file: a file with one key per line; None: every client that reaches the server has full access.
        device: for networks: auto, cpu, cuda or mps.
        backend: torch, or an export of the models: onnx, onnx-int8 or openvino.
        workers: processes that compute; each loads every model.
        threads: per worker; None: an equal share of the cores.
        drain_s: seconds after SIGTERM in which the server still accepts requests while ``/ready`` returns 503, so that
            a load balancer notices. Ctrl-C skips this time.
        page: serve a page at ``/``.
        prefix: the beginning of all paths, such as "/support", behind a proxy that does not remove it.
        cors_origins: origins of web pages elsewhere whose scripts may use the server, such as "https://desk.example";
            "*": all.
        unknown_fields: "report" or "refuse" unknown fields of requests in other services' formats.
        query_prefix: a text to embed that begins with it is a context, without the prefix, such as "query: "; for
            applications that send both sides alike. Empty: none.
        document_prefix: the same for candidates, such as "passage: ".
        limits, feedback, hook: see their classes.
    """

    host: str = "127.0.0.1"
    port: Port = 8600
    api_key_file: str | None = None
    device: str = "auto"
    backend: Backend = "torch"
    workers: Count = 1
    threads: Count | None = None
    drain_s: NonNegativeFloat = 1.0
    page: bool = True
    prefix: str = ""
    cors_origins: tuple[str, ...] = ()
    unknown_fields: Literal["report", "refuse"] = "report"
    query_prefix: str = ""
    document_prefix: str = ""
    limits: LimitSettings = field(default_factory=LimitSettings)
    feedback: FeedbackSettings = field(default_factory=FeedbackSettings)
    hook: HookSettings = field(default_factory=HookSettings)


def read_serving(
    file: Path | None, paths: Iterable[str] = (), changes: Mapping[str, Any] | None = None
) -> tuple[dict[str, str], ServingSettings]:
    """Read the paths to serve, by name, and the settings.

    Args:
        file: TOML, with a table ``[models]`` of names and paths; its paths are relative to its folder. None: no file.
        paths: further paths, as NAME=PATH, or as PATH, whose last part becomes the name.
        changes: settings that override the file's, by key.

    Raises:
        ConfigError: a key is unknown or a value invalid.
        UsageError: two paths have the same name, a name is invalid, or no path is given.
    """
    values: dict[str, Any] = {}
    models: dict[str, str] = {}
    if file is not None:
        values, folder = read_tables(
            file, paths=("api_key_file", "feedback.file", "hook.secret_file", "hook.token_file")
        )
        named = values.pop("models", {})
        if not isinstance(named, dict) or not all(isinstance(path, str) for path in named.values()):
            raise ConfigError('models is not a table of names and paths; write [models] and name = "path" below it')
        # relative to the config file, if it exists there; otherwise a name, as on the command line
        models = {checked_name(n): str(at) if (at := folder / path).exists() else path for n, path in named.items()}
    for path in paths:
        name, location = _named(path)
        if name in models:
            raise UsageError(f"{name} is already the name of {models[name]}; give another name, as OTHER={location}")
        models[name] = location
    if not models:
        raise UsageError("there is nothing to serve; give an index, a ranker or a model")
    settings = _changed(from_dict(ServingSettings, values), changes or {})
    if settings.feedback.keep_text and settings.feedback.file is None:
        raise ConfigError("`keep_text` needs a file; name one with `feedback`, or as feedback.file in the config file")
    needed = ("url", "secret_file", "token_file", *(["admin"] if settings.hook.kind == "intercom" else []))
    if settings.hook.kind and (missing := [name for name in needed if not getattr(settings.hook, name)]):
        raise ConfigError(f"the hook {settings.hook.kind} needs hook.{missing[0]}; set it in the config file")
    return models, settings


def checked_name(name: str) -> str:
    """Check the name of a served index, ranker or model.

    Raises:
        UsageError: the name is invalid.

    >>> checked_name("BAAI/bge-reranker-v2-m3")
    'BAAI/bge-reranker-v2-m3'
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a valid name; use 1 to 128 of A-Z, a-z, 0-9 and ._:/@+-, start with a letter or"
            " digit, and do not end in :query, :candidate or :latest"
        )
    return name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("unix:/run/polyrank.sock"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or host.startswith(UNIX) or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_reach(settings: ServingSettings) -> None:
    """Refuse an address that other machines can reach, unless the server has keys.

    Raises:
        UsageError: the address is not a loopback address, and no key file is set.
    """
    if not is_loopback(settings.host) and not settings.api_key_file:
        raise UsageError(
            f"{settings.host} can be reached by other machines; give a file of keys with `api_key_file`, or listen on"
            " 127.0.0.1"
        )


def _changed(settings: ServingSettings, changes: Mapping[str, Any]) -> ServingSettings:
    groups: dict[str, Any] = {}
    for group in ("feedback", "hook"):
        start = f"{group}_"
        some = {key.removeprefix(start): value for key, value in changes.items() if key.startswith(start)}
        groups[group] = replace(getattr(settings, group), **some)
    own = {key: value for key, value in changes.items() if not key.startswith(("feedback_", "hook_"))}
    return replace(settings, **own, **groups)


def _named(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if equals and path and "#" not in name and not Path(text).exists():  # after a "#" come options of a model
        return checked_name(name), path
    place = text.rstrip("/\\")
    last = re.split(r"[/:\\]", place)[-1] if place not in (".", "..") else Path(text).resolve().name
    name = re.sub(r"[^a-z0-9_-]+", "-", last.lower()).strip("-_")[:64]
    if not NAME.fullmatch(name):
        raise UsageError(f"no valid name can be derived from {text!r}; give one, as NAME={text}")
    return name, text
