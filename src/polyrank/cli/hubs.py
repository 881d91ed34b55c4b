"""``polyrank hubs``, and the output of ``polyrank info`` for a corrected encoder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyrank.cli.console import notify, report_cut_texts, track, use_processor
from polyrank.cli.examples import load_examples, load_lists
from polyrank.cli.fits import report_gain, show_fit
from polyrank.cli.options import Device, Json, Overwrite, Speaker, Threads, existing_model
from polyrank.errors import UsageError

if TYPE_CHECKING:
    from polyrank.records import Example

MAX_VALID = 500


def hubs(
    model: Annotated[str, Argument(help="An encoder: a model folder, a sum, shipped:minilm.", callback=existing_model)],
    contexts: Annotated[
        Path, Argument(help="Examples whose contexts to compare with: pairs, dialogues or lists, answered or not.")
    ],
    output: Annotated[Path, Option("-o", "--output", help="The folder to make.")],
    valid: Annotated[
        Path | None, Option(help="Candidate lists to choose the weight on; for pairs or dialogues, lists are drawn.")
    ] = None,
    weight: Annotated[
        float | None, Option(min=0, help="The weight of the correction, instead of --valid; usually from 0.5 to 1.")
    ] = None,
    scale: Annotated[
        float | None, Option(help="With --weight: the factor of the scores in the softmax. Default: 1.")
    ] = None,
    max_contexts: Annotated[int, Option(min=1, help="Use a random choice of N contexts.")] = 1000,
    max_valid: Annotated[
        int | None, Option(min=1, help=f"Use the first N validation lists. Default: {MAX_VALID}.")
    ] = None,
    speaker: Speaker = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Correct an encoder for candidates that score high in every context; use the result like any model."""
    from polyrank.data.speakers import speakers_of
    from polyrank.frozen.hubs import choose_contexts, encode_hubs, fit_hubs
    from polyrank.loading.folders import HUBS
    from polyrank.loading.models import check_apart, resolve_encoder
    from polyrank.scorers.hubs import save_hubs
    from polyrank.scorers.open import open_encoder
    from polyrank.storage.durable import check_replaceable

    use_processor(threads)
    if (valid is None) == (weight is None):
        raise UsageError("give either --valid FILE, to choose the weight on, or --weight, such as --weight 1")
    for name, value, other in (("max-valid", max_valid, valid), ("scale", scale, weight)):
        if value is not None and other is None:
            needed = "--valid" if name == "max-valid" else "--weight"
            raise UsageError(f"--{name} {value} applies with {needed}; give it, or leave --{name} out")
    reference = resolve_encoder(model)
    check_apart(output, [reference])
    check_replaceable(output, own_files=HUBS.files, replace=overwrite)
    chosen = choose_contexts(load_examples(contexts, speaker), max_contexts)
    lists: list[Example] = []
    if valid is not None:
        spoken = speaker if speakers_of(valid) is not None else None  # lists have no speakers
        lists = load_lists(valid, spoken)[: max_valid or MAX_VALID]
    encoder = open_encoder(reference, device=device)
    figures = {"contexts": contexts.name, "n_contexts": len(chosen)}
    if valid is None:
        corrected = encode_hubs(
            encoder,
            chosen,
            weight=weight or 0.0,
            scale=1.0 if scale is None else scale,
            progress=track,
        )
    else:
        corrected, fitted = fit_hubs(encoder, chosen, lists, progress=track)
        figures |= {"valid": valid.name, **fitted}
    save_hubs(output, corrected, name=model, metadata=figures, replace=overwrite)
    report_cut_texts(corrected)
    notify(f"wrote {output}; next: polyrank index build {output} REPLIES -o INDEX")
    if valid is not None:
        report_gain(fitted["gain"], model, "the correction may be no better")
    show_hubs(output, json_=json_)


def show_hubs(path: Path, *, json_: bool) -> None:
    """Print the encoder, the weight, and the figures of the validation."""
    from polyrank.loading.folders import read_model
    from polyrank.loading.models import resolved_name

    _, document = read_model(path)
    encoder, metadata = resolved_name(document["encoder"], path), document["metadata"]
    if json_:
        named = {"kind": "hubs", "fingerprint": document["fingerprint"], "encoder": encoder}
        print(json.dumps({**named, "weight": document["weight"], "scale": document["scale"], **metadata}))
        return
    print(f"{path}: {encoder} corrected for hubs, fingerprint {document['fingerprint']}")
    print(
        f"weight {document['weight']:g}, scale {document['scale']:g}, {metadata['n_contexts']:,} contexts of"
        f" {metadata['contexts']}"
    )
    if "parts" in metadata:
        show_fit(metadata)
