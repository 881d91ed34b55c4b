"""Help desks: their calls, signed as they sign them, lead to private notes with suggested replies."""

import base64
import hashlib
import hmac
import html
import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="polyrank[serve] is not installed")

import polyrank
from polyrank.config.serving import HookSettings, ServingSettings, read_serving
from polyrank.errors import ConfigError, UsageError
from polyrank.ranking.abstention import Abstention
from polyrank.scorers.ranker import as_ranker
from polyrank.serving.desks import DESKS, MAX_AGE_S, message_of
from polyrank.serving.routes.hooks import read_secret
from serving_here import serving_here

CALLS = Path(__file__).parent / "hooks"
REPLIES = ["restart the router", "pay the bill", "the light is red", "hello hi", "thanks"]
REPLIES += [text.capitalize() for text in REPLIES]  # a note has one of two near-copies
UNKNOWN = ["hello, anybody there?", "zzz"]
SECRET, TOKENS = "s3cret", {"chatwoot": "token", "zendesk": "ada@example.org/token:token", "intercom": "token"}
BASIC = base64.b64encode(TOKENS["zendesk"].encode()).decode()
# the request that adds a note: method, path, header with the token
NOTES = {
    "chatwoot": ("POST", "/api/v1/accounts/3/conversations/128/messages", ("api_access_token", "token")),
    "zendesk": ("PUT", "/api/v2/tickets/5158.json", ("authorization", f"Basic {BASIC}")),
    "intercom": ("POST", "/conversations/215469650000123/reply", ("authorization", "Bearer token")),
}


