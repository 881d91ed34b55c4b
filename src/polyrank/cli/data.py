"""``polyrank import``: converts chats, replies, corpora in published formats, and models of ParlAI."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from polyrank.cli.console import notify
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import JsonLines, Overwrite, SkipBad
from polyrank.cli.replies import replies
from polyrank.errors import UsageError

CANDIDATES = "dstc7-candidates"

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}  # arguments of another command line

import_app = command_group("import", "Convert your chats, replies, or a public corpus to the files of other commands.")


@add_command(
    import_app,
    "chats",
    "export.csv -o chats.jsonl",
    '"WhatsApp Chat.txt" -o chats.jsonl --agent Anna --redact names.txt',
    add_help_option=False,
    context_settings=PASSED_ON,
)
def chats(context: Context) -> None:
    """Convert chats to a file of dialogues: CSV, sheets, JSON, and exports of help desks and messengers.

    The distribution polyrank-chats does this, also alone: `polyrank-chats export.csv -o chats.jsonl`. Its options are
    those of `polyrank import chats --help`.
    """
    from polyrank.loading.importers import importer

    importer("chats")(context.args, "polyrank import chats")


add_command(
    import_app,
    "replies",
    "replies.csv -o replies.jsonl --text answer",
    "chats.jsonl -o replies.jsonl --from-dialogues --min-count 5",
)(replies)


@add_command(
    import_app, "corpus", "dstc7 test.json -o test.jsonl --answers answers.tsv", "ubuntu-v2 train.csv -o train.jsonl"
)
def corpus(
    format_: Annotated[
        str,
        Argument(
            metavar="FORMAT",
            help="convai2, dstc7, dstc7-pool, dstc7-candidates, pairs, triplets, ubuntu-v2 or wikipedia.",
        ),
    ],
    source: Annotated[Path, Argument(help="The file to read.")],
    output: JsonLines,
    answers: Annotated[
        Path | None, Option(help="For dstc7 and dstc7-pool: the published answers of the test set.")
    ] = None,
    every_turn: Annotated[
        bool,
        Option("--every-turn", help="For convai2, dstc7 and ubuntu-v2: also make earlier turns responses, to train."),
    ] = False,
    as_released: Annotated[
        bool,
        Option(
            "--as-released",
            help="For dstc7: as in the Poly-encoders' released code, turns start with their speaker, and --every-turn"
            " uses every second turn.",
        ),
    ] = False,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
) -> None:
    """Convert a public corpus in its published format.

    The formats are convai2 (Persona-Chat in ParlAI's text format); dstc7, dstc7-pool and dstc7-candidates (track 1,
    subtasks 1 and 2, and the candidates of subtask 2); pairs (Reddit, OpenSubtitles and AmazonQA with extra contexts);
    triplets (anchors with a positive and negatives); ubuntu-v2 (the Ubuntu Dialogue Corpus 2); and wikipedia (an
    article per line, with tabs between sentences).
    """
    from polyrank.data import import_examples, import_pool, write_examples
    from polyrank.storage.durable import check_output

    check_output(output, inputs=(source, answers), overwrite=overwrite)
    options = {"answers": answers, "every_turn": every_turn, "as_released": as_released}
    given: dict[str, Any] = {name: value for name, value in options.items() if value}
    if format_ == CANDIDATES:
        if skip_bad or given:
            raise UsageError(f"{CANDIDATES} only has --overwrite; leave other options out")
        notify(f"{source}: {import_pool(source, output):,} candidates")
    else:
        loaded = import_examples(format_, source, skip_bad=skip_bad, **given)
        write_examples(output, loaded.examples)
        notify(f"{source}: {loaded.report}")
    notify(f"wrote {output}")
