"""The shipped sample matches its description, and the first lines of Python use it."""

from importlib.resources import files
from pathlib import Path

import pytest

from polyrank.data import read_examples, read_pool

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


def test_the_first_lines_of_python_print_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, rest = README.read_text("utf-8").partition("```python\n")[2].partition("```")
    shown = rest.partition("```text\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), {})
    assert capsys.readouterr().out == shown
