"""Downloads models from the Hugging Face Hub into local folders."""

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from polyrank.errors import OfflineError, UsageError

HUB = "hf:"
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]  # in these patterns the star also matches slashes
REMEDY = "give a local model folder, or download the model on a machine with a network and copy it here"


def hub_name(name: str, *, bare: bool = True) -> str | None:
    """The Hub model that a name means, or None if the name means something else.

    ``hf:OWNER/MODEL`` and ``hf:OWNER/MODEL@REVISION`` always mean the Hub, and a path such as ``./a/b`` never does.
    ``OWNER/MODEL`` means the Hub only if neither that path nor a folder OWNER exists.

    Args:
        name: as the user gave it.
        bare: whether a name without ``hf:`` may mean the Hub.

    >>> hub_name("hf:owner/model"), hub_name("owner/model"), hub_name("owner/model", bare=False), hub_name("./a/b")
    ('owner/model', 'owner/model', None, None)
    """
    if name.startswith(HUB):
        return name.removeprefix(HUB)
    free = bare and bool(_NAME.fullmatch(name)) and not Path(name).exists() and not Path(name).parent.is_dir()
    return name if free else None


def connect_to_hub() -> None:
    """Check in 3 seconds that the Hub can be reached, or else its proxy, because huggingface_hub retries for minutes.

    Raises:
        OSError: it cannot.
    """
    from huggingface_hub import constants

    hub = urlsplit(constants.ENDPOINT)
    proxies = getproxies()
    if (proxy := proxies.get(hub.scheme) or proxies.get("all")) and not proxy_bypass(hub.hostname or ""):
        hub = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    port = hub.port or (443 if hub.scheme == "https" else 80)
    socket.create_connection((hub.hostname or "", port), timeout=3).close()


def hub_folder(name: str) -> Path:
    """The local copy of a model on the Hub, downloaded if necessary.

    A bare name may be a mistyped path, so stderr reports the look-up before it starts.

    Raises:
        UsageError: the Hub does not have the model, or gives it only to signed-in users.
        OfflineError: the model has not been downloaded, and the network is not reachable.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError as AbsentError,
        RevisionNotFoundError,
    )

    if not name.startswith(HUB):
        print(f"{name} is not a local folder; looking it up on the Hugging Face Hub", file=sys.stderr, flush=True)
    model, _, revision = name.removeprefix(HUB).partition("@")
    wanted: dict[str, Any] = {"revision": revision or None, "allow_patterns": FILES}
    try:
        folder = Path(snapshot_download(model, **wanted, local_files_only=True))
        if any(folder.rglob("*.safetensors")):  # other programs may have left only the small files
            return folder
    except HFValidationError as error:
        raise UsageError(f"{name} is not a valid Hub name; write hf:OWNER/MODEL") from error
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass
    absent = f"{name} is not a local folder and has not been downloaded"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):  # as its library reads it
        raise OfflineError(f"{absent}, and HF_HUB_OFFLINE is set; {REMEDY}")
    try:
        connect_to_hub()
    except OSError as error:
        raise OfflineError(f"{absent}, and the Hub cannot be reached; {REMEDY}") from error
    try:
        return Path(snapshot_download(model, **wanted))
    except GatedRepoError as error:
        raise UsageError(f"the Hub gives {name} only to signed-in users; run hf auth login first") from error
    except RevisionNotFoundError as error:
        raise UsageError(f"the Hub does not have revision {revision!r} of {model}; check the revision") from error
    except AbsentError as error:
        raise UsageError(
            f"folder {name} does not exist, and the Hub has no public model of that name; check the name"
        ) from error
    except Exception as error:  # the client raises many types when a download fails
        raise OfflineError(f"cannot download {name} from the Hub ({type(error).__name__}); {REMEDY}") from error
