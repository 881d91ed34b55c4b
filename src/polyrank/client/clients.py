"""A blocking client and one for asyncio. Both retry when the server is busy or cannot be reached.

Each request is written once, in ``Client``: it is the same in ``AsyncClient``, which sends it in another way.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from polyrank.errors import DataError, OfflineError, UsageError, needs

with needs("httpx", "client"):
    import httpx

from polyrank.answering.answers import Answer
from polyrank.client import calls
from polyrank.client.calls import Call, Page, ServedModel, given
from polyrank.config.serving import UNIX
from polyrank.data.pool import CandidateLike
from polyrank.feedback.records import Action
from polyrank.records import Candidate, ContextLike
from polyrank.scorers.explanation import Explanation
from polyrank.storage import forks
from polyrank.storage.closing import Closing

T = TypeVar("T")
P = ParamSpec("P")
PAGE = 200  # candidates per page of a catalogue
MAX_PAUSE_S = 10.0  # between two attempts, unless the server requests a longer pause and timeout_s allows it
MAX_TIMEOUT_S = 1e9  # sockets refuse much longer ones
RETRIED = {429, 503}


def _request(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    try:
        return http.build_request(call.method, call.path, json=call.body)
    except UnicodeEncodeError as error:
        raise calls.not_unicode(error) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"a value cannot be sent as JSON ({error}); use texts, finite numbers, lists and dicts"
        ) from error


def _content(response: httpx.Response) -> Any:
    """The JSON of an answer, or its text if it is not JSON."""
    try:
        return response.json()
    except ValueError:
        return response.text


def _did_nothing(outcome: httpx.Response | httpx.TransportError) -> bool:
    """Whether a request did not arrive, or was refused before any work. "offline" may follow a part of a change."""
    if isinstance(outcome, httpx.TransportError):
        return isinstance(outcome, httpx.ConnectError)
    return outcome.status_code in RETRIED and calls.error_code(_content(outcome)) != "offline"


def _retry_after(response: httpx.Response) -> float:
    """The pause in seconds that a server requests, as a number or as a date; 0 if it requests none."""
    text = response.headers.get("retry-after", "")
    try:
        return float(text) if text.isdecimal() else (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):  # an invalid date, or one without a time zone
        return 0.0


class _Connection:
    """The settings and the retry policy of both clients; see ``Client`` for the arguments."""

    _kind: type[httpx.Client | httpx.AsyncClient]
    _wire: type[httpx.HTTPTransport | httpx.AsyncHTTPTransport]
    _http: Any

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 60.0, retries: int = 4) -> None:
        url, _, printed = url.partition("#key=")  # the address that a server without keys prints
        api_key = printed or None if api_key is None else api_key
        self._socket = url.removeprefix(UNIX) if url.startswith(UNIX) else ""
        if not (self._socket or url.startswith(("http://", "https://"))):
            raise UsageError(
                f"url = {url!r} does not start with http://, https:// or unix:; give a URL such as"
                " http://127.0.0.1:8600, or unix:PATH of a socket"
            )
        if retries < 0:
            raise UsageError(f"retries = {retries} is negative; give 0 or more")
        if api_key is not None and api_key.split() != [api_key]:  # not quoted, because it is a secret
            raise UsageError("api_key is empty, or contains a space or a line break; give one key, or None")
        if not (isinstance(timeout_s, int | float) and 0 < timeout_s <= MAX_TIMEOUT_S):
            raise UsageError(f"timeout_s = {timeout_s!r} is outside 0 to {MAX_TIMEOUT_S:g}; give a number above 0")
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise UsageError(
                f"url = {url!r} is not valid ({error}); give a URL such as http://127.0.0.1:8600"
            ) from error
        self.url, self.retries = url.rstrip("/"), retries
        self._most_s = max(timeout_s, MAX_PAUSE_S)
        headers = {} if api_key is None else {b"authorization": f"Bearer {api_key}".encode()}
        timeout = httpx.Timeout(timeout_s, pool=None)  # requests that wait for a free connection are not late
        self._settings: dict[str, Any] = {"timeout": timeout, "headers": headers}
        self._http = self._connect()
        forks.watch(self)

    def _connect(self) -> Any:
        """New connections."""
        wire: Any = self._wire(uds=self._socket) if self._socket else None
        return self._kind(base_url="http://localhost" if self._socket else self.url, transport=wire, **self._settings)

    def after_fork(self) -> None:
        """In a child process: leave the connections, and the answers on them, to the parent; open others."""
        forks.abandon(self._http)
        self._http = self._connect()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _read(self, call: Call[T], response: httpx.Response) -> T:
        """The result of a call, or the exception for an error answer."""
        content = _content(response)
        if response.next_request is not None:
            target = str(response.next_request.url).removesuffix(call.path)
            raise UsageError(f"{self.url} redirects to {target}; give that URL to the client")
        if response.is_success:
            try:
                return call.read(content)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                message = f"{self.url} answers, but not as a polyrank server of this version; check the URL"
                raise UsageError(message) from error
        if call.missing is not None and response.status_code == 404 and calls.error_code(content) == "not_found":
            return call.missing()
        raise calls.error_of(response.status_code, content)

    def _pause(self, attempt: int, outcome: httpx.Response | httpx.TransportError) -> float | None:
        """Seconds until the next attempt; None: do not retry."""
        if attempt >= self.retries or not _did_nothing(outcome):
            return None
        if isinstance(outcome, httpx.Response) and (wanted := _retry_after(outcome)) > 0:
            return min(wanted, self._most_s)
        return min(0.25 * 2.0**attempt, MAX_PAUSE_S)

    def _lost(self, error: httpx.TransportError) -> OfflineError:
        return OfflineError(
            f"{self.url} does not answer ({str(error) or type(error).__name__}); check that it is running"
        )


class Client(_Connection, Closing):
    """A client for a polyrank server. Close it, or use it in a ``with``. It is thread-safe.

    Args:
        url: of the server, such as "http://127.0.0.1:8600", or "unix:PATH" of its socket; the address that it prints
            contains the key for changes.
        api_key: a key from the server's key file.
        timeout_s: seconds to wait for the server in each step: to connect, to send, and to receive.
        retries: how often to repeat a request that a busy server refused or that did not reach the server. The client
            first waits as long as the server requests (``Retry-After``), but at most ``timeout_s``, or 10 seconds if
            that is longer.

    Raises:
        UsageError: an argument is invalid, or the key is not authorized.
        DataError: the server refuses a value; the message names the field.
        LockedError, ResourceError, ArtifactError: as for an index opened locally; ResourceError also if the server is
            too busy.
        OfflineError: the server does not answer.
    """

    _kind, _wire = httpx.Client, httpx.HTTPTransport
    _http: httpx.Client

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
        any_language: bool = False,
    ) -> Answer:
        """Get the best replies to a context.

        Args:
            context: one turn, or turns, oldest first.
            k: the number of replies.
            model: the name of an index; None: the first on the server.
            filter: a condition on metadata, such as ``lang = "en"``.
            conversation: an id that groups requests for feedback.
            allow_echo: also return replies that repeat a turn of the context word for word.
            diverse: return replies that differ; fewer than ``k`` if the others are near-copies.
            any_language: also return replies in other languages than the context's.
        """
        if k < 1:
            raise UsageError(f"k is {k}; request at least one reply")
        body = calls.context_fields(context) | {"k": k} | given(model=model, filter=filter, conversation=conversation)
        body |= given(allow_echo=allow_echo or None, diverse=diverse or None, any_language=any_language or None)
        return self._send(Call("POST", "/v1/respond", calls.read_answer, body))

    def explain(
        self,
        context: ContextLike,
        *,
        text: str | None = None,
        candidate_id: str | None = None,
        model: str | None = None,
        filter: str | None = None,
    ) -> Explanation:
        """Explain the score of a reply, given by its text or its id."""
        if (text is None) == (candidate_id is None):
            raise UsageError(f"text = {text!r} and candidate_id = {candidate_id!r}; give exactly one of the two")
        body = calls.context_fields(context) | given(text=text, id=candidate_id, model=model, filter=filter)
        return self._send(Call("POST", "/v1/explain", Explanation.from_dict, body))

    def score(self, context: ContextLike, candidates: Sequence[str], *, model: str | None = None) -> list[float]:
        """Raw scores of the candidates, in their order; higher is better."""
        body = calls.context_fields(context) | given(model=model)
        body["candidates"] = calls.listed(candidates, "candidates")
        return self._send(Call("POST", "/v1/score", lambda answer: list(map(float, answer["scores"])), body))

    def add(
        self,
        candidates: Iterable[CandidateLike],
        *,
        replace: bool = False,
        previous: Iterable[CandidateLike] = (),
        model: str | None = None,
    ) -> list[str]:
        """Add all candidates or, on an error, none; returns their ids. See ``polyrank.Replies.add``.

        Args:
            candidates: to add.
            replace: whether candidates with the same ids are replaced.
            previous: candidates as ``candidate`` returned them.
            model: name of the index.

        Raises:
            DataError: a candidate is invalid, or one of ``previous`` was changed or removed since; nothing is added.
        """
        body = {"candidates": calls.candidate_rows(candidates), "replace": replace}
        body |= given(previous=calls.candidate_rows(previous) or None, model=model)
        return self._send(Call("POST", "/v1/candidates", lambda answer: list(answer["ids"]), body))

    def remove(self, ids: Sequence[str] | None = None, *, filter: str | None = None, model: str | None = None) -> int:
        """Remove candidates by id, or those that match a filter; returns how many were in the catalogue."""
        body = given(ids=None if ids is None else calls.listed(ids, "ids"), filter=filter, model=model)
        return self._send(Call("POST", "/v1/candidates/remove", lambda answer: int(answer["removed"]), body))

    def candidate(self, candidate_id: str, *, model: str | None = None) -> Candidate | None:
        """The candidate with an id, or None."""
        name = calls.quoted(candidate_id)
        if name in (".", ".."):  # paths lose these
            name = name.replace(".", "%2E")
        path = calls.with_query(f"/v1/candidates/{name}", model=model)
        return self._send(Call("GET", path, calls.read_candidate, missing=lambda: None))

    def candidates(
        self, words: str = "", *, filter: str | None = None, model: str | None = None
    ) -> Iterator[Candidate]:
        """All candidates, or those that contain the words and pass the filter, in the order of addition."""
        after: str | None = None
        while True:
            page = self._page(words, filter, model, after)
            yield from page.candidates
            if (after := page.next) is None:
                return

    def feedback(
        self, answer: Answer | str, action: Action, *, candidate_id: str | None = None, final_text: str | None = None
    ) -> bool:
        """Report the outcome of an answer; returns whether the server did not know it yet.

        Args:
            answer: the result of ``respond``, or its ``request_id``.
            action: "taken", "edited" or "refused".
            candidate_id: the reply that was taken or edited.
            final_text: the text that was sent instead, if the reply was edited or refused.
        """
        request_id = answer if isinstance(answer, str) else answer.request_id
        if not request_id:
            raise UsageError(
                "the answer has no request_id because it does not come from a server; give one from respond"
            )
        body = {"request_id": request_id, "action": action} | given(candidate_id=candidate_id, final_text=final_text)
        return self._send(Call("POST", "/v1/feedback", lambda answer: bool(answer["recorded"]), body))

    def report(self) -> dict[str, Any]:
        """Acceptance rates, see ``polyrank.feedback.report``."""
        return self._send(Call("GET", "/v1/feedback/report", dict))

    def models(self) -> list[ServedModel]:
        """The indexes, rankers and models of the server; requests without a model go to the first."""
        return self._send(Call("GET", "/v1/models", calls.read_models))

    def _page(self, words: str, filter: str | None, model: str | None, after: str | None) -> Page:
        query = {"q": words or None, "filter": filter, "model": model, "after": after, "limit": str(PAGE)}
        return self._send(Call("GET", calls.with_query("/v1/candidates", **query), calls.read_page))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        request = _request(self._http, call)
        for attempt in range(self.retries + 1):
            try:
                response = self._http.send(request)
            except httpx.TransportError as error:
                if (pause := self._pause(attempt, error)) is None:
                    raise self._lost(error) from error
            else:
                if (pause := self._pause(attempt, response)) is None:
                    return self._read(call, response)
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


def awaited(
    method: Callable[Concatenate[Client, P], T],
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    """A method of ``Client`` for an ``AsyncClient``, whose ``_send`` returns a coroutine: so does the method."""
    return cast("Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]", method)


class AsyncClient(_Connection):
    """A ``Client`` for asyncio: await each call, iterate with ``async for``, close with ``async with``.

    Args:
        url, api_key, timeout_s, retries: as for ``Client``.

    Raises:
        PolyrankError: as for ``Client``.
    """

    _kind, _wire = httpx.AsyncClient, httpx.AsyncHTTPTransport
    _http: httpx.AsyncClient
    _loop: asyncio.AbstractEventLoop | None = None

    respond = awaited(Client.respond)
    explain = awaited(Client.explain)
    score = awaited(Client.score)
    add = awaited(Client.add)
    remove = awaited(Client.remove)
    candidate = awaited(Client.candidate)
    feedback = awaited(Client.feedback)
    report = awaited(Client.report)
    models = awaited(Client.models)
    _page = awaited(Client._page)

    async def candidates(
        self, words: str = "", *, filter: str | None = None, model: str | None = None
    ) -> AsyncIterator[Candidate]:
        """See ``Client.candidates``."""
        after: str | None = None
        while True:
            page = await self._page(words, filter, model, after)
            for candidate in page.candidates:
                yield candidate
            if (after := page.next) is None:
                return

    async def aclose(self) -> None:
        """Close the connections; those of an event loop that has ended were closed with it."""
        if self._loop is asyncio.get_running_loop():
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _send(self, call: Call[T]) -> T:
        if self._loop is not (loop := asyncio.get_running_loop()):  # connections belong to a loop
            if self._loop is not None:
                self._http = cast("httpx.AsyncClient", self._connect())
            self._loop = loop
        request = _request(self._http, call)
        for attempt in range(self.retries + 1):
            try:
                response = await self._http.send(request)
            except httpx.TransportError as error:
                if (pause := self._pause(attempt, error)) is None:
                    raise self._lost(error) from error
            else:
                if (pause := self._pause(attempt, response)) is None:
                    return self._read(call, response)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")
