"""``polyrank import``: published formats to JSON lines of Examples, or of the candidates of a pool; own chats."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from polyrank.cli.chats import chats
from polyrank.cli.console import talk
from polyrank.cli.options import Overwrite, SkipBad
from polyrank.cli.parlai import parlai
from polyrank.cli.replies import replies
from polyrank.errors import UsageError

# named here too, since reading them from polyrank.data would slow every --help down; a test compares the two
FORMATS = {
    "convai2": "ConvAI2 (Persona-Chat) in ParlAI's text format.",
    "dstc7": "DSTC7 track 1, subtask 1: JSON with candidates.",
    "dstc7-pool": "DSTC7 track 1, subtask 2: JSON against a pool of candidates.",
    "pairs": "Reddit, OpenSubtitles and AmazonQA: context, response and extra contexts.",
    "triplets": "Anchor, positive and negatives.",
    "ubuntu-v2": "The Ubuntu Dialogue Corpus 2: CSV with __eou__ and __eot__.",
    "wikipedia": "Article search: an article per line, its sentences between tabs.",
}
CANDIDATES = "dstc7-candidates"
EVERY_TURN = ("convai2", "dstc7", "ubuntu-v2")  # formats of whole conversations

import_app = typer.Typer(
    no_args_is_help=True, help="Own chats, or a public corpus, to files that everything else reads."
)
import_app.command("chats")(chats)
import_app.command("replies")(replies)
import_app.command("parlai")(parlai)


def import_(
    format_: str,
    source: Path,
    output: Path,
    *,
    answers: Path | None,
    every_turn: bool,
    as_released: bool,
    seed: int | None,
    max_words: int | None,
    skip_bad: bool,
    overwrite: bool,
) -> None:
    """Turn a public corpus into a file of examples, or of candidates, and print what was read."""
    from polyrank.data import import_examples, import_pool, write_examples
    from polyrank.storage.durable import check_output

    check_output(output, inputs=(source, answers), overwrite=overwrite)
    if answers is not None and format_ not in ("dstc7", "dstc7-pool"):
        raise UsageError(f"--answers goes with dstc7 and dstc7-pool only, not with {format_}; leave it out")
    if every_turn and format_ not in EVERY_TURN:
        raise UsageError(f"--every-turn goes with {', '.join(EVERY_TURN)} only, not with {format_}; leave it out")
    if as_released and format_ != "dstc7":
        raise UsageError(f"--as-released goes with dstc7 only, not with {format_}; leave it out")
    if format_ != "wikipedia" and (seed, max_words) != (None, None):
        raise UsageError(f"--seed and --max-words go with wikipedia only, not with {format_}; leave them out")
    if format_ == CANDIDATES:
        if skip_bad:
            raise UsageError(f"--skip-bad does not go with {CANDIDATES}, for examples name its rows; leave it out")
        talk(f"{source}: {import_pool(source, output):,} candidates")
    else:
        options: dict[str, Any] = {} if answers is None else {"answers": answers}
        options |= {"every_turn": True} if every_turn else {}
        options |= {"as_released": True} if as_released else {}
        options |= {} if seed is None else {"seed": seed}
        options |= {} if max_words is None else {"max_words": max_words}
        loaded = import_examples(format_, source, skip_bad=skip_bad, **options)
        write_examples(output, loaded.examples)
        talk(f"{source}: {loaded.report}")
    talk(f"wrote {output}")


def _command(format_: str) -> Callable[..., None]:
    def command(
        source: Annotated[Path, typer.Argument(help="The file to read.")],
        output: Annotated[Path, typer.Option("-o", "--output", help="JSON lines to write; .gz compresses.")],
        answers: Annotated[
            Path | None, typer.Option(help="For dstc7 and dstc7-pool: the published answers of the test set.")
        ] = None,
        every_turn: Annotated[
            bool,
            typer.Option(
                "--every-turn",
                help="For convai2, dstc7 and ubuntu-v2: earlier turns become responses too, for training.",
            ),
        ] = False,
        as_released: Annotated[
            bool,
            typer.Option(
                "--as-released",
                help="For dstc7: as the Poly-encoders' released code, turns begin with their speaker, and"
                " --every-turn takes every second one.",
            ),
        ] = False,
        seed: Annotated[
            int | None, typer.Option(min=0, help="For wikipedia: which sentence becomes the query; 0 if not given.")
        ] = None,
        max_words: Annotated[
            int | None, typer.Option(min=1, help="For wikipedia: keep N words of each article; else all.")
        ] = None,
        skip_bad: SkipBad = False,
        overwrite: Overwrite = False,
    ) -> None:
        import_(
            format_,
            source,
            output,
            answers=answers,
            every_turn=every_turn,
            as_released=as_released,
            seed=seed,
            max_words=max_words,
            skip_bad=skip_bad,
            overwrite=overwrite,
        )

    return command


for name, what in (FORMATS | {CANDIDATES: "The pool of dstc7-pool: an id, a tab and a text per line."}).items():
    import_app.command(name, help=what)(_command(name))
