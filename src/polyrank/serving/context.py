"""The server object that routes share: the pool, the catalogues, the limits, and methods that compute and check."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Request

from polyrank.config.serving import LimitSettings, ServingSettings
from polyrank.errors import UsageError
from polyrank.index.filters import Filter, as_filter, joined
from polyrank.records import Candidate, Context, as_tuple
from polyrank.serving.catalogue import Catalogue, are_within
from polyrank.serving.errors import HttpError, shown
from polyrank.serving.feedback_log import FeedbackLog
from polyrank.serving.guard import SMALL_BODY
from polyrank.serving.jobs import WaitingThreads
from polyrank.serving.keys import Keys, file_stamp
from polyrank.serving.log import log
from polyrank.serving.metrics import Metrics
from polyrank.serving.pool import Computed, Pool
from polyrank.serving.strict import refuse_size
from polyrank.serving.tasks import Embedded, ScoredTexts, ServedInfo, Task
from polyrank.storage.time_limit import TimeLimit, limit_searches

T = TypeVar("T")
OfTexts = TypeVar("OfTexts", ScoredTexts, Embedded)


READ_IN_CHUNKS = 3  # times that a text is read if it is split: in overlapping runs, and by sentences
CHARACTERS_PER_TOKEN = 4
CHARACTERS_READ = 200  # take as long to split into tokens as a model needs for one token
TOKENS_PER_PART = 2_048  # of long lists, so that short requests can run between the parts
MAX_BLOCKING = 128  # requests that wait for the disk
MAX_SEARCHING = 32  # requests that wait for a search of the catalogue or of feedback
SUITS: dict[str, Callable[[ServedInfo], bool]] = {
    "": lambda info: True,
    "replies": lambda info: info.index is not None,
    "candidates": lambda info: info.index is not None,
    "scores": lambda info: info.reranks,
    "vectors": lambda info: info.dimension is not None,
}


@dataclass(slots=True)
class Server:
    """All parts of a server.

    Args:
        settings: of the server.
        models: paths by name.
        pool: the model processes.
        metrics: for Prometheus.
        started: start time in seconds since 1970.
        keys: API keys.
        keys_stamp: of the file of keys when it was last read.
        feedback: records shown replies and outcomes; None: no feedback is kept.
        draining: whether the server is about to stop.
        catalogues: by the index's folder, which several names may share.
        threads: for work that waits for the disk.
        searching: for searches of the disk, which may take seconds each, and must not delay changes.
        parsing: the single thread that parses and writes large bodies.
    """

    settings: ServingSettings
    models: dict[str, str]
    pool: Pool
    metrics: Metrics
    started: int
    keys: Keys = field(default_factory=Keys)
    feedback: FeedbackLog | None = None
    draining: bool = False
    keys_stamp: tuple[int, ...] = ()
    catalogues: dict[Path, Catalogue] = field(default_factory=dict)
    threads: WaitingThreads = field(default_factory=lambda: WaitingThreads(4, "polyrank-disk", MAX_BLOCKING))
    searching: WaitingThreads = field(default_factory=lambda: WaitingThreads(4, "polyrank-search", MAX_SEARCHING))
    parsing: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "polyrank-json"))

    @property
    def limits(self) -> LimitSettings:
        """Limits on requests."""
        return self.settings.limits

    def read_keys(self) -> None:
        """Read the keys again; if they cannot be read, the old ones stay."""
        if self.settings.api_key_file is not None:
            self.keys_stamp = file_stamp(self.settings.api_key_file)  # before reading: a later change is noticed
            try:
                self.keys.replace(Keys.read(Path(self.settings.api_key_file)))
                log.info("the keys were read again")
            except UsageError as error:
                log.error("keeping the old keys: %s", error)

    def resolve_name(self, requested: str | None, needs: str) -> str:
        """The name of the model, ranker or index that a request is for.

        Args:
            requested: by the client; None: the first that is suitable.
            needs: "replies" or "candidates", which only indexes have; "scores" or "vectors": the first that re-ranks,
                or that has vectors, otherwise the first; empty: anything is suitable.

        Raises:
            HttpError: nothing of that name is served, it is not suitable, or nothing is ready yet.
        """
        if requested:
            # ":latest" is an addition of Ollama's clients
            requested = requested if requested in self.models else requested.removesuffix(":latest")
            self.check_name(requested)
        self.check_ready()
        names = [requested] if requested else list(self.models)
        suitable = [name for name in names if SUITS[needs](self.pool.info[name])]
        if suitable or needs in ("scores", "vectors"):
            return [*suitable, *names][0]
        problem = f"{requested} is a model and has" if requested else "no index is served, so there are"
        raise HttpError(400, f"{problem} no {needs}; use an index", param="model")

    def serves(self, name: str) -> bool:
        """Whether this is the name of a model, or that of a side of one."""
        return name in self.models or name.rpartition(":")[0] in self.models

    def check_name(self, name: str) -> None:
        """Refuse an unknown name.

        Raises:
            HttpError: nothing of that name is served.
        """
        if name not in self.models:
            names = ", ".join(self.models)
            raise HttpError(
                404, f"model {shown(name)} is not served; use one of {names}", param="model", code="model_not_found"
            )

    def check_ready(self) -> None:
        """Refuse requests that cannot be computed yet.

        Raises:
            HttpError: no process is ready.
        """
        if not self.pool.ready and self.pool.failure is not None:
            raise HttpError(503, "the models cannot be opened at present; try again later", retry_after=5)
        if not self.pool.info:
            raise HttpError(503, "the models are being opened; try again in a moment", code="starting", retry_after=1)

    def context(self, context: str | Sequence[str], background: Sequence[str]) -> Context:
        """Check a conversation and make a Context of it.

        Raises:
            HttpError: it is empty, has too many turns, or one that is too long.
        """
        turns = as_tuple(context, "context")
        if (n := len(turns) + len(background)) > self.limits.turns:
            refuse_size("context", n, "turns and background texts", self.limits.turns, "the last ones")
        for position, turn in enumerate(turns):  # a turn may consist of several parts of a message
            if len(turn) > self.limits.characters:
                refuse_size(f"context[{position}]", len(turn), "characters", self.limits.characters, "a shorter text")
        try:
            return Context.of(turns, background)
        except UsageError as error:
            raise HttpError(422, str(error), param="context") from None

    def check_whole(
        self, name: str, values: Sequence[ScoredTexts | Embedded], param: str, most: int | None = None
    ) -> None:
        """Refuse texts that the model truncated, or of which the request permits only the first ``most`` tokens.

        Raises:
            HttpError: a text was truncated.
        """
        if any(value.cut for value in values):
            info, own = self.pool.info[name], f", or the {most:,} tokens of the request" if most else ""
            raise HttpError(
                413,
                f"a text of {param} exceeds the limit of {name} ({info.max_context_tokens:,} tokens for a context,"
                f" {info.max_candidate_tokens:,} for a candidate){own}; shorten it, or omit truncate",
                param=param,
                code="too_long",
            )

    def tokens(self, name: str, texts: Sequence[str], side: Literal["context", "candidate", "document"]) -> int:
        """Estimated number of tokens of texts, after truncation, and what it costs to read what is truncated.

        Documents are read to their end, in chunks.
        """
        info = self.pool.info[name]
        most = (info.max_context_tokens if side == "context" else info.max_candidate_tokens) or 512
        counts = [len(text) // CHARACTERS_PER_TOKEN + 3 for text in texts]
        read = sum(min(n, most) if n <= most or side != "document" else READ_IN_CHUNKS * n for n in counts)
        return read + sum(map(len, texts)) // CHARACTERS_READ

    async def compute(self, name: str, tasks: Sequence[Task[T]], tokens: Sequence[int]) -> Computed[T]:
        """Compute the parts of a request, see ``polyrank.serving.pool.Pool.compute``."""
        self.check_ready()
        if (n := sum(tokens)) > self.limits.tokens:
            message = f"the texts have about {n:,} tokens, the limit is {self.limits.tokens:,}; send fewer"
            raise HttpError(422, message, code="too_many")
        return await self.pool.compute(name, tasks, tokens)

    async def compute_texts(
        self, name: str, texts: Sequence[T], tokens: Sequence[int], task: Callable[[Sequence[T]], Task[OfTexts]]
    ) -> list[OfTexts]:
        """Compute a task for each part of a list of texts, all by one model; ``tokens`` has the estimate for each text.

        One process computes all texts if their scores depend on each other, or if the parts were computed while
        another model replaced this one.
        """
        whole = [slice(0, len(texts))]
        parts = whole if self.pool.info[name].by_list else split_by_tokens(tokens)
        for tried in (parts, whole):
            tasks = [task(texts[part]) for part in tried]
            values = (await self.compute(name, tasks, [sum(tokens[part]) for part in tried])).values
            if len({value.fingerprint for value in values}) <= 1:
                break
        return values

    async def run_blocking(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function that waits for the disk, in a thread.

        Raises:
            OverloadedError: too many calls wait already.
        """
        # a change that has begun is completed even if the client leaves
        return await asyncio.shield(self.threads.call(work, *arguments))

    async def run_search(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function that searches the disk, for at most ``limits.filter_timeout_s`` and while the client waits.

        Raises:
            DeadlineError: it takes longer.
            OverloadedError: too many calls wait for the disk already.
        """
        limit = TimeLimit(self.limits.filter_timeout_s)

        def searched() -> T:
            with limit_searches(limit):
                return work(*arguments)

        try:
            return await self.searching.call(searched)
        except asyncio.CancelledError:
            limit.cancel()
            raise

    async def off_loop(self, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function whose duration grows with a body's size: in a thread, unless the body is small."""
        if size <= SMALL_BODY:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self.parsing, work, *arguments)

    def catalogue(self, name: str) -> Catalogue:
        """The candidates of an index."""
        path = Path(self.pool.info[name].index or "").resolve()
        if path not in self.catalogues:
            self.catalogues[path] = Catalogue(path)
        return self.catalogues[path]

    async def candidate(self, name: str, id_: str, within: Filter | None) -> Candidate:
        """The candidate with this id, among those that pass a filter.

        Raises:
            HttpError: the index has no such candidate.
        """
        read = self.catalogue(name).read
        candidates: dict[str, Candidate] = await self.run_blocking(read, lambda index: index.find([id_]))
        if not are_within(within, candidates.values()) or id_ not in candidates:
            raise HttpError(404, "no candidate has this id", param="id", code="not_found")
        return candidates[id_]


def filter_of(request: Request, filter: str | None = None) -> Filter | None:
    """A request's filter, among the candidates that its key may see."""
    bound: Filter | None = request.scope["state"].get("filter")
    return joined(bound, as_filter(filter))


async def get_server(request: Request) -> Server:
    """The server that received a request. A coroutine, because FastAPI calls plain functions in threads."""
    server: Server = request.app.state.server
    return server


CurrentServer = Annotated[Server, Depends(get_server)]


def split_by_tokens(tokens: Sequence[int]) -> list[slice]:
    """Split a list into parts of about TOKENS_PER_PART tokens.

    >>> split_by_tokens([2000, 100, 100])
    [slice(0, 1, None), slice(1, 3, None)]
    """
    cut, start, total = [], 0, 0
    for position, n in enumerate(tokens):
        if total and total + n > TOKENS_PER_PART:
            cut.append(slice(start, position))
            start, total = position, 0
        total += n
    return [*cut, slice(start, len(tokens))]
