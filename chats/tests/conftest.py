"""Shared fixtures."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("few", max_examples=50, deadline=None)
settings.register_profile("deep", max_examples=400, deadline=None)
settings.load_profile("few")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], Path]:
    """Write text, bytes or JSON to a file in the test's folder."""

    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        held = content if isinstance(content, bytes | str) else json.dumps(content)
        path.write_bytes(held.encode() if isinstance(held, str) else held)
        return path

    return write


@pytest.fixture
def run() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run ``polyrank-chats ARGUMENTS`` in a new process."""

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "polyrank_chats", *map(str, arguments)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8")

    return run
