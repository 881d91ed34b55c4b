"""``polyrank average``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import notify
from polyrank.cli.options import Overwrite
from polyrank.cli.progress import numbers
from polyrank.errors import UsageError


def average(
    models: Annotated[
        list[str], Argument(metavar="MODEL...", help="Two or more model folders, trained from the same start.")
    ],
    output: Annotated[Path, Option("-o", "--output", help="The model folder to make.")],
    weights: Annotated[
        str | None, Option(metavar="1,0.7", help="The weight of each model's weights. Default: equal.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Average the weights of models that were trained from the same start into one model, which is as fast as each."""
    from polyrank.loading.models import portable_name, resolve_model
    from polyrank.models.artifacts import MODEL_FILES, load_model, save_model
    from polyrank.models.averaging import average as average_models
    from polyrank.ranking.weights import check_weights
    from polyrank.storage.durable import check_replaceable

    check_replaceable(output, own_files=MODEL_FILES, replace=overwrite)
    given = [1.0] * len(models) if weights is None else numbers(weights, float, "--weights")
    check_weights(given, len(models), "an average", "models")
    references = [resolve_model(name) for name in models]
    if other := next((one for one in references if one.kind != "trained" or one.folder is None), None):
        raise UsageError(f"{other.name} is not a model folder that has weights; average the folders of models")
    whole = average_models([load_model(one.folder) for one in references if one.folder], given, models)
    for part in whole.metadata["average"]:
        part["model"] = portable_name(part["model"], output)
    metadata = dict(whole.metadata)
    if first_stage := references[0].first_stage:
        metadata["first_stage_name"] = portable_name(first_stage, output)
    fingerprint = save_model(output, whole.model, whole.texts, whole.config, metadata=metadata, replace=overwrite)
    notify(f"wrote {output}: fingerprint {fingerprint[:12]}; next: polyrank evaluate {models[0]} {output} LISTS")
