"""Clients that send calls: one that blocks, one for asyncio. Both ask again where the server says so."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

try:
    import httpx
except ImportError as error:
    from polyrank.errors import MissingExtraError

    raise MissingExtraError("httpx", "client") from error

from polyrank.answering.explanation import Explanation
from polyrank.answering.protocol import Answer
from polyrank.client import calls
from polyrank.client.calls import Action, Call, ServedModel
from polyrank.data.pool import CandidateLike
from polyrank.errors import OfflineError, UsageError
from polyrank.records import Candidate, ContextLike
from polyrank.storage.closing import Closing

T = TypeVar("T")
PAGE = 200  # candidates of one page of a catalogue
LONGEST_S = 10.0  # between two tries, unless the server names a longer time
AGAIN = {429, 503}  # refused before any work was done


class _Settings:
    """What both clients know.

    Args:
        url: of the server, such as "http://127.0.0.1:8600".
        api_key: one of the server's key file.
        timeout_s: until a request counts as lost.
        retries: how often a request is sent again that the server refused for lack of time, or that did not reach it.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 60.0, retries: int = 4) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"url = {url!r} has no http:// or https://; give one such as http://127.0.0.1:8600")
        if retries < 0:
            raise UsageError(f"retries = {retries} is less than 0; give 0 or more")
        self.url, self.retries = url.rstrip("/"), retries
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}".encode()}
        self._settings: dict[str, Any] = {"base_url": self.url, "timeout": timeout_s, "headers": headers}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _read(self, call: Call[T], response: httpx.Response) -> T:
        """What an answer is for the caller; or the error that it tells of."""
        try:
            content = response.json()
        except ValueError:
            content = response.text
        if response.is_success:
            return call.read(content)
        if call.missing is not None and response.status_code == 404 and calls.code_of(content) == "not_found":
            return call.missing()
        raise calls.error_of(response.status_code, content)

    def _pause(self, attempt: int, response: httpx.Response | None) -> float | None:
        """Seconds until the request is worth another try; None: it is not."""
        if attempt >= self.retries or (response is not None and response.status_code not in AGAIN):
            return None
        seconds = "" if response is None else response.headers.get("retry-after", "")
        return float(seconds) if seconds.isdigit() else min(0.25 * 2.0**attempt, LONGEST_S)

    def _lost(self, error: httpx.TransportError) -> OfflineError:
        return OfflineError(f"{self.url} does not answer ({error or type(error).__name__}); see whether it is running")


