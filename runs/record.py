"""Stores results of runs: one file of JSON lines per experiment, one line per result.

python runs/record.py NAME [FILE]     store the JSON of FILE (.jsonl: a list of its lines) or of standard input as NAME
python runs/record.py --has NAME      exit with 1 if NAME has no result
python runs/record.py --show NAME     print the result of NAME

A name is a path: "best/star/bi" is a line of runs/results/best.jsonl. Storing a result replaces its line. Paths are
stored relative to the repository, with the commit of the code, marked "+" if the code has changes. RESULTS=folder uses
another folder.
"""

import fcntl
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(os.environ.get("RESULTS") or ROOT / "runs/results")
CODE = ("src", "models", "kernels", "chats", "cluster")


def read(name: str) -> Any:
    """The result called ``name``."""
    return _lines(_path(name))[name]["result"]


def has(name: str) -> bool:
    """Whether a result called ``name`` exists."""
    return name in _lines(_path(name))


def write(name: str, result: Any) -> None:
    """Store a result in place of an earlier one of that name; several processes may do so at the same time."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        path = _path(name)
        _lines.cache_clear()
        lines = _lines(path) | {name: {"name": name, "commit": commit(), "result": result}}
        part = path.with_suffix(".part")
        part.write_text("".join(json.dumps(lines[key], ensure_ascii=False) + "\n" for key in sorted(lines)), "utf-8")
        part.replace(path)
        _lines.cache_clear()
    finally:
        os.close(folder)


def parse(text: str, *, lines: bool) -> Any:
    """A JSON value, or with ``lines`` a list of one per line, with paths relative to the repository."""
    text = text.replace(f"{RESULTS.absolute().parents[1]}/", "")
    return [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)


def _path(name: str) -> Path:
    return RESULTS / f"{name.partition('/')[0]}.jsonl"


@cache
def _lines(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {line["name"]: line for line in map(json.loads, lines)}


def commit() -> str:
    """The commit of the code, with "+" if files of the code differ from it; empty outside a repository."""
    head = _git("rev-parse", "--short=10", "HEAD")
    return head and head + "+" * bool(_git("status", "--porcelain", "--untracked-files=no", "--", *CODE))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main(words: list[str]) -> int:
    match words:
        case ["--has", name]:
            return 0 if has(name) else 1
        case ["--show", name]:
            print(json.dumps(read(name), ensure_ascii=False))
        case [name]:
            write(name, parse(sys.stdin.read(), lines=False))
        case [name, file]:
            write(name, parse(Path(file).read_text("utf-8"), lines=file.endswith(".jsonl")))
        case _:
            raise SystemExit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
