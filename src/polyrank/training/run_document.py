"""recipe.json of a run folder: the recipe, and digests of what else a resumed run must share with its start."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyrank.config.recipe import Recipe, recipe_from_dict, recipe_to_dict
from polyrank.errors import ConfigError
from polyrank.loading.models import resolve_model
from polyrank.records import Example
from polyrank.storage.document import DocumentKind, has_document, read_document
from polyrank.training.data import examples_digest

RECIPE = DocumentKind(
    name="run folder",
    file="recipe.json",
    missing="check the path",
    remedy="train again with `overwrite=True`",
    seal_optional=True,
)
EXAMPLES = "examples"  # the digest of the training examples
FIXED = "fixed_model"  # the fingerprint of the teacher or first stage


def read_run_recipe(folder: Path) -> Recipe:
    """The recipe that a run was started with; settings that are newer than the file have their defaults.

    Raises:
        ConfigError: this version does not accept it.
    """
    document = read_document(folder, RECIPE)
    for name in (EXAMPLES, FIXED):
        document.pop(name, None)
    try:
        return recipe_from_dict(document)
    except ConfigError as error:
        raise ConfigError(
            f"{folder / RECIPE.file} is not valid in this version ({error}); start again with `overwrite=True`"
        ) from error


def run_document(recipe: Recipe, examples: Sequence[Example], *, resumed: Path | None) -> dict[str, Any]:
    """The document of a run.

    Args:
        recipe: of the run.
        examples: to train on.
        resumed: the folder of the run that it resumes; None: it starts.

    Raises:
        ConfigError: the resumed run was started with other examples, or with another teacher or first stage of the
            same name.
    """
    began = {} if resumed is None or not has_document(resumed, RECIPE) else read_document(resumed, RECIPE)
    digest = examples_digest(examples)
    check_same_examples(str(began.get(EXAMPLES, "")), digest, resumed)
    name = getattr(recipe.train.method, "teacher", recipe.train.method.corrects)
    # it is empty without a fixed model, or if it is computed on opening
    fingerprint = "" if name is None else resolve_model(name, bare_hub_names=False).fingerprint
    if fingerprint and (known := str(began.get(FIXED, ""))) and known != fingerprint:
        raise ConfigError(
            f"{name} is now another model ({fingerprint[:12]}) than {resumed} was started with ({known[:12]});"
            " restore that one, or start again with `overwrite=True`"
        )
    return recipe_to_dict(recipe) | {EXAMPLES: digest, FIXED: fingerprint}


def check_same_examples(known: str, digest: str, folder: Path | None) -> None:
    """Refuse to resume a run with other training examples.

    Args:
        known: their digest at the start of the run; empty if an earlier version started it.
        digest: their digest now.
        folder: of the run.

    Raises:
        ConfigError: they differ.
    """
    if known and len(known) == len(digest) and known != digest:  # with and without data.cache they are not alike
        raise ConfigError(
            f"the training examples differ from those that {folder} was started with; use the same, or start"
            " again with `overwrite=True`"
        )
