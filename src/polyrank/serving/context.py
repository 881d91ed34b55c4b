"""What routes share: the pool, the catalogues, the limits, and the one way to ask a model for something."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Request

from polyrank.config.serving import LimitSettings, ServingSettings
from polyrank.errors import UsageError
from polyrank.records import Candidate, Context
from polyrank.serving.catalogue import Catalogue
from polyrank.serving.errors import HttpError, shown
from polyrank.serving.feedback_log import FeedbackLog
from polyrank.serving.guard import SMALL_BODY
from polyrank.serving.jobs import OverloadedError
from polyrank.serving.keys import Keys
from polyrank.serving.metrics import Metrics
from polyrank.serving.pool import Computed, Pool
from polyrank.serving.tasks import Embedded, Scored, Task
from polyrank.storage.time_limit import TimeLimit, limit_searches

T = TypeVar("T")

log = logging.getLogger("polyrank.serving")

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_PART = 2_048  # of long lists, so that short requests come between
ANSWERS = ("index", "pipeline")
BLOCKING = 128  # requests that wait for the disk


@dataclass(slots=True)
class Server:
    """All that one server is made of.

    Args:
        settings: how it behaves.
        models: paths by name.
        pool: the processes that compute.
        metrics: what is counted.
        started: when, in seconds since 1970.
        keys: that open it.
        feedback: where it is kept how replies are taken; None: nowhere.
        draining: whether it is about to stop.
        catalogues: what is changed, by the index's folder, which several names may serve.
        threads: that wait for the disk.
        parsing: the one thread that parses and writes large bodies, one after the other.
    """

    settings: ServingSettings
    models: dict[str, str]
    pool: Pool
    metrics: Metrics
    started: int
    keys: Keys = field(default_factory=Keys)
    feedback: FeedbackLog | None = None
    draining: bool = False
    n_blocking: int = 0
    catalogues: dict[Path, Catalogue] = field(default_factory=dict)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "polyrank-disk"))
    parsing: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "polyrank-json"))

    @property
    def limits(self) -> LimitSettings:
        """Of requests."""
        return self.settings.limits

    async def reload(self) -> None:
        """Read the keys again and open everything anew; what cannot be read stays as it was."""
        if self.settings.api_key_file is not None:
            try:
                self.keys.replace(Keys.read(Path(self.settings.api_key_file)))
            except UsageError as error:
                log.error("the old keys stay: %s", error)
        await self.pool.reload()

    def name_of(self, asked: str | None, kinds: Sequence[str] = (), wanted: str = "that") -> str:
        """The name of what is to be asked.

        Args:
            asked: by the client; None: the first that can do it.
            kinds: what can do it; empty: everything.
            wanted: what cannot be had of the others.

        Raises:
            HttpError: nothing of that name is served, or it cannot do it, or nothing is ready yet.
        """
        if asked:
            self.check_name(asked)
        self.check_ready()
        if asked and kinds and self.pool.info[asked].kind not in kinds:
            raise HttpError(400, f"{asked} is no {' and no '.join(kinds)}, and has no {wanted}", param="model")
        for name in [asked] if asked else self.models:
            if name and (not kinds or self.pool.info[name].kind in kinds):
                return name
        raise HttpError(400, f"no {' and no '.join(kinds)} is served, and so there is no {wanted}", param="model")

    def check_name(self, name: str) -> None:
        """Refuse names by which nothing is served.

        Raises:
            HttpError: it is one of them.
        """
        if name not in self.models:
            known = ", ".join(self.models)
            raise HttpError(
                404, f"no model {shown(name)} is served; there are {known}", param="model", code="model_not_found"
            )

    def check_ready(self) -> None:
        """Refuse what cannot be computed yet.

        Raises:
            HttpError: no process is ready.
        """
        if not self.pool.ready and self.pool.failure is not None:
            raise HttpError(503, "the models cannot be opened at present; try again later", retry_after=5)
        if not self.pool.info:
            raise HttpError(503, "the models are being opened; try again in a moment", code="starting", retry_after=1)

    def check_texts(self, texts: Sequence[str], param: str) -> None:
        """Refuse texts that are too many or too long, and those that are none.

        Raises:
            HttpError: names the first.
        """
        if len(texts) > self.limits.items:
            raise HttpError(
                422, f"{param} holds {len(texts):,} texts, the limit is {self.limits.items:,}; send fewer", param=param
            )
        for position, text in enumerate(texts):
            if len(text) > self.limits.characters:
                raise HttpError(
                    422,
                    f"{param}[{position}] has {len(text):,} characters, the limit is {self.limits.characters:,}",
                    param=param,
                )
            if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise HttpError(
                        422, f"{param}[{position}] holds a lone surrogate; send UTF-8", param=param
                    ) from None

    def context(self, context: str | Sequence[str], background: Sequence[str]) -> Context:
        """A conversation, checked.

        Raises:
            HttpError: it is empty, has too many turns, or a bad one.
        """
        turns = [context] if isinstance(context, str) else list(context)
        if len(turns) + len(background) > self.limits.turns:
            raise HttpError(
                422,
                f"context has {len(turns):,} turns, the limit is {self.limits.turns:,}; send the last ones",
                param="context",
            )
        self.check_texts(turns, "context")
        self.check_texts(background, "background")
        try:
            return Context.of(turns, background)
        except UsageError as error:
            raise HttpError(422, str(error), param="context") from None

    def check_whole(self, name: str, values: Sequence[Scored | Embedded], param: str) -> None:
        """Refuse texts of which the model did not read everything.

        Raises:
            HttpError: there is one.
        """
        if any(value.cut for value in values):
            info = self.pool.info[name]
            raise HttpError(
                413,
                f"a text of {param} is longer than {name} reads ({info.max_context_tokens:,} tokens of a context,"
                f" {info.max_candidate_tokens:,} of a candidate); shorten it, or leave truncate out",
                param=param,
                code="too_long",
            )

    def check_cut(
        self, name: str, texts: Sequence[str], side: Literal["context", "candidate"], asked: int | None, param: str
    ) -> None:
        """Refuse a limit of tokens that cuts texts earlier than the model does; characters bound a text's tokens.

        Raises:
            HttpError: it does.
        """
        info, longest = self.pool.info[name], max(map(len, texts), default=0)
        most = (info.max_context_tokens if side == "context" else info.max_candidate_tokens) or longest
        if asked is not None and asked < min(most, longest):
            raise HttpError(422, f"{name} reads up to {most:,} tokens of a text; leave {param} out", param=param)

    def tokens(self, name: str, texts: Sequence[str], side: Literal["context", "candidate"]) -> int:
        """About how many tokens of texts a model reads."""
        info = self.pool.info[name]
        most = (info.max_context_tokens if side == "context" else info.max_candidate_tokens) or 512
        return sum(min(len(text) // CHARACTERS_PER_TOKEN + 3, most) for text in texts)

    async def compute(self, name: str, tasks: Sequence[Task[T]], tokens: Sequence[int]) -> Computed[T]:
        """See ``polyrank.serving.pool.Pool.compute``."""
        self.check_ready()
        if (n := sum(tokens)) > self.limits.tokens:
            raise HttpError(
                422,
                f"the texts have about {n:,} tokens, the limit is {self.limits.tokens:,}; send fewer",
                code="too_many",
            )
        return await self.pool.compute(name, tasks, tokens)

    async def blocking(self, work: Callable[..., T], *arguments: Any) -> T:
        """Something that waits for the disk, away from the event loop.

        Raises:
            OverloadedError: so much waits for it that nothing more is taken.
        """
        if self.n_blocking >= BLOCKING:
            raise OverloadedError(1.0)
        self.n_blocking += 1
        future = asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)
        future.add_done_callback(self._unblocked)
        return await asyncio.shield(future)  # a change that has begun is made, whether or not somebody waits

    async def searching(self, work: Callable[..., T], *arguments: Any) -> T:
        """Something that searches the disk for as long as ``limits.filter_timeout_s`` allows and its client waits.

        Raises:
            DeadlineError: it takes longer.
            OverloadedError: so much waits for the disk that nothing more is taken.
        """
        limit = TimeLimit(self.limits.filter_timeout_s)

        def searched() -> T:
            with limit_searches(limit):
                return work(*arguments)

        try:
            return await self.blocking(searched)
        except asyncio.CancelledError:
            limit.cancel()
            raise

    async def aside(self, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Something that takes as long as a body has bytes: here for a small one, else away from the event loop."""
        if size <= SMALL_BODY:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self.parsing, work, *arguments)

    def _unblocked(self, future: "asyncio.Future[Any]") -> None:
        self.n_blocking -= 1
        future.cancelled() or future.exception()  # which nobody may have waited for

    def catalogue(self, name: str) -> Catalogue:
        """The candidates of an index or a pipeline."""
        path = Path(self.pool.info[name].index or "").resolve()
        if path not in self.catalogues:
            self.catalogues[path] = Catalogue(path)
        return self.catalogues[path]

    async def candidate(self, name: str, id_: str) -> Candidate:
        """The candidate of an id.

        Raises:
            HttpError: there is none.
        """
        found: dict[str, Candidate] = await self.blocking(self.catalogue(name).read, lambda index: index.find([id_]))
        if id_ not in found:
            raise HttpError(404, "no candidate has this id", param="id", code="not_found")
        return found[id_]


async def server_of(request: Request) -> Server:
    """The server that a request came to. A coroutine, since FastAPI gives plain functions to threads."""
    server: Server = request.app.state.server
    return server


Here = Annotated[Server, Depends(server_of)]


def parts(texts: Sequence[str], tokens: Sequence[int]) -> list[slice]:
    """A list cut into parts of about TOKENS_PER_PART tokens.

    >>> parts(["a", "b", "c"], [2000, 100, 100])
    [slice(0, 1, None), slice(1, 3, None)]
    """
    cut, start, total = [], 0, 0
    for position, n in enumerate(tokens):
        if total and total + n > TOKENS_PER_PART:
            cut.append(slice(start, position))
            start, total = position, 0
        total += n
    return [*cut, slice(start, len(texts))]
