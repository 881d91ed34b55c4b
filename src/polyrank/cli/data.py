"""``polyrank import``: converts chats, replies, corpora in published formats, and models of ParlAI."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from polyrank.cli.console import load_examples, notify
from polyrank.cli.help import PASSED_ON, add_command, command_group, first_sentence
from polyrank.cli.options import JsonLines, Overwrite, SkipBad, Speaker
from polyrank.errors import UsageError
from polyrank.storage.durable import check_output

CANDIDATES = "dstc7-candidates"

import_app = command_group("import", "Convert your chats, replies, or a public corpus to the files of other commands.")


@import_app.callback(invoke_without_command=True)
def formats(
    listed: Annotated[bool, Option("--list", help="Print every form of data that polyrank reads.")] = False,
) -> None:
    """Convert your chats, replies, or a public corpus to the files of other commands."""
    if listed:
        from polyrank.data import IMPORTERS, published
        from polyrank.data.forms import FORMS

        print("polyrank import chats: exports of help desks, mail, messengers and logs")
        print("polyrank import replies: tables and lists of replies")
        print("polyrank import corpus:")
        for name, importer in IMPORTERS.items():
            text = first_sentence(importer.__doc__ or "").removeprefix("Import ").replace("``", "")
            print(f"  {name:<17} {text}")
        print(f"  {CANDIDATES:<17} the pool of candidates of {CANDIDATES.partition('-')[0]}-pool")
        forms = (published.__doc__ or "").replace("``", "")
        print(f"\nsplit, train, evaluate and tune read other forms as they are:\n\n{forms}")
        print("forms.toml:", ", ".join(f"{form['name']}{' (not read)' * ('do' in form)}" for form in FORMS))


@add_command(
    import_app,
    "chats",
    "export.csv -o chats.jsonl",
    '"WhatsApp Chat.txt" -o chats.jsonl --agent Anna --redact names.txt',
    **PASSED_ON,
)
def chats(context: Context) -> None:
    """Convert chats to a file of dialogues: CSV, sheets, JSON, and exports of help desks and messengers.

    The distribution polyrank-chats does this, also alone: `polyrank-chats export.csv -o chats.jsonl`. Its options are
    those of `polyrank import chats --help`.
    """
    from polyrank.loading.extensions import extension

    extension("chats")(context.args, "polyrank import chats")


@add_command(
    import_app,
    "replies",
    "replies.csv -o replies.jsonl --text answer",
    "chats.jsonl -o replies.jsonl --from-dialogues --min-count 5",
)
def replies(
    source: Annotated[Path, Argument(help="A table, JSON, a text with one reply per line, or conversations.")],
    output: JsonLines,
    column: Annotated[str | None, Option("--text", metavar="COLUMN", help="The column of replies.")] = None,
    encoding: Annotated[str | None, Option(help="Encoding of text files, such as cp1252.")] = None,
    sheet: Annotated[str | None, Option(help="The sheet of a workbook.")] = None,
    from_dialogues: Annotated[
        bool, Option("--from-dialogues", help="Use the most frequent replies in dialogues or pairs.")
    ] = False,
    speaker: Speaker = None,
    min_count: Annotated[
        int | None, Option(min=1, help="With --from-dialogues: the minimum count of a reply. Default: 2.")
    ] = None,
    top: Annotated[int | None, Option(min=1, help="With --from-dialogues: only the N most frequent.")] = None,
    skip_bad: Annotated[bool, Option("--skip-bad", help="With --from-dialogues: count and skip bad rows.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make a catalogue of replies to index, from a table or a text, or from the frequent replies in conversations."""
    from polyrank.data import frequent_replies, read_replies, write_pool
    from polyrank.wording import counted

    check_output(output, inputs=(source,), overwrite=overwrite)
    if not from_dialogues and (skip_bad or any(option is not None for option in (speaker, min_count, top))):
        raise UsageError("--speaker, --min-count, --top and --skip-bad need --from-dialogues; add it or leave them out")
    if from_dialogues and any(option is not None for option in (column, encoding, sheet)):
        raise UsageError("--text, --encoding and --sheet apply to tables; leave them out with --from-dialogues")
    if from_dialogues:
        examples = load_examples(source, speaker, skip_bad=skip_bad)
        pool = frequent_replies(examples, min_count=min_count or 2, top=top, notify=notify)
    else:
        pool = read_replies(source, column=column, encoding=encoding, sheet=sheet, notify=notify)
    write_pool(output, pool)
    notify(f"wrote {output}: {counted(len(pool), 'reply')}; next: polyrank index build MODEL {output} -o INDEX")


@add_command(
    import_app, "corpus", "dstc7 test.json -o test.jsonl --answers answers.tsv", "ubuntu-v2 train.csv -o train.jsonl"
)
def corpus(
    format_: Annotated[str, Argument(metavar="FORMAT", help="The name of a format, see polyrank import --list.")],
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
    part: Annotated[str | None, Option(help="For personachat: train (the default) or valid.")] = None,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
) -> None:
    """Convert a public corpus in its published format. Other commands read some published forms as they are."""
    from polyrank.data import import_examples, import_pool, write_examples

    check_output(output, inputs=(source, answers), overwrite=overwrite)
    options = {"answers": answers, "every_turn": every_turn, "as_released": as_released, "part": part}
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
