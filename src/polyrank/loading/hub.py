"""Models of the Hugging Face Hub as local folders."""

import os
import re
import socket
import sys
from pathlib import Path

from polyrank.errors import OfflineError, UsageError

HUB = "hf:"
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]  # a star stands for folders too
REMEDY = "give a local model folder, or download it where there is a network and copy it here"


def hub_name(name: str, *, bare: bool = True) -> str | None:
    """The model of the Hub that a name means; None: it means something else.

    ``hf:OWNER/MODEL`` is always the Hub, a path such as ``./a/b`` never. ``OWNER/MODEL`` is the Hub where no folder of
    that name could be: where neither it nor the folder OWNER is here.

    Args:
        name: as the user gave it.
        bare: whether a name without ``hf:`` may be the Hub.

    >>> hub_name("hf:owner/model"), hub_name("owner/model"), hub_name("owner/model", bare=False), hub_name("./a/b")
    ('owner/model', 'owner/model', None, None)
    """
    if name.startswith(HUB):
        return name.removeprefix(HUB)
    free = bare and bool(_NAME.fullmatch(name)) and not Path(name).exists() and not Path(name).parent.is_dir()
    return name if free else None


def hub_folder(name: str) -> Path:
    """The files of a name that ``hub_name`` takes for the Hub: the local copy if there is one, else a download.

    A bare name is announced on stderr before anything is looked up, since it may be a mistyped path.

    Raises:
        UsageError: the Hub has no such model, or gives it to signed-in users alone.
        OfflineError: there is no earlier download, and no network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError as AbsentError

    if not name.startswith(HUB):
        print(f"{name} is not a folder here; looking it up on the Hugging Face Hub", file=sys.stderr, flush=True)
    model = name.removeprefix(HUB)
    try:
        return Path(snapshot_download(model, allow_patterns=FILES, local_files_only=True))
    except HFValidationError as error:
        raise UsageError(f"{name} is no name of the Hub; write hf:OWNER/MODEL") from error
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass
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
        return Path(snapshot_download(model, allow_patterns=FILES))
    except GatedRepoError as error:
        raise UsageError(f"the hub gives {name} to signed-in users alone; run hf auth login first") from error
    except AbsentError as error:
        raise UsageError(f"there is no folder {name}, and the hub has no such public model; check it") from error
    except Exception as error:  # the client raises many kinds, all meaning: not to be had
        raise OfflineError(f"cannot fetch {name} from the hub ({type(error).__name__}); {REMEDY}") from error