class Client(_Settings, Closing):
    """A polyrank server. Close it, or use it in a ``with``; any thread may use it.

    Args:
        url: of the server, such as "http://127.0.0.1:8600".
        api_key: one of the server's key file.
        timeout_s: until a request counts as lost.
        retries: how often a request is sent again that the server refused for lack of time, or that did not reach it.

    Raises:
        UsageError: a wrong argument, or a key without the right to do it.
        DataError: the server refuses a value, and names its field.
        LockedError, ResourceError, ArtifactError: as where an index is opened in this process; ResourceError also
            where the server has too much to do.
        OfflineError: the server does not answer.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 60.0, retries: int = 4) -> None:
        super().__init__(url, api_key=api_key, timeout_s=timeout_s, retries=retries)
        self._http = httpx.Client(**self._settings)

    def respond(
        self,
        context: ContextLike,
        k: int = 5,
        *,
        model: str | None = None,
        filter: str | None = None,
        conversation: str | None = None,
        allow_echo: bool = False,
        diverse: bool = False,
    ) -> Answer:
        """The best replies to a context.

        Args:
            context: one turn, or turns, oldest first.
            k: how many.
            model: an index or a pipeline by its name; None: the first that is served.
            filter: a condition on metadata, such as ``lang = "en"``.
            conversation: whose requests belong together, for feedback.
            allow_echo: also give what the context already contains, in the same words.
            diverse: replies that differ; fewer where the others are near-copies.
        """
        return self._send(
            calls.respond(
                context,
                k,
                model=model,
                filter=filter,
                conversation=conversation,
                allow_echo=allow_echo,
                diverse=diverse,
            )
        )

    def explain(
        self,
        context: ContextLike,
        *,
        text: str | None = None,
        candidate_id: str | None = None,
        model: str | None = None,
        filter: str | None = None,
    ) -> Explanation:
        """Why a reply, by its text or its id, has its score."""
        return self._send(calls.explain(context, text=text, candidate_id=candidate_id, model=model, filter=filter))

    def score(self, context: ContextLike, candidates: Sequence[str], *, model: str | None = None) -> list[float]:
        """Raw scores of texts, in their order; higher is better."""
        return self._send(calls.score(context, candidates, model=model))

    def add(self, candidates: Iterable[CandidateLike], *, replace: bool = False, model: str | None = None) -> list[str]:
        """Add candidates, all or none, durably; their ids. See ``polyrank.Pipeline.add``."""
        return self._send(calls.add(candidates, replace=replace, model=model))

    def remove(self, ids: Sequence[str], *, model: str | None = None) -> int:
        """Remove candidates, durably; how many were there."""
        return self._send(calls.remove(ids, model=model))

    def candidate(self, candidate_id: str, *, model: str | None = None) -> Candidate | None:
        """A candidate by its id; None where there is none."""
        return self._send(calls.candidate(candidate_id, model=model))

    def candidates(
        self, words: str = "", *, filter: str | None = None, model: str | None = None
    ) -> Iterator[Candidate]:
        """All candidates, or those with these words and metadata, in the order in which they were added."""
        after: str | None = None
        while True:
            page = self._send(calls.candidates(words, filter=filter, model=model, after=after, limit=PAGE))
            yield from page.candidates
            if (after := page.next) is None:
                return

    def feedback(
        self,
        answer: Answer | str,
        action: Action,
        *,
        candidate_id: str | None = None,
        final_text: str | None = None,
    ) -> bool:
        """Report what became of an answer; whether this is new.

        Args:
            answer: of ``respond``, or its ``request_id``.
            action: "taken", "edited" or "refused".
            candidate_id: the reply that was taken or edited.
            final_text: what was sent in the end, where it was edited or refused.
        """
        return self._send(calls.feedback(answer, action, candidate_id=candidate_id, final_text=final_text))

    def report(self) -> dict[str, Any]:
        """How suggestions are used, see ``polyrank.feedback.report``."""
        return self._send(calls.report())

    def models(self) -> list[ServedModel]:
        """What is served; the first answers requests that name no model."""
        return self._send(calls.models())

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        for attempt in range(self.retries + 1):
            try:
                response = self._http.request(call.method, call.path, json=call.body)
            except httpx.ConnectError as error:
                if (pause := self._pause(attempt, None)) is None:
                    raise self._lost(error) from error
            except httpx.TransportError as error:
                raise self._lost(error) from error
            else:
                if (pause := self._pause(attempt, response)) is None:
                    return self._read(call, response)
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")


class AsyncClient(_Settings):
    """As ``Client``, for asyncio: await each call, iterate with ``async for``, close by ``async with``.

    Args:
        url, api_key, timeout_s, retries: as for ``Client``.

    Raises:
        PolyrankError: as for ``Client``.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 60.0, retries: int = 4) -> None:
        super().__init__(url, api_key=api_key, timeout_s=timeout_s, retries=retries)
        self._http = httpx.AsyncClient(**self._settings)

    async def respond(
        self,
        context: ContextLike,
        k: int = 5,
        *,
        model: str | None = None,
        filter: str | None = None,
        conversation: str | None = None,
        allow_echo: bool = False,
        diverse: bool = False,
    ) -> Answer:
        """See ``Client.respond``."""
        return await self._send(
            calls.respond(
                context,
                k,
                model=model,
                filter=filter,
                conversation=conversation,
                allow_echo=allow_echo,
                diverse=diverse,
            )
        )

    async def explain(
        self,
        context: ContextLike,
        *,
        text: str | None = None,
        candidate_id: str | None = None,
        model: str | None = None,
        filter: str | None = None,
    ) -> Explanation:
        """See ``Client.explain``."""
        return await self._send(
            calls.explain(context, text=text, candidate_id=candidate_id, model=model, filter=filter)
        )

    async def score(self, context: ContextLike, candidates: Sequence[str], *, model: str | None = None) -> list[float]:
        """See ``Client.score``."""
        return await self._send(calls.score(context, candidates, model=model))

    async def add(
        self, candidates: Iterable[CandidateLike], *, replace: bool = False, model: str | None = None
    ) -> list[str]:
        """See ``Client.add``."""
        return await self._send(calls.add(candidates, replace=replace, model=model))

    async def remove(self, ids: Sequence[str], *, model: str | None = None) -> int:
        """See ``Client.remove``."""
        return await self._send(calls.remove(ids, model=model))

    async def candidate(self, candidate_id: str, *, model: str | None = None) -> Candidate | None:
        """See ``Client.candidate``."""
        return await self._send(calls.candidate(candidate_id, model=model))

    async def candidates(
        self, words: str = "", *, filter: str | None = None, model: str | None = None
    ) -> AsyncIterator[Candidate]:
        """See ``Client.candidates``."""
        after: str | None = None
        while True:
            page = await self._send(calls.candidates(words, filter=filter, model=model, after=after, limit=PAGE))
            for candidate in page.candidates:
                yield candidate
            if (after := page.next) is None:
                return

    async def feedback(
        self,
        answer: Answer | str,
        action: Action,
        *,
        candidate_id: str | None = None,
        final_text: str | None = None,
    ) -> bool:
        """See ``Client.feedback``."""
        return await self._send(calls.feedback(answer, action, candidate_id=candidate_id, final_text=final_text))

    async def report(self) -> dict[str, Any]:
        """See ``Client.report``."""
        return await self._send(calls.report())

    async def models(self) -> list[ServedModel]:
        """See ``Client.models``."""
        return await self._send(calls.models())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _send(self, call: Call[T]) -> T:
        for attempt in range(self.retries + 1):
            try:
                response = await self._http.request(call.method, call.path, json=call.body)
            except httpx.ConnectError as error:
                if (pause := self._pause(attempt, None)) is None:
                    raise self._lost(error) from error
            except httpx.TransportError as error:
                raise self._lost(error) from error
            else:
                if (pause := self._pause(attempt, response)) is None:
                    return self._read(call, response)
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")
