"""``polyrank sum``, and the output of ``polyrank info`` for a sum."""

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import notify, print_table, report_cut_texts, track, use_processor
from polyrank.cli.examples import load_lists
from polyrank.cli.fits import report_gain
from polyrank.cli.options import Device, Json, Overwrite, Speaker, Threads
from polyrank.cli.progress import numbers
from polyrank.errors import UsageError

MAX_VALID = 500


def sum_(
    models: Annotated[
        list[str],
        Argument(metavar="MODEL...", help="Two or more encoders: model folders, shipped:convert, untuned:BACKBONE."),
    ],
    output: Annotated[Path, Option("-o", "--output", help="The sum's folder to make.")],
    valid: Annotated[
        Path | None, Option(help="Candidate lists to choose the weights on; for pairs or dialogues, lists are drawn.")
    ] = None,
    weights: Annotated[
        str | None, Option(metavar="1,0.7", help="The weight of each encoder's scores, instead of --valid.")
    ] = None,
    speaker: Speaker = None,
    max_valid: Annotated[
        int | None, Option(min=1, help=f"Use the first N validation lists. Default: {MAX_VALID}.")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Combine encoders into one whose score is the weighted sum of theirs; use the result like any model."""
    from polyrank.loading.folders import SUM
    from polyrank.loading.models import check_apart, resolve_encoder
    from polyrank.ranking.weights import check_weights
    from polyrank.scorers.open import open_encoder
    from polyrank.scorers.summed import SumEncoder, check_parts, save_sum
    from polyrank.storage.durable import check_replaceable

    use_processor(threads)
    if (valid is None) == (weights is None):
        raise UsageError("give either --valid FILE, to choose the weights on, or --weights, such as --weights 1,0.7")
    for name, value in {"speaker": speaker, "max-valid": max_valid}.items():
        if valid is None and value is not None:
            raise UsageError(f"--{name} {value} applies to validation lists; give them with --valid, or leave it out")
    given = [1.0] * len(models) if weights is None else numbers(weights, float, "--weights")
    check_weights(given, len(models), "a sum", "encoders")
    references = [resolve_encoder(name) for name in models]
    check_apart(output, references)
    check_replaceable(output, own_files=SUM.files, replace=overwrite)
    examples = [] if valid is None else load_lists(valid, speaker)[: max_valid or MAX_VALID]
    encoders = [open_encoder(reference, device=device) for reference in references]
    check_parts(output, encoders)
    if valid is None:
        save_sum(output, SumEncoder(encoders, given), replace=overwrite)
    else:
        from polyrank.frozen.sums import fit_sum

        encoder, figures = fit_sum(encoders, examples, progress=track)
        save_sum(output, encoder, metadata={"valid": valid.name, **figures}, replace=overwrite)
        report_cut_texts(encoder)
        for number in figures["idle"]:
            notify(f"{models[number]} adds nothing to the others on these lists; a sum without it ranks the same")
        report_gain(figures["gain"], models[figures["gain"]["over"]], "the sum may be no better, and it is slower")
    show_sum(output, json_=json_)


def show_sum(path: Path, *, json_: bool) -> None:
    """Print the encoders of a sum with their weights, and the figures of the validation."""
    from polyrank.loading.models import read_sum

    document = read_sum(path)
    metadata = document["metadata"]
    if json_:
        print(json.dumps({"kind": "sum", **document}))
        return
    chosen = "parts" in metadata  # by polyrank sum; a training stores other metadata
    shown = ("R@1", "MRR") if chosen else ()
    figures = [*metadata["parts"], metadata["sum"]] if chosen else [{}] * (len(document["parts"]) + 1)
    rows = [(part["model"], part["fingerprint"][:12], f"{part['weight']:g}") for part in document["parts"]]
    rows.append(("sum", document["fingerprint"][:12], ""))
    how = f", weights chosen on {metadata['n_valid']:,} lists of {metadata['valid']}" if chosen else ""
    if "recipe" in metadata:
        validation = metadata["validation"]
        validated = ", ".join(f"{name} {validation[name]:.4f}" for name in ("loss", "R@1", "MRR") if validation)
        how = f", trained together{validated and f'; validation {validated}'}"
    print(f"{path}: sum, fingerprint {document['fingerprint']}{how}")
    with_figures = [(*row, *(f"{own[name]:.4f}" for name in shown)) for row, own in zip(rows, figures, strict=True)]
    print_table(("encoder", "fingerprint", "weight", *shown), with_figures, n_left=2)
