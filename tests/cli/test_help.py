"""Help texts: every command is in a group, has a whole first sentence, and ends with examples that work."""

import inspect
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from polyrank.cli.commands import Root, app
from polyrank.cli.help import PROMPT, first_sentence
from processes import run


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands that are not groups, with their names from the root on."""
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from walk(inner, (*path, name))
        else:
            yield (*path, name), inner


ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(walk(ROOT))
EACH = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def plain_help(*path: str) -> str:
    """The help of a command in one line."""
    command, context = ROOT, typer.Context(ROOT, info_name="polyrank")
    for name in path:
        command = command.commands[name]
        context = typer.Context(command, info_name=name, parent=context)
    return " ".join(command.get_help(context).split())


def test_every_command_is_in_one_group_of_the_help() -> None:
    grouped = " ".join(Root.panels.values()).split()
    assert sorted(grouped) == sorted(ROOT.commands)
    shown = plain_help()
    for title, names in Root.panels.items():
        assert f"{title}: {names.split()[0]} " in shown
    assert "polyrank --install-completion" in shown


@pytest.mark.parametrize("group", [name for name, command in ROOT.commands.items() if hasattr(command, "commands")])
def test_a_group_without_a_command_prints_its_help(group: str) -> None:
    assert " ".join(CliRunner().invoke(app, [group]).output.split()).endswith(plain_help(group).partition(" ")[2])


@EACH
def test_commands_that_choose_a_device_choose_threads_too(path: tuple[str, ...]) -> None:
    options = {parameter.name: parameter for parameter in COMMANDS[path].params}
    if "device" in options:
        assert options["threads"].opts == ["--threads"]
        assert path == ("serve",) or options["threads"].envvar == "POLYRANK_THREADS"


@EACH
def test_the_list_of_commands_has_whole_first_sentences(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    sentence = first_sentence(command.help)
    assert 10 < len(sentence) < 120
    assert "..." not in sentence
    assert sentence in plain_help(*path[:-1])
    assert command.get_short_help_str() == sentence
    assert command.help == inspect.cleandoc(command.help)


@EACH
def test_examples_name_their_command_and_options_that_it_has(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    examples = [line.removeprefix(PROMPT) for line in command.epilog.splitlines() if line.startswith(PROMPT)]
    assert 1 <= len(examples) <= 2
    passed_on = command.context_settings.get("ignore_unknown_options")  # to another command line
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    required = [p for p in command.params if p.required and p.param_type_name == "option"]
    for example in examples:
        words = shlex.split(example.partition("<")[0].partition(" > ")[0])
        assert words[: 1 + len(path)] == ["polyrank", *path]
        options = [word for word in words if word.startswith("-")]
        assert passed_on or set(options) <= known
        assert all(set(parameter.opts) & set(options) for parameter in required)
        assert len(example) <= 110
    assert plain_help(*path).endswith(" ".join(" ".join(examples).split()))


@pytest.mark.deep
def test_help_answers_at_once() -> None:
    code = "import sys; sys.argv[1:] = ['--help']; from polyrank.cli import program; program()"
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = os.times()
        assert "Get started" in done.stdout
        # processor time, since other tests run at the same time
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(seconds) < 0.5


def test_completion_can_be_installed_and_completes_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    script = run("--show-completion", "bash")
    assert script.returncode == 0, script.stderr
    assert "complete -o default -F _polyrank_completion polyrank" in script.stdout
    for name, value in {"_POLYRANK_COMPLETE": "complete_bash", "COMP_WORDS": "polyrank tr", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run().stdout.split() == ["train"]
