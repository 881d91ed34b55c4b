"""``polyrank import``: converts chats, replies, corpora in published formats, and models of ParlAI."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.chats import chats
from polyrank.cli.console import notify
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import JsonLines, Overwrite, SkipBad
from polyrank.cli.parlai import parlai
from polyrank.cli.replies import replies
from polyrank.errors import UsageError

# repeated from polyrank.data, because importing it would slow down every --help; a test compares the two
FORMATS = {
    "convai2": "Import ConvAI2 (Persona-Chat) in ParlAI's text format.",
    "dstc7": "Import DSTC7 track 1, subtask 1: JSON with candidates.",
    "dstc7-pool": "Import DSTC7 track 1, subtask 2: JSON against a pool of candidates.",
    "pairs": "Import Reddit, OpenSubtitles or AmazonQA: context, response and extra contexts.",
    "triplets": "Import anchors with a positive and negatives.",
    "ubuntu-v2": "Import the Ubuntu Dialogue Corpus 2: CSV with __eou__ and __eot__.",
    "wikipedia": "Import articles for article search: one per line, with tabs between sentences.",
}
CANDIDATES = "dstc7-candidates"
EVERY_TURN = ("convai2", "dstc7", "ubuntu-v2")  # formats of whole conversations
OPTIONS = {  # the formats that each option applies to
    "answers": ("dstc7", "dstc7-pool"),
    "every_turn": EVERY_TURN,
    "as_released": ("dstc7",),
    "seed": ("wikipedia",),
    "max_words": ("wikipedia",),
}

import_app = command_group("import", "Convert your chats, replies, or a public corpus to the files of other commands.")
add_command(
    import_app,
    "chats",
    "export.csv -o chats.jsonl",
    '"WhatsApp Chat.txt" -o chats.jsonl --agent Anna --redact names.txt',
)(chats)
add_command(
    import_app,
    "replies",
    "replies.csv -o replies.jsonl --text answer",
    "chats.jsonl -o replies.jsonl --from-dialogues --min-count 5",
)(replies)
add_command(import_app, "parlai", "model -o model-folder")(parlai)


def _importer(format_: str) -> Callable[..., None]:
    """The command of one format."""

    def command(
        source: Annotated[Path, Argument(help="The file to read.")],
        output: JsonLines,
        answers: Annotated[
            Path | None, Option(help="For dstc7 and dstc7-pool: the published answers of the test set.")
        ] = None,
        every_turn: Annotated[
            bool,
            Option(
                "--every-turn",
                help="For convai2, dstc7 and ubuntu-v2: also make earlier turns responses, for training.",
            ),
        ] = False,
        as_released: Annotated[
            bool,
            Option(
                "--as-released",
                help="For dstc7: as in the Poly-encoders' released code, turns start with their speaker, and"
                " --every-turn uses every second turn.",
            ),
        ] = False,
        seed: Annotated[
            int | None, Option(min=0, help="For wikipedia: seed of the sentence that becomes the query. Default: 0.")
        ] = None,
        max_words: Annotated[
            int | None, Option(min=1, help="For wikipedia: keep N words of each article. Default: all.")
        ] = None,
        skip_bad: SkipBad = False,
        overwrite: Overwrite = False,
    ) -> None:
        from polyrank.data import import_examples, import_pool, write_examples
        from polyrank.storage.durable import check_output

        check_output(output, inputs=(source, answers), overwrite=overwrite)
        values = (answers, every_turn or None, as_released or None, seed, max_words)
        given = {name: value for name, value in zip(OPTIONS, values, strict=True) if value is not None}
        for name in given:
            if format_ not in OPTIONS[name]:
                raise UsageError(
                    f"--{name.replace('_', '-')} applies to {', '.join(OPTIONS[name])}, not to {format_}; leave it out"
                )
        if format_ == CANDIDATES:
            if skip_bad:
                raise UsageError(
                    f"--skip-bad does not apply to {CANDIDATES}, because examples refer to its rows; leave it out"
                )
            notify(f"{source}: {import_pool(source, output):,} candidates")
        else:
            loaded = import_examples(format_, source, skip_bad=skip_bad, **given)
            write_examples(output, loaded.examples)
            notify(f"{source}: {loaded.report}")
        notify(f"wrote {output}")

    return command


for name, text in (FORMATS | {CANDIDATES: "Import the pool of dstc7-pool: an id, a tab and a text per line."}).items():
    add_command(import_app, name, "SOURCE -o out.jsonl", text=text)(_importer(name))
