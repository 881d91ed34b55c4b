"""The commands put together, and what becomes of their errors.

Nothing heavy is imported before a command runs, so ``polyrank --help`` answers at once.
"""

import sys
import traceback
from contextlib import suppress
from typing import Annotated

import typer

from polyrank._version import __version__
from polyrank.cli import (
    answering,
    benches,
    curves,
    data,
    evaluation,
    explaining,
    exporting,
    feedback,
    indexing,
    info,
    intents,
    interrupts,
    maps,
    mining,
    pipelines,
    popularity,
    pretraining,
    ranking,
    ray,
    recipes,
    serving,
    sharing,
    splitting,
    sums,
    training,
)
from polyrank.cli.arguments import take_options
from polyrank.cli.console import complain, one_speaks
from polyrank.cli.interrupts import drop_unwritten
from polyrank.errors import PolyrankError, ResourceError, UsageError
from polyrank.storage.durable import DISK_TROUBLE

app = typer.Typer(
    name="polyrank",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help comes up in half the time
    help="Ranks replies: train, evaluate, index and answer with Bi-, Poly- and Cross-encoders.",
)
_settings = {"debug": False}


def _show_version(value: bool) -> None:
    if value:
        print(f"polyrank {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options before the command."""
    _settings["debug"] = debug
    take_options(context.command)
    one_speaks(context)


app.command("quickstart")(training.quickstart)
app.command("split")(splitting.split)
app.command("mine")(mining.mine)
app.command("pretrain")(pretraining.pretrain)
app.command("train")(training.train)
app.command("curves")(curves.curves)
app.command("map")(maps.map_)
app.command("popularity")(popularity.popularity)
app.command("sum")(sums.sum_)
app.command("evaluate")(evaluation.evaluate)
app.command("compare")(evaluation.compare)
app.command("respond")(answering.respond)
app.command("rank")(ranking.rank)
app.command("serve")(serving.serve)
app.command("explain")(explaining.explain)
app.command("export")(exporting.export)
app.command("push")(sharing.push)
app.command("info")(info.info)
app.add_typer(data.import_app, name="import")
app.add_typer(indexing.index_app, name="index")
app.add_typer(benches.bench_app, name="bench")
app.add_typer(pipelines.pipeline_app, name="pipeline")
app.add_typer(intents.intents_app, name="intents")
app.add_typer(feedback.feedback_app, name="feedback")
app.add_typer(ray.ray_app, name="ray")
app.add_typer(recipes.recipe_app, name="recipe")


def run() -> int:
    """Run the command line and return its exit code; every error is one line on stderr.

    Raises:
        KeyboardInterrupt: a signal has come, whatever libraries made of it.
    """
    try:
        return _run()
    except PolyrankError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # the reader of our output left, as `head` does; nothing is wrong
        drop_unwritten()
        return 0
    except OSError as error:
        name, reason = error.filename or "the input or output", error.strerror or " ".join(str(error).split())
        if error.errno in DISK_TROUBLE:
            return _fail(f"cannot use {name}: {reason}; free some space or mend the disk", ResourceError.exit_code)
        return _fail(f"cannot use {name}: {reason}; check the path and its permissions", UsageError.exit_code)
    except MemoryError:
        return _fail("out of memory; use smaller batches or text budgets", ResourceError.exit_code)
    except Exception as error:
        where = "" if _settings["debug"] else "; run it again as: polyrank --debug ..."
        return _fail(f"internal error, please report it: {type(error).__name__}: {error}{where}", 1)


def _run() -> int:
    code = 0
    try:
        typer.main.get_command(app)()  # app() would print exceptions in its own way, signals too
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # of which typer and rich make a failure
            raise leaving.__context__ from None
        if leaving.code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt from None
        code = int(leaving.code or 0)
    if not code and sys.__stdout__ is not None:
        sys.__stdout__.flush()  # while what goes wrong can still be told
    return code


def _fail(message: str, code: int) -> int:
    if code not in (130, 143):
        interrupts.check()  # an interrupt has become this error, or led to it
    # who no longer listens is told by the code alone; rich would leave with its own
    with suppress(OSError, SystemExit):
        if _settings["debug"]:
            traceback.print_exc()
        complain(message if code in (130, 143) else f"error: {message}")
    drop_unwritten()
    return code
