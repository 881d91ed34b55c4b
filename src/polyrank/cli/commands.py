"""Assembles the commands and converts their errors to messages and exit codes.

Commands import heavy libraries only when they run, so ``polyrank --help`` answers at once.
"""

import io
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, ClassVar

import typer
from typer import Option

from polyrank._version import __version__
from polyrank.cli import (
    answering,
    benches,
    data,
    evaluation,
    explaining,
    exporting,
    feedback,
    fitting,
    indexing,
    info,
    intents,
    interrupts,
    mining,
    ranking,
    serving,
    splitting,
    training,
    tuning,
)
from polyrank.cli.arguments import take_options
from polyrank.cli.console import print_error, silence_other_ranks
from polyrank.cli.help import PASSED_ON, CommandGroup, add_command
from polyrank.errors import PolyrankError, ResourceError, UsageError, is_out_of_memory
from polyrank.storage.durable import DISK_TROUBLE


class Root(CommandGroup):
    """All commands."""

    panels: ClassVar[dict[str, str]] = {
        "Get started": "fit quickstart",
        "Prepare data": "import split mine",
        "Train": "train pretrain tune recipe intents",
        "Evaluate": "evaluate compare bench",
        "Search and rank": "index respond rank explain",
        "Serve": "serve mcp feedback ray",
        "Inspect and share": "info export push",
    }


app = typer.Typer(
    name="polyrank",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the time
    help="Ranks replies: train, evaluate, index and answer with Bi-, Poly- and Cross-encoders.\n\n"
    "For completion in your shell, run `polyrank --install-completion` once.",
)
_settings = {"debug": False}


def _show_version(value: bool) -> None:
    if value:
        print(f"polyrank {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, Option("--debug", help="Show tracebacks of errors.")] = False,
    _version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""
    _settings["debug"] = debug
    take_options(context.command)
    silence_other_ranks(context)


COMMANDS: dict[str, tuple[Callable[..., None], *tuple[str, ...]]] = {  # with examples, from the first argument on
    "fit": (fitting.fit, "export.csv -o support", "data -o support --minutes 60 --ms 50 --replies replies.csv"),
    "quickstart": (fitting.quickstart, "--output first"),
    "split": (splitting.split, "chats.jsonl -o data", "pairs.csv -o data --by id --candidates 100"),
    "mine": (
        mining.mine,
        "data/train.jsonl --from bm25 -o mined.jsonl",
        "data/train.jsonl --from data/run/model --rerank cross/model --margin 1 -o mined.jsonl",
    ),
    "train": (training.train, "data/recipe.toml", "data/recipe.toml --set train.lr=1e-4 --set train.epochs=4 --resume"),
    "pretrain": (training.pretrain, "pretrain.toml", "pretrain.toml --set train.steps=1000"),
    "tune": (
        tuning.tune,
        "run/model --valid data/valid.jsonl --dialogues data/train.jsonl -o best",
        "shipped:minilm shipped:convert --valid data/valid.jsonl -o best --ms 30 --precision 0.8",
    ),
    "evaluate": (
        evaluation.evaluate,
        "run/model bm25 data/test.jsonl",
        "best run/model data/test.jsonl --scores scores",
    ),
    "compare": (evaluation.compare, "bi=bi.jsonl poly=poly.jsonl --format markdown"),
    "respond": (answering.respond, "my-index", 'my-index "hi" "my wifi is down" -k 3'),
    "rank": (ranking.rank, 'run/model "my wifi is down" replies.txt --top 5', "cross/model --json < queries.jsonl"),
    "serve": (serving.serve, "my-index", "support=my-index --port 9000 --feedback feedback.db"),
    "mcp": (serving.mcp, "my-index", "my-index --read-only"),
    "explain": (
        explaining.explain,
        'my-index "my wifi is down"',
        'run/model "my wifi is down" --reply "Please restart the router."',
    ),
    "export": (exporting.export, "run/model --to onnx", "run/model --to sentence-transformers -o exported"),
    "push": (exporting.push, "run/model hf:OWNER/MODEL --private"),
    "info": (info.info, "run/model"),
}
for name, (function, *examples) in COMMANDS.items():
    add_command(app, name, *examples)(function)
for group in (
    data.import_app,
    indexing.index_app,
    benches.bench_app,
    intents.intents_app,
    feedback.feedback_app,
    training.recipe_app,
):
    app.add_typer(group)


@add_command(app, "ray", "train data/recipe.toml --workers 4", "serve my-index --replicas 4", **PASSED_ON)
def ray(context: typer.Context) -> None:
    """Train, encode and serve on a Ray cluster whose nodes may fail.

    The distribution polyrank-ray does this; `polyrank ray --help` lists its commands.
    """
    from polyrank.loading.extensions import extension

    extension("ray")(context.args, "polyrank ray")


def run() -> int:
    """Run the command line and return its exit code; every error is one line on stderr.

    Raises:
        KeyboardInterrupt: a signal was received, even if a library converted it to another error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # pipes on Windows have an encoding that lacks most characters
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        return _run()
    except PolyrankError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # the process that read the output has ended, as `head` does; this is not an error
        interrupts.discard_partial_output()
        return 0
    except OSError as error:
        name, reason = error.filename or "the input or output", error.strerror or " ".join(str(error).split())
        if error.errno in DISK_TROUBLE:
            return _fail(f"cannot use {name}: {reason}; free some space or repair the disk", ResourceError.exit_code)
        return _fail(f"cannot use {name}: {reason}; check the path and its permissions", UsageError.exit_code)
    except Exception as error:
        if is_out_of_memory(error):
            fix = "use smaller batches or text budgets, or stop other programs that use this memory"
            return _fail(f"out of memory; {fix}", ResourceError.exit_code)
        hint = "" if _settings["debug"] else "; run it again as: polyrank --debug ..."
        return _fail(f"internal error, please report it: {type(error).__name__}: {error}{hint}", 1)


def _run() -> int:
    code = 0
    try:
        typer.main.get_command(app)()  # app() would print exceptions and signals in typer's format
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # typer and rich convert it to exit code 1
            raise leaving.__context__ from None
        if leaving.code == 130:  # typer converts Ctrl-C to this
            raise KeyboardInterrupt from None
        code = int(leaving.code or 0)
    if not code and sys.__stdout__ is not None:
        sys.__stdout__.flush()  # while an error can still be reported
    return code


def _fail(message: str, code: int) -> int:
    if code not in (130, 143):
        interrupts.raise_if_interrupted()  # the error may be a consequence of a signal
    # if stderr is closed, only the exit code reports the error; rich would exit with its own code
    with suppress(OSError, SystemExit):
        if _settings["debug"]:
            traceback.print_exc()
        print_error(message if code in (130, 143) else f"error: {message}")
    interrupts.discard_partial_output()
    return code
