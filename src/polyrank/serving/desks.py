"""Help desks that call when a message arrives: how each signs its calls, where the message is, and what a note is.

This module knows no server; ``polyrank.serving.routes.hooks`` answers the calls.
"""

import base64
import hashlib
import hmac
import html
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import quote

from polyrank.config.serving import HookSettings

MAX_AGE_S = 300.0  # of a signed call, so that a recorded one cannot be sent again later
TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True, slots=True)
class Asked:
    """A customer's message.

    Args:
        place: ids of the conversation, as the note's address needs them.
        turns: of the conversation, as far as the call has them, oldest first.
    """

    place: tuple[str, ...]
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A request that adds a note which customers do not see.

    Args:
        method, path: of the request, below the help desk's URL.
        authorization: name and value of the header with the token.
        body: as JSON.
    """

    method: str
    path: str
    authorization: tuple[str, str]
    body: Mapping[str, Any]


class Desk(ABC):
    """A help desk."""

    signature: ClassVar[str]
    """The header with the signature."""

    time: ClassVar[str] = ""
    """The header with the time that is signed; empty: none is."""

    @abstractmethod
    def sign(self, secret: bytes, time: str, body: bytes) -> str:
        """The signature of a call."""

    @abstractmethod
    def asked(self, call: Any) -> Asked | None:
        """The customer's message in a call; None: it is about something else, such as an agent's reply.

        Raises:
            LookupError, TypeError: the call has another form.
        """

    @abstractmethod
    def note(self, asked: Asked, text: str, token: str, settings: HookSettings) -> Note:
        """The note of a conversation."""

    def admits(self, secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
        """Whether the help desk signed a call within the last minutes."""
        stamp = headers.get(self.time, "")
        wanted = self.sign(secret.encode(), stamp, body)
        if not hmac.compare_digest(wanted.encode(), headers.get(self.signature, "").encode()):
            return False
        return not self.time or abs(_seconds(stamp) - now) <= MAX_AGE_S


class Chatwoot(Desk):
    """https://www.chatwoot.com/docs/product/features/webhooks."""

    signature, time = "x-chatwoot-signature", "x-chatwoot-timestamp"

    def sign(self, secret: bytes, time: str, body: bytes) -> str:
        return "sha256=" + hmac.new(secret, time.encode() + b"." + body, hashlib.sha256).hexdigest()

    def asked(self, call: Any) -> Asked | None:
        if call["event"] != "message_created" or call["message_type"] != "incoming" or call.get("private"):
            return None
        place = str(call["account"]["id"]), str(call["conversation"]["id"])
        return _asked(place, call["content"])

    def note(self, asked: Asked, text: str, token: str, settings: HookSettings) -> Note:
        path = "/api/v1/accounts/{}/conversations/{}/messages".format(*map(_part, asked.place))
        body = {"content": text, "message_type": "outgoing", "private": True}
        return Note("POST", path, ("api_access_token", token), body)


class Zendesk(Desk):
    """https://developer.zendesk.com/api-reference/webhooks/event-types/ticket-events/."""

    signature, time = "x-zendesk-webhook-signature", "x-zendesk-webhook-signature-timestamp"

    def sign(self, secret: bytes, time: str, body: bytes) -> str:
        return base64.b64encode(hmac.new(secret, time.encode() + body, hashlib.sha256).digest()).decode()

    def asked(self, call: Any) -> Asked | None:
        if call["type"] != "zen:event-type:ticket.comment_added":
            return None
        comment = call["event"]["comment"]
        if comment["author"]["is_staff"] or not comment["is_public"]:
            return None
        return _asked((str(call["detail"]["id"]),), comment["body"])

    def note(self, asked: Asked, text: str, token: str, settings: HookSettings) -> Note:
        basic = f"Basic {base64.b64encode(token.encode()).decode()}"  # EMAIL/token:TOKEN
        path = f"/api/v2/tickets/{_part(asked.place[0])}.json"
        body = {"ticket": {"comment": {"body": text, "public": False}}}
        return Note("PUT", path, ("authorization", basic if ":" in token else f"Bearer {token}"), body)


class Intercom(Desk):
    """https://developers.intercom.com/docs/webhooks/webhook-models."""

    signature = "x-hub-signature"

    def sign(self, secret: bytes, time: str, body: bytes) -> str:
        return "sha1=" + hmac.new(secret, body, hashlib.sha1).hexdigest()

    def asked(self, call: Any) -> Asked | None:
        if call["topic"] not in ("conversation.user.created", "conversation.user.replied"):
            return None
        item = call["data"]["item"]
        parts = [item["source"], *item["conversation_parts"]["conversation_parts"]]
        if parts[-1]["author"]["type"] not in ("user", "lead", "contact"):
            return None
        return _asked((str(item["id"]),), *(html.unescape(TAG.sub(" ", part["body"] or "")) for part in parts))

    def note(self, asked: Asked, text: str, token: str, settings: HookSettings) -> Note:
        shown = html.escape(text).replace("\n", "<br>")
        body = {"message_type": "note", "type": "admin", "admin_id": settings.admin, "body": shown}
        return Note("POST", f"/conversations/{_part(asked.place[0])}/reply", ("authorization", f"Bearer {token}"), body)


DESKS: dict[str, Desk] = {"chatwoot": Chatwoot(), "zendesk": Zendesk(), "intercom": Intercom()}


def message_of(desk: Desk, body: bytes) -> Asked | None:
    """The customer's message in the body of a call; None: there is none.

    Raises:
        ValueError: the body has another form than the help desk's calls.
    """
    try:
        return desk.asked(json.loads(body))
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the call lacks {error}") from error


def _asked(place: tuple[str, ...], *turns: str | None) -> Asked | None:
    """A message; None if the last turn has no text, as one that is only a picture."""
    if not (turns and turns[-1] and turns[-1].strip()):
        return None
    return Asked(place, tuple(turn.strip() for turn in turns if turn and turn.strip()))


def _part(text: str) -> str:
    """An id as a part of a path."""
    return quote(text, safe="")


def _seconds(stamp: str) -> float:
    """A time, in seconds or as in ISO 8601, in seconds since 1970; infinitely late if it is none."""
    try:
        return float(stamp) if stamp.isdecimal() else datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return float("inf")
