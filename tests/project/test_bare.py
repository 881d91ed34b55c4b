"""``.ci/bare``: hides the machine's state from a command, and detects leftovers of the command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BARE = Path(__file__).parents[2] / ".ci" / "bare"
NAMESPACE = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--mount-proc", "true"]


def may_hide() -> bool:
    """Whether this process may create namespaces."""
    return shutil.which("unshare") is not None and subprocess.run(NAMESPACE, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.deep,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or not may_hide(), reason="needs root on Linux to create namespaces"),
]


def bare(script: str, at: Path = BARE, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [str(at), "bash", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **variables})


def test_the_machines_state_is_hidden(tmp_path: Path) -> None:
    """A bogus setting, and leftovers like those of Ray and the Hub, in the home and in the temporary folder."""
    home = tmp_path / "home"
    for folder in (".cache/huggingface/hub", ".config/polyrank"):
        (home / folder).mkdir(parents=True)
    ray = tmp_path / "ray" / "ray_current_cluster"
    ray.parent.mkdir()
    ray.write_text("203.0.113.1:6379")
    poison = {"HOME": str(home), "HF_HOME": "/poison", "RAY_ADDRESS": "203.0.113.1:6379", "POLYRANK_PRECISION": "fp7"}
    kept = {"PYENV_ROOT": os.environ.get("PYENV_ROOT", "/none"), "PIP_CERT": "/certificates"}
    seen = bare(f"ls -A ~ /tmp /var/tmp /dev/shm; ls {ray}; env", TMPDIR=str(tmp_path), **poison, **kept)
    assert seen.returncode == 0, seen.stderr
    listed, variables = seen.stdout.split("/var/tmp:")[0], seen.stdout
    assert not any(name in listed.split() for name in (".cache", ".config", "ray")), listed
    assert "No such file" in seen.stderr
    assert not any(name in variables for name in ("HF_HOME", "RAY_ADDRESS", "POLYRANK_", "TMPDIR"))
    assert "PIP_CERT=/certificates" in variables
    assert f"HOME={home}" in variables


def test_a_bogus_setting_does_not_affect_the_command(tmp_path: Path) -> None:
    ranks = f"echo hi | {sys.executable} -m polyrank rank shipped:convert hello --json"
    poison = {"POLYRANK_PRECISION": "fp7"}
    assert subprocess.run(["bash", "-c", ranks], capture_output=True, env={**os.environ, **poison}).returncode == 2
    ranked = bare(ranks, **poison)
    assert ranked.returncode == 0, ranked.stderr
    assert '"text": "hi"' in ranked.stdout


def test_a_checkout_in_a_temporary_folder_stays_with_shared_data(tmp_path: Path) -> None:
    at = tmp_path / "clone" / ".ci" / "bare"
    at.parent.mkdir(parents=True)
    shutil.copy(BARE, at)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "data").write_text("shared")
    seen = bare("pwd; cat ../shared/data; touch made; ls .. /tmp", at)
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout.startswith(f"{at.parents[1].resolve()}\nshared")
    assert (tmp_path / "clone" / "made").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clone", "shared"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("setsid sleep 86399 & disown", "sleep 86399"),
        ("setsid bash -c 'exec -a polyrank-left sleep 86398' </dev/null & disown", "polyrank-left 86398"),
        ("python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/left\")'", "socket /tmp/left"),
        ("touch /dev/shm/left", "shared memory /dev/shm/left"),
        ("mkdir /tmp/ray-left", "temporary /tmp/ray-left"),
        ("mktemp -d --tmpdir=/var/tmp tmpXXX", "temporary /var/tmp/tmp"),
    ],
)
def test_leftovers_make_it_fail(script: str, words: str) -> None:
    ended = bare(script)
    assert ended.returncode == 1, ended.stderr
    assert words in ended.stderr


def test_the_exit_code_comes_from_the_command() -> None:
    assert bare("exit 7").returncode == 7
    assert bare("mkdir ~/made; rm -r ~/made").returncode == 0
