"""Models of the Hugging Face hub as local folders, and what must be in such a folder."""

import os
import socket
from pathlib import Path

from polyrank.errors import ArtifactError, ConfigError, OfflineError, UsageError

FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]  # a star stands for folders too
REMEDY = "give a local model folder, or download it where there is a network and copy it here"


def hub_folder(name: str) -> Path:
    """A hub model's files: the local copy if there is one, else a download after a quick look for a network.

    Raises:
        ConfigError: it cannot be a hub name.
        UsageError: the hub has no such model, or gives it to its friends alone.
        OfflineError: there is no earlier download, and no network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=FILES, local_files_only=True))
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass
    if name.count("/") > 1 or name.startswith(("/", ".", "~")):
        raise ConfigError(f"there is no folder {name}; give an existing model folder or a hub name")
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise OfflineError(f"{name} is no folder, nor stored on this machine, and HF_HUB_OFFLINE is set; {REMEDY}")
    try:
        # the hub client itself retries for minutes; a user without a network should know in seconds
        socket.create_connection(("huggingface.co", 443), timeout=3).close()
    except OSError as error:
        raise OfflineError(
            f"{name} is no folder, nor stored on this machine, and the hub cannot be reached; {REMEDY}"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except GatedRepoError as error:
        raise UsageError(f"the hub gives {name} to signed-in users alone; run hf auth login first") from error
    except RepositoryNotFoundError as error:
        raise UsageError(f"there is no folder {name}, and the hub has no such public model; check it") from error
    except Exception as error:  # the client raises many kinds, all meaning: not to be had
        raise OfflineError(f"cannot fetch {name} from the hub ({type(error).__name__}); {REMEDY}") from error


def check_weights(folder: Path) -> None:
    """Refuse a folder of a Hugging Face model whose weights would not be read.

    Raises:
        ArtifactError: it has no .safetensors.
    """
    if any(folder.glob("*.safetensors")):
        return
    if pickles := sorted(folder.glob("*.bin")):
        raise ArtifactError(
            f"{pickles[0]} is a pickle, which can run code and is not read; save the model as .safetensors with"
            " save_pretrained() of transformers"
        )
    raise ArtifactError(f"{folder} holds no .safetensors weights; save the model there with save_pretrained()")
