"""``/hooks/DESK``: a help desk's call about a message, which is answered by a private note with suggested replies."""

import json
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request as Sent, build_opener

import orjson
from fastapi import APIRouter, Request

from polyrank.config.serving import HookSettings
from polyrank.errors import UsageError
from polyrank.serving.context import CurrentServer, Server
from polyrank.serving.desks import DESKS, Note, message_of
from polyrank.serving.errors import HttpError
from polyrank.serving.tasks import RespondTask

N_SUGGESTED = 3
TIMEOUT_S = 10.0  # for the help desk to accept a note


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, which would send the token to another address."""

    def redirect_request(self, *_: Any) -> None:
        """No request follows."""


def hook_router(settings: HookSettings) -> APIRouter:
    """The route of a help desk.

    Raises:
        UsageError: the file of its secret or token cannot be read, or is empty.
    """
    router = APIRouter(tags=["hooks"])
    desk = DESKS[settings.kind]
    secret, token = read_secret(settings.secret_file or ""), read_secret(settings.token_file or "")

    @router.post(f"/hooks/{settings.kind}", summary=f"A call of {settings.kind.title()}")
    async def receive(request: Request, server: CurrentServer) -> dict[str, bool]:
        """Adds a private note with the best replies to a customer's message; the call must be signed."""
        body = await request.body()
        if not desk.admits(secret, dict(request.headers), body, time.time()):
            raise HttpError(401, f"the call is not signed with the secret of {settings.kind}", code="invalid_signature")
        try:
            asked = message_of(desk, body)
        except ValueError as error:
            raise HttpError(422, f"this is not a call of {settings.kind}: {error}", code="invalid_value") from error
        texts = [] if asked is None else await _suggested(server, asked.turns)
        if asked is None or not texts:
            return {"noted": False}
        shown = "\n".join(["Suggested replies:", *(f"{number}. {text}" for number, text in enumerate(texts, 1))])
        await server.run_blocking(_send, settings.url, desk.note(asked, shown, token, settings))
        return {"noted": True}

    return router


async def _suggested(server: Server, turns: tuple[str, ...]) -> list[str]:
    """The best replies that differ; none if none is good enough."""
    name = server.resolve_name(None, "replies")
    task = RespondTask(server.context(turns, ()), N_SUGGESTED, diverse=True)
    (responded,) = (await server.compute(name, [task], [server.tokens(name, turns, "context")])).values
    return [] if responded.answer.abstained else [orjson.loads(row)["text"] for row in responded.rows]


def _send(url: str, note: Note) -> None:
    """Add a note.

    Raises:
        HttpError: the help desk cannot be reached or refuses it.
    """
    headers = {"content-type": "application/json", note.authorization[0]: note.authorization[1]}
    data = json.dumps(note.body).encode()
    sent = Sent(url.rstrip("/") + note.path, data, headers, method=note.method)  # the operator's URL
    try:
        with build_opener(_NoRedirects).open(sent, timeout=TIMEOUT_S) as answer:
            answer.read()
    except (OSError, HTTPException) as error:  # a refusal is an OSError too
        reason = f"status {error.code}" if isinstance(error, HTTPError) else type(error).__name__
        raise HttpError(502, f"the help desk did not accept the note ({reason}); check url and token_file") from error


def read_secret(file: str) -> str:
    """The content of a file of a secret.

    Raises:
        UsageError: the file cannot be read, or is empty.
    """
    try:
        text = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read ({error}); write the help desk's secret or token into it") from error
    if not text:
        raise UsageError(f"{file} is empty; write the help desk's secret or token into it")
    return text
