"""``polyrank map``: a trained linear map of response vectors on a frozen encoder, the MAP baseline."""

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import notify, use_processor
from polyrank.cli.options import Device, Json, Overwrite, Speaker, Threads, existing_model
from polyrank.cli.progress import WorkDisplay, numbers


def map_(
    data: Annotated[Path, Argument(help="Training examples: pairs, dialogues or candidate lists.")],
    valid: Annotated[Path, Option(help="Candidate lists that select the settings and the stopping point.")],
    output: Annotated[Path, Option("-o", "--output", help="The map's folder to make.")],
    encoder: Annotated[
        str,
        Option(
            help="A model folder, untuned:BACKBONE or shipped:convert; its weights do not change.",
            callback=existing_model,
        ),
    ] = "untuned:embedded",
    speaker: Speaker = None,
    max_train: Annotated[int | None, Option(min=2, help="Use a random subset of N pairs.")] = 20_000,
    max_valid: Annotated[int | None, Option(min=1, help="Use the first N validation lists.")] = 500,
    lr: Annotated[str, Option(help="Learning rates to try.")] = "3e-3,1e-3,3e-4",
    l2: Annotated[str, Option(help="Weights of the decay towards the identity to try.")] = "1e-2,3e-3",
    batch_size: Annotated[int, Option(min=2, help="Pairs per step.")] = 256,
    max_epochs: Annotated[int, Option(min=0, help="Maximum number of epochs.")] = 40,
    seed: Annotated[int, Option(min=0, help="Seed of the order of the pairs.")] = 1,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Fit a linear map of response vectors on a frozen encoder; use the result like any model."""
    from polyrank.config.recipe import DataConfig
    from polyrank.frozen.maps import MapConfig, fit_response_map
    from polyrank.loading.folders import MAP
    from polyrank.loading.models import check_apart, resolve_model
    from polyrank.scorers.mapped import save_map
    from polyrank.scorers.open import load_frozen
    from polyrank.storage.durable import check_replaceable
    from polyrank.training.data import load_data

    use_processor(threads)
    check_apart(output, [resolve_model(encoder)])
    check_replaceable(output, own_files=MAP.files, replace=overwrite)
    config = MapConfig(
        lr=tuple(numbers(lr, float, "--lr")),
        l2=tuple(numbers(l2, float, "--l2")),
        batch_size=batch_size,
        max_epochs=max_epochs,
        seed=seed,
    )
    settings = DataConfig(train=str(data), valid=str(valid), speaker=speaker, max_train=max_train, max_valid=max_valid)
    examples, lists = load_data(settings, notify=notify, option="--speaker")
    frozen = load_frozen(encoder, "map", device=device)
    with WorkDisplay() as display:
        encoder_with_map, figures = fit_response_map(frozen, examples, lists, config, report=display.report)
    figures = {"encoder": encoder, "data": data.name, **figures}
    save_map(output, encoder_with_map, name=encoder, metadata=figures, replace=overwrite)
    if json_:
        print(json.dumps(figures))
        return
    notify(
        f"{output}: validation R@1 {figures['map']:.4f}, without the map {figures['similarity']:.4f}, on"
        f" {figures['n_valid']:,} lists; fitted on {figures['n_train']:,} pairs"
    )


def show_map(path: Path, *, json_: bool) -> None:
    """Print the encoder, and the figures of the validation."""
    from polyrank.loading.folders import read_model
    from polyrank.loading.models import resolved_name
    from polyrank.scorers.open import load_encoder

    _, document = read_model(path)
    encoder, metadata = resolved_name(document["encoder"], path), document["metadata"]
    fingerprint = load_encoder(path, device="cpu").fingerprint  # depends on the encoder and the matrix
    if json_:
        print(json.dumps({**metadata, "kind": "map", "fingerprint": fingerprint, "encoder": encoder}))
        return
    print(f"{path}: a map of {encoder}'s response vectors, fingerprint {fingerprint}")
    if "map" in metadata:
        print(
            f"validation R@1 {metadata['map']:.4f}, without the map {metadata['similarity']:.4f}, on"
            f" {metadata['n_valid']:,} lists; fitted on {metadata['n_train']:,} pairs"
        )
