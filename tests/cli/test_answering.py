"""How the command line parses lines of stdin, and how a command ends when its input or output fails."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyrank.answering.opening import scorer_of_index
from polyrank.cli.answering import context_of_line, print_row
from polyrank.cli.console import check_plot_path
from polyrank.cli.ranking import _query_of_line
from polyrank.errors import ArtifactError, UsageError
from polyrank.index import open_index, write_index
from polyrank.index.local.ann import read_kind
from polyrank.records import Candidate, Context
from polyrank.scorers.open import load_encoder
from polyrank.storage.durable import new_folder, write_file
from processes import run


def stderr_line(found: "subprocess.CompletedProcess[str]") -> str:
    """The one line on stderr."""
    (line,) = found.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("line", "context"),
    [
        ("[laughs] hello", Context(("[laughs] hello",))),
        ("{smiles} yes", Context(("{smiles} yes",))),
        ('["a", "b"]', Context(("a", "b"))),
        ('{"context": "hi"}', Context(("hi",))),
        ('{"context": ["hi"], "background": ["i like tea", "me too"]}', Context(("hi",), ("i like tea", "me too"))),
        ('{"context": [""], "background": "i like tea", "response": "x"}', Context(("",), ("i like tea",))),
        ('[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]', Context(("hi",))),
        ('{"context": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null}]}', Context(("hi",))),
    ],
)
def test_a_line_is_text_turns_or_a_row(line: str, context: Context) -> None:
    assert context_of_line(line) == context


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('["broken"', "broken JSON"),
        ("[5]", "holds a number at position 0"),
        ('[""]', "the context is empty"),
        ('[{"content": "hi"}]', "is not a message; give it a role"),
        ("[NaN]", "NaN is not JSON"),
        ('["\\ud800"]', "lone surrogate"),
        ('{"context": ["a"], "background": 5}', '"background" holds a number'),
        ('{"background": ["a"]}', 'missing field "context"'),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_without_a_context_is_refused(line: str, problem: str) -> None:
    with pytest.raises((ValueError, UsageError), match=problem):
        context_of_line(line)


def test_rank_reads_rows_like_evaluate() -> None:
    rows = [
        {"context": "tea", "candidates": "red tea"},
        {"context": ["?"], "background": ["i like tea"], "candidates": ["coffee", "tea"]},
        {"context": ["?"], "candidates": ["coffee", "tea"]},
    ]
    lines = "\n\n".join(map(json.dumps, rows)).encode()
    found = run("rank", "bm25", "--scores-only", stdin=b"\xef\xbb\xbf" + lines)
    assert found.returncode == 0, found.stderr
    one, informed, ignorant = (json.loads(line)["scores"] for line in found.stdout.splitlines())
    assert len(one) == 1
    assert informed[1] > informed[0] == ignorant[0] == ignorant[1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"context": 5, "candidates": ["a"]}', '"context" holds a number'),
        ('{"context": null, "candidates": ["a"]}', '"context" holds null'),
        ('{"context": ["a"], "candidates": null}', '"candidates" holds null'),
        ('{"context": ["a"], "candidates": [null, 3]}', "holds null at position 0"),
        ('{"context": ["a"], "candidates": ["\\ud800"]}', "lone surrogate"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_that_cannot_be_ranked_is_refused(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        _query_of_line(1, line)


@pytest.mark.parametrize("line", [b'{"context": ["a"], "candidates": ["\xff"]}', b'{"context": ["a"]}'])
def test_errors_of_rank_name_the_line(line: bytes) -> None:
    found = run("rank", "bm25", stdin=b'{"context": "a", "candidates": ["b"]}\n' + line)
    assert (found.returncode, stderr_line(found).startswith("error: stdin:2: ")) == (3, True), found.stderr
    assert len(found.stdout.splitlines()) == 1


def test_a_stdout_of_another_encoding_is_utf_8() -> None:
    """Pipes on Windows have cp1252; an error of the stream is not an error of the model."""
    found = subprocess.run(
        [sys.executable, "-m", "polyrank", "rank", "bm25"],
        input='{"context": "a", "candidates": ["→ b"]}'.encode(),
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        check=True,
    )
    assert json.loads(found.stdout)["results"][0]["text"] == "→ b"
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "cp1252")), pytest.raises(UnicodeEncodeError):
        print_row({"text": "→"}, "runs/model")


def test_scores_that_are_not_finite_are_never_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArtifactError, match="runs/model returned a score that is not finite"):
        print_row({"scores": [1.0, float("nan")]}, "runs/model")
    assert capsys.readouterr().out == ""


@pytest.mark.deep
@pytest.mark.parametrize("arguments", [["--help"], ["info", "shipped:convert"], ["rank", "bm25"]])
def test_a_closed_pipe_ends_a_command_quietly(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "polyrank", *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    row = b'{"context": "a", "candidates": ["b"]}\n'
    try:
        found = subprocess.run(command, input=row, stdout=writing, stderr=subprocess.PIPE, timeout=300)
    finally:
        os.close(writing)
    assert (found.returncode, found.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [["--help"], pytest.param(["info", "shipped:convert", "--json"], marks=pytest.mark.deep), ["rank", "bm25"]],
)
def test_a_full_disk_behind_stdout_is_reported(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "polyrank", *arguments]
    row = b'{"context": "a", "candidates": ["b"]}\n'
    with Path("/dev/full").open("wb") as full:
        found = subprocess.run(command, input=row, stdout=full, stderr=subprocess.PIPE, timeout=300)
    assert (found.returncode, b"No space left" in found.stderr, found.stderr.count(b"\n")) == (5, True, 1)


def test_files_that_cannot_be_used_are_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello\tthere\n", "utf-8")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"context": ["a"], "candidates": ["b", "c"], "relevant": [0]}\n', "utf-8")
    (tmp_path / "model" / "config.json").mkdir(parents=True)
    file = tmp_path / "file"
    for arguments, message in (
        (
            ["evaluate", "bm25", pairs, "--scores", file / "y"],
            f"{file / 'y'} cannot be written because {file} is not a writable folder",
        ),
        (
            ["info", tmp_path / "model"],
            f"cannot use {tmp_path / 'model' / 'config.json'}: Is a directory; check the path",
        ),
    ):
        result = run(*arguments)
        assert result.returncode == 2, result.stderr
        assert f"error: {message}" in result.stderr


def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("pipe", "folder", "socket"):
            before = (tmp_path / name).stat()
            with pytest.raises(UsageError, match="not a regular file"):
                write_file(tmp_path / name, b"new")
            assert os.path.samestat((tmp_path / name).stat(), before)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "pipe", "socket"]


def test_permissions_follow_the_umask_or_the_replaced_file(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from polyrank.storage.durable import new_folder, write_file\n"
        "os.umask(int(sys.argv[2], 8)); home = Path(sys.argv[1])\n"
        "write_file(home / 'file', b'x'); write_file(home / 'link', b'x')\n"
        "with new_folder(home / 'folder') as folder: (folder / 'part').write_bytes(b'x')\n"
    )
    for mask, modes in (("022", [0o644, 0o755]), ("027", [0o640, 0o750])):
        home = tmp_path / mask
        (home / "elsewhere").mkdir(parents=True)
        (home / "link").symlink_to(home / "elsewhere" / "target")
        subprocess.run([sys.executable, "-c", code, home, mask], check=True)
        assert [(home / name).stat().st_mode & 0o777 for name in ("file", "folder")] == modes
        assert (home / "link").is_symlink()
        assert (home / "elsewhere" / "target").read_bytes() == b"x"
        (home / "file").chmod(0o604)
        (home / "folder").chmod(0o711)
        write_file(home / "file", b"y")
        with new_folder(home / "folder", replace=True) as folder:
            (folder / "part").write_bytes(b"y")
        assert [(home / name).stat().st_mode & 0o777 for name in ("file", "folder")] == [0o604, 0o711]
        assert (home / "file").read_bytes() == (home / "folder" / "part").read_bytes() == b"y"


def test_an_unknown_kind_of_index_is_refused_for_small_catalogues_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown kind of inner-product index 'foo'; choose none, auto, flat"):
        write_index(
            tmp_path / "i", [Candidate("a", "x")], np.ones((1, 4), np.float32), fingerprint="f", model="m", ann="foo"
        )
    assert list(tmp_path.iterdir()) == []
    assert [read_kind(name) for name in ("", "none", "auto", "ivfpq")] == ["", "", "auto", "ivfpq"]


def test_models_that_cannot_be_indexed_are_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="bm25 has no vectors; give"):
        load_encoder("bm25")
    with pytest.raises(UsageError, match="nosuch is not a model folder"):
        load_encoder("nosuch")
    with pytest.raises(UsageError, match=r"nosuch does not exist, .* was built with here/model"):
        scorer_of_index("here/model", Path("nosuch"))
    with pytest.raises(UsageError, match="device 'abacus'"):
        scorer_of_index("shipped:convert", device="abacus")
    assert run("info", "nosuch").returncode == 2


def test_files_of_ids_are_read_like_other_inputs(tmp_path: Path) -> None:
    pool = [Candidate(name, f"text of {name}") for name in "abc"]
    write_index(tmp_path / "i", pool, np.ones((3, 4), np.float32), fingerprint="f", model="m")
    ids = tmp_path / "ids.txt"
    ids.write_bytes(b"\xef\xbb\xbfa  \r\n\n b\t\n")
    assert "removed 2, now 1" in stderr_line(run("index", "remove", tmp_path / "i", "--file", ids))
    ids.write_bytes(b"\xff\n")
    for file, problem in ((ids, "not UTF-8"), (tmp_path / "none", "no such file"), (tmp_path, "cannot be read")):
        found = run("index", "remove", tmp_path / "i", "--file", file)
        assert (found.returncode, problem in stderr_line(found)) == (3, True), found.stderr
    found = run("index", "snapshot", tmp_path / "i", "-o", tmp_path / "i")
    assert (found.returncode, stderr_line(found).endswith("choose another path for the snapshot")) == (2, True)


@pytest.mark.parametrize("place", ["no/such/folder/p.png", "p.foo", "p"])
def test_a_plot_path_is_checked_before_the_work(tmp_path: Path, place: str) -> None:
    with pytest.raises(UsageError, match=r"known ending of a plot; use \.png|does not exist"):
        check_plot_path(tmp_path / place)
    assert check_plot_path(None) is None
    assert check_plot_path(tmp_path / "p.SVG") == tmp_path / "p.SVG"


@pytest.mark.deep
def test_an_index_of_dialogues_holds_their_replies(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    spoken = [[("Zoe", f"my wifi is down, {n}"), ("agent", "Restart the router.")] for n in range(3)]
    rows = [{"turns": [{"speaker": who, "text": text} for who, text in turns]} for turns in spoken]
    chats.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    done = run("index", "build", "shipped:convert", chats, "-o", tmp_path / "index")
    assert done.returncode == 0, done.stderr
    with open_index(tmp_path / "index") as index:
        assert [c.text for _, c in index.iter_candidates()] == ["Restart the router."]
