"""recipe.json of a run folder: the recipe, and what else a resumed run must share with its start."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrank.config.models import MODEL
from polyrank.config.recipe import Recipe, recipe_from_dict, recipe_to_dict
from polyrank.errors import ConfigError
from polyrank.loading.models import resolve_model
from polyrank.loading.recipes import TrainingPlan
from polyrank.models.losses import LossFunction
from polyrank.records import Example
from polyrank.storage.document import DocumentKind, has_document, read_document
from polyrank.storage.durable import sha256_file
from polyrank.training.data import examples_digest

RECIPE = DocumentKind(name="run folder", file="recipe.json", remedy="train again with `overwrite=True`")
INPUTS = "inputs"
"""The table of digests of data and models, and of the name of the loss: they decide a run's result with the recipe."""


def read_run_recipe(folder: Path) -> Recipe:
    """The recipe that a run was started with; settings that are newer than the file have their defaults.

    Raises:
        ConfigError: this version does not accept it.
    """
    document = read_document(folder, RECIPE)
    document.pop(INPUTS)
    try:
        return recipe_from_dict(document)
    except ConfigError as error:
        raise ConfigError(
            f"{folder / RECIPE.file} is not valid in this version ({error}); start again with `overwrite=True`"
        ) from error


def name_of(loss: LossFunction | None) -> str:
    """The name of a loss, by its function or class; empty for polyrank's.

    >>> from polyrank.models.losses import cross_entropy
    >>> name_of(cross_entropy), name_of(None)
    ('polyrank.models.losses.cross_entropy', '')
    """
    if loss is None:
        return ""
    named: Any = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{named.__module__}.{named.__qualname__}"


def run_document(
    plan: TrainingPlan,
    examples: Sequence[Example],
    loss: LossFunction | None = None,
    *,
    valid: Sequence[Example] = (),
    resumed: Path | None,
) -> dict[str, Any]:
    """The document of a run.

    Args:
        plan: of the run.
        examples: to train on.
        valid: validation lists, which choose the best step.
        loss: the caller's; None: polyrank's.
        resumed: the folder of the run that it resumes; None: it starts.

    Raises:
        ConfigError: the resumed run was started with other examples or another loss, or with another model of the same
            name where both would be mixed.
    """
    # with and without data.cache the digests of the same examples are not alike
    part = "the training examples" + (" of data.cache" if plan.recipe.data.cache else "")
    inputs = {part: examples_digest(examples), "the loss": name_of(loss) or "polyrank's", **_start_digests(plan)}
    if valid:
        inputs["the validation examples"] = examples_digest(valid)
    method = plan.recipe.train.method
    if (name := getattr(method, "teacher", method.corrects)) is not None:
        inputs[name] = resolve_model(name, bare_hub_names=False).fingerprint  # empty if it is computed on opening
    if resumed is not None and has_document(resumed, RECIPE):
        check_same_inputs(read_document(resumed, RECIPE)[INPUTS], inputs, resumed)
    return recipe_to_dict(plan.recipe) | {INPUTS: inputs}


def check_same_inputs(before: Mapping[str, str], now: Mapping[str, str], folder: Path) -> None:
    """Refuse to resume a run with other examples, another loss or another model of the same name.

    Args:
        before: the inputs at the start of the run.
        now: its inputs now; an empty digest is unknown.
        folder: of the run.

    Raises:
        ConfigError: they differ.
    """
    for name, digest in now.items():
        if (earlier := before.get(name)) and digest and earlier != digest:
            raise ConfigError(
                f"{name} changed since {folder} was started: from {earlier:.40} to {digest:.40}; use the same as then,"
                " or start again with `overwrite=True`"
            )


def _start_digests(plan: TrainingPlan) -> dict[str, str]:
    """Digests of the models that training starts from: of the vocabulary alone if checkpoints hold all weights."""
    digests, train = dict[str, str](), plan.recipe.train
    for network in plan.networks:
        all_trained = network.train.train_layers == "all" and not (train.lora_rank or network.model.kind == "late")
        if (folder := network.start) is not None:
            if not folder.resolve().is_relative_to(plan.output.resolve()):  # a model of this run keeps both
                document = read_document(folder, MODEL)
                digests[str(folder)] = document["files"]["tokenizer.json"] if all_trained else document["fingerprint"]
        elif (folder := Path(getattr(network.model, "backbone", ""))).is_dir():
            digests[str(folder)] = backbone_digest(folder, with_weights=not all_trained)
    return digests


def backbone_digest(folder: Path, *, with_weights: bool) -> str:
    """The digest of a backbone's vocabulary, and of its weights if checkpoints do not hold all of them."""
    patterns = ["tokenizer.json", "vocab.*", *(["*.safetensors"] if with_weights else [])]
    files = sorted(file for pattern in patterns for file in folder.glob(pattern))
    return hashlib.sha256("".join(map(sha256_file, files)).encode()).hexdigest()
