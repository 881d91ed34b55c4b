"""A local Hugging Face Hub: it creates models, accepts files in commits, and serves them by revision."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_local"


class Hub(ThreadingHTTPServer):
    """Every commit of every model, in memory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.private: dict[str, bool] = {}
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}  # by model: (revision, files), oldest first

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def files(self, model: str, revision: str = "main") -> tuple[str, dict[str, bytes]] | None:
        commits = self.commits.get(model, [])
        return next((each for each in reversed(commits) if revision in ("main", each[0])), None)


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer(401)
        if self.path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            model = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            self.server.private.setdefault(model, wanted.get("private") or wanted.get("visibility") == "private")
            return self.json({"url": f"{self.server.url}/{model}"})
        if match := re.fullmatch(r"/api/models/(.+/.+)/preupload/main", self.path):
            return self.json(
                {
                    "files": [
                        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in json.loads(body)["files"]
                    ]
                }
            )
        if match := re.fullmatch(r"/api/models/(.+/.+)/commit/main", self.path):
            model, (_, before) = match[1], self.server.files(match[1]) or ("", {})
            lines = [json.loads(line) for line in body.splitlines()]
            files = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            gone = {line["value"]["path"] for line in lines if line["key"] == "deletedFile"}
            whole = {name: data for name, data in before.items() if name not in gone} | files
            revision = hashlib.sha1(body, usedforsecurity=False).hexdigest()
            self.server.commits.setdefault(model, []).append((revision, whole))
            url = f"{self.server.url}/{model}/commit/{revision}"
            return self.json({"success": True, "commitOid": revision, "commitUrl": url})
        return self.answer(404)

    def do_GET(self) -> None:
        if match := re.fullmatch(r"/api/models/(.+/.+)/(revision|tree)/([^?]*).*", self.path):
            if (known := self.server.files(match[1], match[3])) is None:
                return self.missing(match[1])
            revision, files = known
            if match[2] == "tree":
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in files.items()
                ]
                return self.json(tree)
            return self.json({"id": match[1], "sha": revision, "siblings": [{"rfilename": name} for name in files]})
        if match := re.fullmatch(r"/(.+/.+)/resolve/([^/]+)/(.+)", self.path):
            revision, files = self.server.files(match[1], match[2]) or ("", {})
            if match[3] not in files:
                return self.answer(404, X_Error_Code="EntryNotFound")
            data = files[match[3]]
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            return self.answer(200, data, ETag=etag, X_Repo_Commit=revision)
        return self.missing(self.path)

    do_HEAD = do_GET  # noqa: N815  # a name that http.server requires

    def missing(self, what: str) -> None:
        """A model whose owner is called "gated" is only for signed-in users."""
        code = "RevisionNotFound" if what in self.server.commits else "RepoNotFound"
        if what.startswith("gated/"):
            return self.answer(403, X_Error_Code="GatedRepo")
        return self.answer(404, X_Error_Code=code, X_Error_Message=f"{what} not found")


@contextmanager
def local_hub() -> Iterator[Hub]:
    """A running hub."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
