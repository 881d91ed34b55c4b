"""A trained model on the Hugging Face Hub, where ``hf:OWNER/MODEL`` names it."""

import os
from pathlib import Path
from typing import Any

from polyrank.config.models import CARD, MODEL
from polyrank.errors import OfflineError, UsageError
from polyrank.loading.hub import HUB, connect_to_hub
from polyrank.loading.models import resolve_model
from polyrank.storage.document import check_part, read_document, seal


def push_model(model: str | Path, name: str, *, private: bool = False) -> str:
    """Upload a model folder, verified byte by byte, without its exports and without paths of this machine.

    The weights, the tokenizer and the fingerprint stay the same, so an index that the model filled accepts the copy.

    Args:
        model: the folder of a trained model.
        name: ``hf:OWNER/MODEL``; the repository is created if it does not exist.
        private: whether a new repository is private.

    Returns:
        The address of the commit.

    Raises:
        UsageError: the model consists of several folders, the name is not of the Hub, or the Hub refuses your token.
        ArtifactError: a file of the model is damaged.
        OfflineError: the Hub cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    if not name.startswith(HUB):
        raise UsageError(f"{name} is not a valid Hub name; write hf:OWNER/MODEL")
    reference = resolve_model(model)
    if reference.kind != "trained" or reference.folder is None:
        raise UsageError(
            f"{model} is a {reference.kind} model, which has no weights in one folder; push a trained model"
        )
    document = read_document(reference.folder, MODEL)
    files: dict[str, Any] = {
        part: check_part(reference.folder / part, d, MODEL) for part, d in document["files"].items()
    }
    metadata = without_paths(document["metadata"])
    if str(metadata.get("first_stage_name", "")).startswith(os.curdir):
        del metadata["first_stage_name"]  # a folder of this machine
    files[MODEL.file] = seal({**document, "metadata": metadata}, MODEL)
    if (reference.folder / CARD).is_file():
        files[CARD] = reference.folder / CARD
    api, repository = HfApi(), name.removeprefix(HUB)
    try:
        connect_to_hub()
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(
            repository,
            [CommitOperationAdd(file, content) for file, content in files.items()],
            commit_message=f"polyrank model {document['fingerprint'][:12]}",
        )
    except HFValidationError as error:
        raise UsageError(f"{name} is not a valid Hub name; write hf:OWNER/MODEL") from error
    except LocalTokenNotFoundError as error:
        raise UsageError("the Hub accepts models from signed-in users only; run hf auth login first") from error
    except HfHubHTTPError as error:
        reason = f"{error.response.status_code} {error.server_message or ''}".strip()
        raise UsageError(
            f"the Hub refuses {name} ({reason}); run hf auth login with a token that may write there"
        ) from error
    except Exception as error:  # the client raises many types when a connection fails
        raise OfflineError(
            f"cannot upload to the Hub ({type(error).__name__}); check the network and try again"
        ) from error
    return str(commit.commit_url)


def without_paths(value: Any) -> Any:
    """Metadata in which an absolute path is only its last name.

    >>> without_paths({"recipe": {"output": "/home/me/run", "data": ["/data/train.jsonl", "a/b"]}})
    {'recipe': {'output': 'run', 'data': ['train.jsonl', 'a/b']}}
    """
    match value:
        case dict():
            return {key: without_paths(part) for key, part in value.items()}
        case list():
            return [without_paths(part) for part in value]
        case str() if Path(value).is_absolute():
            return Path(value).name
    return value
