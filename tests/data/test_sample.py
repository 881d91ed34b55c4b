"""The shipped sample matches its description, and a short quickstart runs end to end."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyrank.cli.commands import app
from polyrank.cli.quickstart import quickstart
from polyrank.data import read_examples, read_pool
from polyrank.errors import MissingExtraError, UsageError
from polyrank.loading.backbones import resolve_backbone

SAMPLE = Path(str(files("polyrank"))) / "sample"
README = Path(__file__).parents[2] / "README.md"


def test_the_sample_is_large_enough_and_clean() -> None:
    train = read_examples(SAMPLE / "train.jsonl", speaker="agent")
    test = read_examples(SAMPLE / "test.jsonl").examples
    replies = read_pool(SAMPLE / "replies.jsonl")
    dialogues = {example.id.split("#")[0] for example in (*train.examples, *test)}
    assert len(dialogues) >= 150
    assert len({reply.text for reply in replies}) == len(replies) >= 300
    assert train.report.n_empty_strings == 0
    known = {reply.id for reply in replies}
    assert all(set(example.relevant_ids) <= known for example in test)
    held_out = {example.id.split("#")[0] for example in test}
    assert not held_out & {example.id.split("#")[0] for example in train.examples}


def test_a_quickstart_refuses_other_files_before_it_trains(tmp_path: Path) -> None:
    thesis = tmp_path / "index" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years", "utf-8")
    for overwrite, message in ((False, "already exists"), (True, "holds other files")):
        with pytest.raises(UsageError, match=message):
            quickstart(tmp_path, overwrite=overwrite, notify=lambda text: pytest.fail(f"it began: {text}"))
    assert thesis.read_text("utf-8") == "years"
    assert not (tmp_path / "run").exists()


def test_the_first_lines_of_python_print_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, rest = README.read_text("utf-8").partition("```python\n")[2].partition("```")
    shown = rest.partition("```text\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), {})
    assert capsys.readouterr().out == shown


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "tuned", "beaten", "factor"),
    [
        ("shipped:convert", "trained ConveRT", ["shipped:convert, untuned"], 1.3),  # needs no extra
        ("embedded", "trained Bi-encoder", ["untuned backbone", "BM25"], 1),
    ],
)
def test_quickstart_improves_on_its_initial_model(
    start: str, tuned: str, beaten: list[str], factor: float, tmp_path: Path
) -> None:
    if start == "embedded":
        try:
            resolve_backbone("embedded")
        except MissingExtraError:
            pytest.skip("the embedded extra is not installed")
    folder = tmp_path / "polyrank-quickstart"
    command = ["quickstart", "--output", str(folder), "--start", start, "--max-steps", "12", "--json"]
    result = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert json.loads((folder / "run" / "result.json").read_text("utf-8"))["n_steps"] == 12
    by_name = {summary["name"]: summary["metrics"]["MRR"] for summary in result["summaries"]}
    assert all(by_name[tuned] > factor * by_name[name] for name in beaten)
    assert (folder / "best" / "ranker.json").is_file()
    assert (folder / "quickstart.svg").read_text("utf-8").startswith("<?xml")
    assert all(len(answer["ranked"]) == 3 for answer in result["answers"])
