"""recipe.json of a run folder: the recipe, and digests of what else a resumed run must share with its start."""

import hashlib
from collections.abc import Sequence
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

RECIPE = DocumentKind(
    name="run folder",
    file="recipe.json",
    missing="check the path",
    remedy="train again with `overwrite=True`",
)
EXAMPLES = "examples"  # the digest of the training examples
FIXED = "fixed_model"  # the fingerprint of the teacher or first stage
LOSS = "loss"  # the name of the caller's loss; empty: polyrank's
STARTS = "starts"  # for each model that training starts from: the digest of what checkpoints do not hold of it


def read_run_recipe(folder: Path) -> Recipe:
    """The recipe that a run was started with; settings that are newer than the file have their defaults.

    Raises:
        ConfigError: this version does not accept it.
    """
    document = read_document(folder, RECIPE)
    for name in (EXAMPLES, FIXED, LOSS, STARTS):
        document.pop(name, None)
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
    plan: TrainingPlan, examples: Sequence[Example], loss: LossFunction | None = None, *, resumed: Path | None
) -> dict[str, Any]:
    """The document of a run.

    Args:
        plan: of the run.
        examples: to train on.
        loss: the caller's; None: polyrank's.
        resumed: the folder of the run that it resumes; None: it starts.

    Raises:
        ConfigError: the resumed run was started with other examples or another loss, or with another model of the same
            name where both would be mixed.
    """
    began = {} if resumed is None or not has_document(resumed, RECIPE) else read_document(resumed, RECIPE)
    digest = examples_digest(examples)
    check_same_examples(str(began.get(EXAMPLES, "")), digest, resumed)
    if began and began[LOSS] != name_of(loss):
        before, now = (name or "polyrank's" for name in (began[LOSS], name_of(loss)))
        raise ConfigError(
            f"the loss, {now}, is not that of {resumed}, {before}; use the same, or start again with `overwrite=True`"
        )
    method = plan.recipe.train.method
    name = getattr(method, "teacher", method.corrects)
    # it is empty without a fixed model, or if it is computed on opening
    fingerprint = "" if name is None else resolve_model(name, bare_hub_names=False).fingerprint
    _check_same_model(name, str(began.get(FIXED, "")), fingerprint, resumed)
    starts = _start_digests(plan)
    for (folder, now), before in zip(starts.items(), began.get(STARTS, ()), strict=False):
        _check_same_model(folder, before, now, resumed)
    return recipe_to_dict(plan.recipe) | {
        EXAMPLES: digest,
        FIXED: fingerprint,
        LOSS: name_of(loss),
        STARTS: [*starts.values()],
    }


def _start_digests(plan: TrainingPlan) -> dict[Path, str]:
    """Digests of the models that training starts from: of the vocabulary alone if checkpoints hold all weights."""
    digests = {}
    for network in plan.networks:
        all_trained = network.train.train_layers == "all"
        if (folder := network.start) is not None:
            if not folder.resolve().is_relative_to(plan.output.resolve()):  # a model of this run keeps both
                document = read_document(folder, MODEL)
                digests[folder] = document["files"]["tokenizer.json"] if all_trained else document["fingerprint"]
        elif (folder := Path(getattr(network.model, "backbone", ""))).is_dir():
            digests[folder] = _backbone_digest(folder, with_weights=not all_trained)
    return digests


def _backbone_digest(folder: Path, *, with_weights: bool) -> str:
    """The digest of a backbone's vocabulary, and of its weights if checkpoints do not hold all of them."""
    patterns = ["tokenizer.json", "vocab.*", *(["*.safetensors"] if with_weights else [])]
    files = sorted(file for pattern in patterns for file in folder.glob(pattern))
    return hashlib.sha256("".join(map(sha256_file, files)).encode()).hexdigest()


def _check_same_model(name: object, before: str, now: str, resumed: Path | None) -> None:
    """Refuse to resume a run with another model of the same name; an empty digest is unknown."""
    if before and now and before != now:
        raise ConfigError(
            f"{name} is now another model ({now[:12]}) than {resumed} was started with ({before[:12]}); restore that"
            " one, or start again with `overwrite=True`"
        )


def check_same_examples(before: str, digest: str, folder: Path | None) -> None:
    """Refuse to resume a run with other training examples.

    Args:
        before: their digest at the start of the run; empty: it starts.
        digest: their digest now.
        folder: of the run.

    Raises:
        ConfigError: they differ.
    """
    if before and len(before) == len(digest) and before != digest:  # with and without data.cache they are not alike
        raise ConfigError(
            f"the training examples differ from those that {folder} was started with; use the same, or start"
            " again with `overwrite=True`"
        )
