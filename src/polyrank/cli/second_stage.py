"""A hint at the second stage that ships for an index's encoder."""

from pathlib import Path

from polyrank.cli.console import notify


def suggest_second_stage(index: str | Path, command: str) -> None:
    """Name the second stage that corrects the encoder of an index, if it is installed.

    Args:
        index: an index folder; anything else has no hint.
        command: how to use it, with {} for its name.

    Raises:
        ArtifactError: the index is damaged.
    """
    from polyrank.index import open_index
    from polyrank.loading.folders import folder_kind
    from polyrank.loading.models import second_stage_of

    if folder_kind(Path(index)) == "index":
        with open_index(index) as opened:
            name = second_stage_of(opened.fingerprint)
        if name is not None:
            notify(f"{name} re-ranks the best candidates of {index}; to use it, {command.format(name)}")
