"""``polyrank ray``: options are checked before a cluster is connected, and help lists the commands."""

from pathlib import Path

import pytest

from polyrank.errors import OfflineError, UsageError
from processes import run

WRONG = [
    ("train {recipe} --address ray://x", "'ray://x' is not the address"),
    ("train {recipe} --device quantum --address 127.0.0.1:1", "unknown device of a Ray cluster 'quantum'"),
    ("encode shipped:convert none -o out --address ray://x", "'ray://x' is not the address"),
    ("encode shipped:convert none -o out --device quantum", "unknown device of a Ray cluster 'quantum'"),
    ("encode absent none -o out --address 127.0.0.1:1", "absent is not a model folder"),
    ("serve none --host 0.0.0.0 --address 127.0.0.1:1", "0.0.0.0 can be reached by other machines"),
    ("serve none --address ray://x", "'ray://x' is not the address"),
]


@pytest.mark.parametrize(("command", "words"), WRONG, ids=[command for command, _ in WRONG])
def test_a_wrong_option_is_refused_before_a_cluster_is_connected(command: str, words: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('output = "run"\n[data]\ntrain = "none"\nvalid = "none"\n[model]\nkind = "bi"\n')
    refused = run("ray", *command.format(recipe=recipe).split(), cwd=tmp_path)
    assert refused.returncode == UsageError.exit_code
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [recipe]


def test_a_fit_first_asks_whether_its_cluster_answers(tmp_path: Path) -> None:
    refused = run("fit", "none", "-o", tmp_path / "support", "--ray", "127.0.0.1:1")
    assert refused.returncode == OfflineError.exit_code
    assert "127.0.0.1:1" in refused.stderr
    assert not (tmp_path / "support").exists()


def test_messages_name_options() -> None:
    refused = run("ray", "train", "none", "--resume", "--overwrite")
    assert (refused.returncode, refused.stderr.startswith("error: --resume and --overwrite exclude")) == (2, True)
    refused = run("ray", "encode", "a", "b")
    assert (refused.returncode, "Missing option '-o' / '--output'" in refused.stderr) == (2, True)


def test_help_names_the_whole_command() -> None:
    assert "Usage: polyrank ray [OPTIONS] COMMAND" in run("ray", "--help").stdout
    shown = run("ray", "train", "--help")
    assert (shown.returncode, "polyrank ray train [OPTIONS]" in shown.stdout) == (0, True)
    assert "polyrank ray train data/recipe.toml" in shown.stdout
