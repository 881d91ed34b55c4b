"""``polyrank repetition``, and the output of ``polyrank info`` for its re-ranker."""

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from polyrank.cli.console import notify, report_cut_texts, track, use_processor
from polyrank.cli.examples import load_lists
from polyrank.cli.fits import report_gain, show_fit
from polyrank.cli.options import Device, Json, Overwrite, Speaker, Threads, existing_model
from polyrank.errors import UsageError

MAX_VALID = 2000


def repetition(
    model: Annotated[
        str,
        Argument(help="The first stage: a model folder, a sum, shipped:minilm.", callback=existing_model),
    ],
    output: Annotated[Path, Option("-o", "--output", help="The folder to make.")],
    valid: Annotated[
        Path | None,
        Option(help="Candidate lists to choose all numbers on; for pairs or dialogues, lists are drawn."),
    ] = None,
    penalty: Annotated[
        float | None, Option(help="Subtract this from replies that repeat a turn, instead of --valid; for example 5.")
    ] = None,
    overlap: Annotated[
        float | None, Option(help="With --penalty: add this, times the share of words in common. Default: 0.")
    ] = None,
    match: Annotated[
        float | None,
        Option(help="With --penalty: add this, times the rarity of words in common with the newest turn. Default: 0."),
    ] = None,
    earlier: Annotated[
        float | None, Option(help="With --penalty: the same for words in common only with turns before. Default: 0.")
    ] = None,
    words: Annotated[
        Path | None, Option(help="With --match or --earlier: replies, in which a rare word is in few.")
    ] = None,
    rerank: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="Another second stage, such as a late Cross-encoder, to add to.",
            callback=existing_model,
        ),
    ] = None,
    max_valid: Annotated[
        int | None, Option(min=1, help=f"Use the first N validation lists. Default: {MAX_VALID}.")
    ] = None,
    speaker: Speaker = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Make a second stage that compares the words of replies and turns; use the result as --rerank."""
    from polyrank.data import read_pool
    from polyrank.frozen.repetition import fit_repetition
    from polyrank.loading.folders import REPETITION
    from polyrank.loading.models import check_apart, resolve_encoder, resolve_model
    from polyrank.scorers.open import load_stage, open_encoder
    from polyrank.scorers.repetition import Repetition, Words, save_repetition
    from polyrank.scorers.two_stage import ensemble_of
    from polyrank.storage.durable import check_replaceable

    use_processor(threads)
    if (valid is None) == (penalty is None):
        raise UsageError("give either --valid FILE, to choose all numbers on, or --penalty, such as --penalty 5")
    by_hand = {"overlap": overlap, "match": match, "earlier": earlier, "words": words}
    for name, value, other in (
        *((name, value, "penalty" if penalty is None else None) for name, value in by_hand.items()),
        ("max-valid", max_valid, "valid" if valid is None else None),
        ("speaker", speaker, "valid" if valid is None else None),
    ):
        if value is not None and other is not None:
            raise UsageError(f"--{name} {value} applies with --{other}; give it, or leave --{name} out")
    if (match or earlier) and words is None:
        raise UsageError("--match and --earlier need --words FILE, replies of the same kind")
    if words is not None and not (match or earlier):
        raise UsageError(f"--words {words} is for --match and --earlier; give one of them, or leave --words out")
    reference = resolve_encoder(model)
    check_apart(output, [reference, *([] if rerank is None else [resolve_model(rerank)])])
    check_replaceable(output, own_files=REPETITION.files, replace=overwrite)
    lists = [] if valid is None else load_lists(valid, speaker)[: max_valid or MAX_VALID]
    encoder = open_encoder(reference, device=device)
    second = None if rerank is None else load_stage(rerank, device=device)
    figures: dict[str, Any] = {}
    if valid is None:
        if second is not None and ensemble_of(encoder.fingerprint, second, None) is None:
            raise UsageError(f"{rerank} ranks alone, and how to weigh it is not known; give --valid LISTS")
        stage = Repetition(
            penalty=penalty or 0.0,
            overlap=overlap or 0.0,
            match=match or 0.0,
            earlier=earlier or 0.0,
            words=None if words is None else Words.of(candidate.text for candidate in read_pool(words)),
            corrects=encoder.fingerprint,
            reranker=second,
        )
    else:
        stage, fitted = fit_repetition(encoder, lists, reranker=second, progress=track)
        figures = {"valid": valid.name, **fitted}
        if second is not None and stage.reranker is None:
            notify(f"{rerank} adds nothing on these lists, so {output} is made without it")
    save_repetition(output, stage, encoder=model, metadata=figures, replace=overwrite)
    report_cut_texts(encoder)
    notify(f"wrote {output}; next: polyrank evaluate {model} LISTS --rerank {output}")
    if valid is not None:
        report_gain(figures["gain"], model, "the second stage may be no better")
    show_repetition(output, json_=json_)


def show_repetition(path: Path, *, json_: bool) -> None:
    """Print the encoder, the numbers, and the figures of the validation."""
    from polyrank.loading.folders import read_model
    from polyrank.loading.models import resolved_name
    from polyrank.scorers.repetition import NUMBERS

    _, document = read_model(path)
    encoder, metadata = resolved_name(document["encoder"], path), document["metadata"]
    numbers = {name: document[name] for name in NUMBERS if name in document}
    if other := document.get("reranker"):
        other["model"] = resolved_name(other["model"], path)
        numbers["reranker"] = other
    if json_:
        named = {"kind": "repetition", "fingerprint": document["fingerprint"], "encoder": encoder}
        print(json.dumps({**named, **numbers, **metadata}))
        return
    print(f"{path}: a second stage of {encoder}, fingerprint {document['fingerprint']}")
    print(f"{numbers['overlap']:+g} times the words in common, {0.0 - numbers['penalty']:+g} for a repeated turn")
    if "match" in numbers:
        print(
            f"{numbers['match']:+g} times the rarity of words in common with the newest turn or the background,"
            f" {numbers['earlier']:+g} with earlier turns"
        )
    if other:
        print(f"{other['weight']:+g} times the score of {other['model']}")
    if metadata:
        show_fit(metadata)
        print(
            f"in {metadata['n_echo']:,} of these lists a candidate repeats a turn, in"
            f" {metadata['n_echo_right']:,} a right one does"
        )
