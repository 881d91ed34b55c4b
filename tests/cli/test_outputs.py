"""Commands refuse to replace an existing file without --overwrite, before any work, and never replace an input."""

import json
from pathlib import Path

import pytest

from polyrank.errors import UsageError
from polyrank.storage.durable import check_output
from processes import run

LISTS = [
    {"id": word, "context": [f"my {word}"], "candidates": ["the wifi is up", "the bill is paid"], "relevant": [i]}
    for i, word in enumerate(("wifi", "bill"))
]
# commands that write OUT; other paths may exist or not, since commands must check OUT first
COMMANDS = {
    "evaluate": "evaluate bm25 data.jsonl --scores OUT",
    "evaluate, suspects": "evaluate bm25 data.jsonl --suspects OUT",
    "evaluate, no data": "evaluate bm25 gone.jsonl --scores OUT",
    "import": "import corpus pairs source.tsv -o OUT",
    "mine": "mine data.jsonl --from bm25 -o OUT",
    "compare": "compare scores.jsonl --plot OUT",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LISTS), "utf-8")
    (tmp_path / "keep.svg").write_text("mine", "utf-8")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_an_existing_file_stays(folder: Path, command: str) -> None:
    done = run(*command.replace("OUT", "keep.svg").split(), cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "keep.svg already exists; choose another path or pass --overwrite" in done.stderr
    assert (folder / "keep.svg").read_text("utf-8") == "mine"


def test_a_file_is_replaced_with_the_option(folder: Path) -> None:
    for command in ("evaluate bm25 data.jsonl --scores keep.svg", "mine data.jsonl --from bm25 -o keep.svg"):
        (folder / "keep.svg").write_text("mine", "utf-8")
        done = run(*command.split(), "--overwrite", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert json.loads((folder / "keep.svg").read_text("utf-8").splitlines()[-1])["id"] == "bill"


@pytest.mark.parametrize(
    "command",
    [
        "evaluate bm25 data.jsonl --scores OUT --overwrite",
        "mine data.jsonl --from bm25 -o OUT --overwrite",
        "import corpus pairs data.jsonl -o OUT --overwrite",
    ],
)
@pytest.mark.parametrize("output", ["data.jsonl", "./sub/../data.jsonl", "link.svg", "hard.svg"])
def test_an_input_is_never_replaced(folder: Path, command: str, output: str) -> None:
    (folder / "sub").mkdir()
    (folder / "link.svg").symlink_to("data.jsonl")
    (folder / "hard.svg").hardlink_to(folder / "data.jsonl")
    if "--plot" in command and output.endswith("jsonl"):
        pytest.skip("a plot has its own ending")
    done = run(*command.replace("OUT", output).split(), cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "already exists and is read by this command; give another file" in done.stderr
    assert len((folder / "data.jsonl").read_text("utf-8").splitlines()) == 2


def test_two_outputs_are_two_files(folder: Path) -> None:
    done = run("evaluate", "bm25", "data.jsonl", "--scores", "x.svg", "--suspects", "./x.svg", cwd=folder)
    assert (done.returncode, "x.svg is given for two outputs; give another file" in done.stderr) == (2, True)


def test_impossible_output_paths(folder: Path) -> None:
    check_output(None, inputs=(folder,))
    check_output(folder / "new" / "deep" / "x.jsonl", inputs=("bm25", None, folder / "data.jsonl"))
    assert not (folder / "new").exists()
    for path, message in ((folder, "not a regular file"), (folder / "keep.svg" / "x", "is not a writable folder")):
        with pytest.raises(UsageError, match=message):
            check_output(path, overwrite=True)
