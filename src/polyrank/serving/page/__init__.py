"""The web page at ``/``: static files with a content security policy that allows nothing from other sites."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

FOLDER = Path(__file__).parent / "files"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {"content-security-policy": POLICY, "cache-control": "no-cache"}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    """The page itself, whose files have relative addresses."""
    if not request.scope["raw_path"].endswith(b"/"):  # it is the prefix of a proxy
        return RedirectResponse(request.scope["raw_path"].rpartition(b"/")[2].decode("latin-1") + "/")
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


def _add(path: Path) -> None:
    """Add a route for one file, so that no other file is reachable."""

    async def file() -> FileResponse:
        return FileResponse(path, media_type=KINDS[path.suffix], headers=HEADERS)  # the system's type table may differ

    router.add_api_route(f"/page/{path.name}", file, methods=["GET"], include_in_schema=False)


for _path in sorted(FOLDER.glob("*")) if FOLDER.is_dir() else []:
    _add(_path)
