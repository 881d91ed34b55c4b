"""``polyrank split``: splits conversations into three parts and writes a recipe, or draws lists for one file."""

import json
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from polyrank.cli.console import load_examples, notify, print_table
from polyrank.cli.options import Json, Overwrite, SkipBad, Speaker
from polyrank.config.starter_recipe import Start, best_start, for_given_negatives, starter_recipe
from polyrank.errors import UsageError

if TYPE_CHECKING:
    from polyrank.data import Split

RECIPE = "recipe.toml"


def split(
    file: Annotated[Path, Argument(help="Dialogues, pairs or candidate lists.")],
    output: Annotated[
        Path,
        Option(
            "-o", "--output", help="Folder for train, valid and test.jsonl; or a .jsonl file: lists for all examples."
        ),
    ],
    valid: Annotated[
        float | None, Option(min=0, max=1, help="Share of the conversations for validation. Default: 0.1.")
    ] = None,
    test: Annotated[
        float | None, Option(min=0, max=1, help="Share of the conversations for the test. Default: 0.1.")
    ] = None,
    candidates: Annotated[
        int | None,
        Option(min=2, help="Size of each candidate list. Default: 20, or fewer if there are fewer responses."),
    ] = None,
    speaker: Speaker = None,
    by: Annotated[
        Literal["auto", "time", "id"],
        Option(help="time (the latest are the test part), id (random), or auto (time if every conversation has one)."),
    ] = "auto",
    seed: Annotated[int, Option(min=0, help="Seed of random choices.")] = 0,
    overwrite: Overwrite = False,
    skip_bad: SkipBad = False,
    json_: Json = False,
) -> None:
    """Split conversations into train, valid and test parts with candidate lists, and write a recipe to train with.

    With a .jsonl file as output, only draw candidate lists for the examples of the file.
    """
    from polyrank.data import draw_candidates, split as run, write_examples, write_split
    from polyrank.data.candidate_lists import DEFAULT_N_CANDIDATES
    from polyrank.data.language import not_english
    from polyrank.data.splits import PARTS
    from polyrank.storage.durable import check_output, write_file

    if output.name.endswith((".jsonl", ".jsonl.gz")):
        if (valid, test, by) != (None, None, "auto"):
            raise UsageError(f"--valid, --test and --by need a folder; give one instead of {output}")
        check_output(output, inputs=(file,), overwrite=overwrite)
        lists = draw_candidates(load_examples(file, speaker, skip_bad=skip_bad), candidates, seed=seed, what=str(file))
        write_examples(output, lists)
        if json_:
            print(json.dumps({"n_examples": len(lists), "n_candidates": len(lists[0].candidates)}))
        notify(f"wrote {output}: {len(lists):,} lists of {len(lists[0].candidates)} candidates")
        return
    for target in (*(output / f"{name}.jsonl" for name in PARTS), output / RECIPE):
        check_output(target, inputs=(file,), overwrite=overwrite)
    parts = run(
        file,
        valid=0.1 if valid is None else valid,
        test=0.1 if test is None else test,
        n_candidates=candidates,
        speaker=speaker,
        by=by,
        seed=seed,
        skip_bad=skip_bad,
        notify=notify,
    )
    notify(f"{file}: {parts.report}")
    if warning := not_english("turns", (text for example in parts.train.examples for text in example.context)):
        notify(f"{file}: {warning}")
    if candidates is None and parts.n_candidates < DEFAULT_N_CANDIDATES:
        notify(
            f"lists of {parts.n_candidates} candidates, not {DEFAULT_N_CANDIDATES}: the smaller part has no more"
            " distinct responses"
        )
    write_split(output, parts)
    write_file(output / RECIPE, recipe_of(parts, best_start()).encode())
    if json_:
        print(json.dumps(_counts(parts)))
    else:
        _show(parts)
    notify(f"wrote {output}; next: polyrank train {output / RECIPE}")


def recipe_of(parts: "Split", start: Start) -> str:
    """A recipe for the parts, with the settings of a starting model; all other keys have defaults."""

    named = [name for name in ("train", "valid", "test") if getattr(parts, name).examples]
    data = [f'{name} = "{name}.jsonl"' for name in named]
    if parts.train.conversations[0].dialogues:
        data.append(f"speaker = {json.dumps(parts.speaker or '*', ensure_ascii=False)}")
    settings = starter_recipe(start)
    if any(len(example.candidates) > len(example.relevant) for example in parts.train.examples):
        settings = for_given_negatives(settings)
    return 'output = "run"\n\n[data]\n' + "\n".join(data) + f"\n\n{settings}"


def _counts(parts: "Split") -> dict[str, object]:
    from polyrank.data.splits import PARTS

    result: dict[str, object] = {key: getattr(parts, key) for key in ("by", "speaker", "n_candidates", "n_repeated")}
    for name in PARTS:
        part = getattr(parts, name)
        times = None if part.times is None else [time.isoformat() for time in part.times]
        sizes = {"n_conversations": len(part.conversations), "n_examples": len(part.examples)}
        result[name] = {**sizes, "times": times}
    return result


def _show(parts: "Split") -> None:
    from polyrank.data.splits import PARTS

    by_time = parts.by == "time"
    rows = []
    for name in PARTS:
        part = getattr(parts, name)
        times = [f"{time.astimezone(UTC):%Y-%m-%d %H:%M}" for time in part.times or ()] if by_time else []
        rows.append((name, f"{len(part.conversations):,}", f"{len(part.examples):,}", *times))
    print_table(("part", "conversations", "examples", *(("from (UTC)", "to (UTC)") if by_time else ())), rows)
    how = "by time: the latest are the test part" if by_time else "random by id"
    print(f"{how}; each valid and test example has {parts.n_candidates} candidates from its part")
    if parts.n_repeated:
        print(f"{parts.n_repeated:,} conversations repeat another one word for word and are in the same part")