@dataclass
class Desk:
    """A help desk that accepts notes; it answers with ``status``."""

    url: str = ""
    status: int = 200
    requests: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    desk = Desk()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            desk.requests.append((self.command, self.path, headers, body))
            self.send_response(desk.status)
            self.send_header("location", desk.url)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_PUT(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    desk.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield desk
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def index(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hooks")
    ranker = as_ranker(polyrank.load(f"untuned:{tiny_backbone}"))
    good, bad = (ranker.rank(turns, REPLIES, 1)[0].score for turns in (["my wifi is down"], UNKNOWN))
    talk = ranker.rank(["hello, anybody there?", "my wifi is down"], REPLIES, 1)[0].score
    assert bad < min(good, talk)
    ranker.abstention = Abstention("score", (bad + min(good, talk)) / 2)
    ranker.save(folder / "ranker")
    polyrank.build_index(folder / "index", polyrank.load(folder / "ranker"), REPLIES)
    return folder / "index"


def signed(kind: str, body: bytes, secret: str = SECRET, age: float = 0.0) -> dict[str, str]:
    """The headers of a call, computed as each help desk documents it."""
    key, now = secret.encode(), time.time() - age
    if kind == "chatwoot":
        digest = hmac.new(key, f"{int(now)}.".encode() + body, hashlib.sha256).hexdigest()
        return {"X-Chatwoot-Timestamp": str(int(now)), "X-Chatwoot-Signature": f"sha256={digest}"}
    if kind == "zendesk":
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        digest = base64.b64encode(hmac.new(key, stamp.encode() + body, hashlib.sha256).digest()).decode()
        return {"X-Zendesk-Webhook-Signature-Timestamp": stamp, "X-Zendesk-Webhook-Signature": digest}
    return {"X-Hub-Signature": "sha1=" + hmac.new(key, body, hashlib.sha1).hexdigest()}


def text_of(kind: str, body: Any) -> str:
    """The text of a note, which must be private."""
    match kind, body:
        case "chatwoot", {"private": True, "message_type": "outgoing", "content": text}:
            return str(text)
        case "zendesk", {"ticket": {"comment": {"public": False, "body": text}}}:
            return str(text)
        case "intercom", {"message_type": "note", "type": "admin", "admin_id": "814860", "body": text}:
            return html.unescape(str(text).replace("<br>", "\n"))
    raise AssertionError(body)


def test_a_call_of_another_form_is_not_one_of_its_help_desk() -> None:
    call = json.loads((CALLS / "chatwoot.json").read_bytes())
    for content in (3, ["hi"], {"text": "hi"}):
        with pytest.raises(ValueError, match=r"^the call lacks "):
            message_of(DESKS["chatwoot"], json.dumps(call | {"content": content}).encode())


@pytest.mark.parametrize("kind", NOTES)
def test_calls_and_notes_have_the_forms_of_their_help_desk(kind: str) -> None:
    body, desk = (CALLS / f"{kind}.json").read_bytes(), DESKS[kind]
    headers = {name.lower(): value for name, value in signed(kind, body).items()}
    assert desk.admits(SECRET, headers, body, time.time())
    assert not desk.admits(SECRET, headers, body + b" ", time.time())
    assert not desk.admits(SECRET, {}, body, time.time())
    asked = message_of(desk, body)
    assert asked is not None
    assert asked.turns[-1] == "my wifi is down"
    settings = HookSettings(kind=kind, admin="814860")  # type: ignore[arg-type]  # one of the kinds
    note = desk.note(asked, "1 < 2\n3", TOKENS[kind], settings)
    assert (note.method, note.path, note.authorization) == NOTES[kind]
    assert text_of(kind, note.body) == "1 < 2\n3"
    assert all(message_of(desk, json.dumps(other).encode()) is None for other in others(kind, json.loads(body)))
    if desk.time:  # clocks differ in both directions
        for age, admitted in (
            (MAX_AGE_S - 9, True),
            (9 - MAX_AGE_S, True),
            (MAX_AGE_S + 9, False),
            (-MAX_AGE_S - 9, False),
        ):
            headers = {name.lower(): value for name, value in signed(kind, body, age=age).items()}
            assert desk.admits(SECRET, headers, body, time.time()) is admitted, age
        assert not desk.admits(SECRET, headers | {desk.time: "soon"}, body, time.time())
    hostile = replace(asked, place=tuple("../x?" for _ in asked.place))
    assert ".." not in desk.note(hostile, "a", "t", settings).path.replace("..%2Fx%3F", "")


def test_a_call_of_intercom_has_all_turns() -> None:
    call = json.loads((CALLS / "intercom.json").read_bytes())
    item = call["data"]["item"]
    (last,) = item["conversation_parts"]["conversation_parts"]
    bodies = ["<p>which router?</p>", None, " ", "the <b>red</b> one &amp; <br>old"]
    kinds = ["admin", "bot", "admin"]
    for kind in ("user", "lead", "contact"):
        parts = [
            last | {"body": body, "author": {"type": one}} for body, one in zip(bodies, [*kinds, kind], strict=True)
        ]
        changed = item | {"conversation_parts": {"conversation_parts": parts}}
        asked = message_of(DESKS["intercom"], json.dumps(call | {"data": {"item": changed}}).encode())
        assert asked is not None
        assert [" ".join(turn.split()) for turn in asked.turns] == [
            "hello, anybody there?", "which router?", "the red one & old"
        ]  # fmt: skip
    changed = item | {"source": item["source"] | {"body": None}, "conversation_parts": {"conversation_parts": [last]}}
    for topic in ("conversation.user.created", "conversation.user.replied"):
        asked = message_of(DESKS["intercom"], json.dumps(call | {"topic": topic, "data": {"item": changed}}).encode())
        assert asked is not None
        assert asked.turns == ("my wifi is down",)
    changed = item | {"conversation_parts": {"conversation_parts": []}}  # a new conversation
    asked = message_of(DESKS["intercom"], json.dumps(call | {"data": {"item": changed}}).encode())
    assert asked is not None
    assert asked.turns == ("hello, anybody there?",)
    note = DESKS["zendesk"].note(replace(asked, place=("7",)), "a", "token of an app", HookSettings())
    assert note.authorization == ("authorization", "Bearer token of an app")


@pytest.mark.parametrize("kind", NOTES)
def test_a_message_leads_to_a_private_note(kind: str, desk: Desk, index: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n", "utf-8")
    (tmp_path / "token").write_text(TOKENS[kind], "utf-8")
    (tmp_path / "keys").write_text("a-key-of-the-server\n", "utf-8")
    (tmp_path / "serve.toml").write_text(
        f'api_key_file = "keys"\n[hook]\nurl = "{desk.url}/"\nsecret_file = "secret"\ntoken_file = "token"\n'
        'admin = "814860"\n', "utf-8",
    )  # fmt: skip
    body = (CALLS / f"{kind}.json").read_bytes()
    call = json.loads(body)
    with polyrank.open(index) as replies:
        turns = ["hello, anybody there?", "my wifi is down"] if kind == "intercom" else ["my wifi is down"]
        best, alike = ([one.text for one in replies.answer(turns, 3, diverse=some).ranked] for some in (True, False))
        assert best != alike
    desk.requests.clear()
    served = serving_here(index, config=tmp_path / "serve.toml", hook_kind=kind)
    with served as running, running.client() as client:

        def send(body: bytes, headers: dict[str, str]) -> Any:
            typed = {"content-type": "application/json", "x-forwarded-for": "1.2.3.4", **headers}
            return client.post(f"/hooks/{kind}", content=body, headers=typed)

        seconds = math.inf
        while seconds > 1 and len(desk.requests) < 5:  # other processes may use the cores during one call
            started = time.perf_counter()
            answer = send(body, signed(kind, body))
            seconds = time.perf_counter() - started
            assert (answer.status_code, answer.json()) == (200, {"noted": True})
        assert seconds < 1
        n_notes = len(desk.requests)
        method, path, headers, note = desk.requests[0]
        name, value = NOTES[kind][2]
        assert (method, path, headers[name]) == (*NOTES[kind][:2], value)
        expected = "\n".join(["Suggested replies:", *(f"{n}. {text}" for n, text in enumerate(best, 1))])
        assert text_of(kind, note) == expected
        assert "my wifi" not in "".join(running.lines)

        for headers in ({}, signed(kind, body, "other"), signed(kind, b"{}"), signed(kind, body, age=600)):
            if headers == signed(kind, body):  # Intercom signs no time
                continue
            refused = send(body, headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_signature")
        assert client.post("/v1/respond", json={"context": "hi"}).status_code == 401  # other routes need a key

        for other in others(kind, call):
            changed = json.dumps(other).encode()
            assert send(changed, signed(kind, changed)).json() == {"noted": False}
        assert send(b"[]", signed(kind, b"[]")).status_code == 422
        assert len(desk.requests) == n_notes
        for status in (302, 401):  # a redirect would take the token elsewhere
            desk.status = status
            refused = send(body, signed(kind, body))
            assert refused.status_code == 502
            assert f"did not accept the note (status {status}); check url" in refused.text
        desk.status = 200
        unknown = body.replace(b"my wifi is down", UNKNOWN[-1].encode())
        assert send(unknown, signed(kind, unknown)).json() == {"noted": False}  # no reply is good enough
        assert len(desk.requests) == n_notes + 2


def others(kind: str, call: dict[str, Any]) -> list[Any]:
    """Calls that are not a customer's message with a text."""
    if kind == "chatwoot":
        changes: list[dict[str, Any]] = [{"message_type": "outgoing"}, {"private": True}, {"content": None}]
        return [call | change for change in [*changes, {"event": "conversation_opened"}]]
    if kind == "zendesk":
        comment = call["event"]["comment"]
        written = [{"author": {"is_staff": True}}, {"is_public": False}, {"body": " "}]
        return [*(call | {"event": {"comment": comment | one}} for one in written), call | {"type": "zen:event-type:x"}]
    item = call["data"]["item"]
    (part,) = item["conversation_parts"]["conversation_parts"]
    written = [{"author": {"type": "admin"}}, {"body": None}]
    parts = [item | {"conversation_parts": {"conversation_parts": [part | one]}} for one in written]
    return [*(call | {"data": {"item": one}} for one in parts), call | {"topic": "contact.created"}]


def test_a_hook_needs_its_settings(tmp_path: Path) -> None:
    whole = {"hook_url": "u", "hook_secret_file": "s", "hook_token_file": "t"}
    for kind, missing in (("chatwoot", "url"), ("zendesk", "secret_file"), ("intercom", "token_file")):
        some = {key: value for key, value in whole.items() if key != f"hook_{missing}"}
        with pytest.raises(ConfigError, match=f"the hook {kind} needs hook.{missing}; set it in the config file"):
            read_serving(None, ["bm25"], some | {"hook_kind": kind})
    with pytest.raises(ConfigError, match=r"needs hook\.admin"):
        read_serving(None, ["bm25"], whole | {"hook_kind": "intercom"})
    with pytest.raises(ConfigError, match="kind"):
        read_serving(None, ["bm25"], whole | {"hook_kind": "freshdesk"})
    settings = read_serving(None, ["bm25"], whole | {"hook_kind": "zendesk"})[1]
    assert settings.hook == replace(HookSettings(), kind="zendesk", url="u", secret_file="s", token_file="t")
    assert ServingSettings().hook.kind == ""
    (tmp_path / "empty").write_text("\n", "utf-8")
    for file, problem in (("empty", "is empty"), ("none", "cannot be read")):
        with pytest.raises(UsageError, match=f"{problem}.*write the help desk's secret or token into it"):
            read_secret(str(tmp_path / file))
