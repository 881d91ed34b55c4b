"""``polyrank popularity``: the frequency of replies as an encoder, for use in a sum."""

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from polyrank.cli.console import notify
from polyrank.cli.examples import load_examples
from polyrank.cli.options import Json, Overwrite, Speaker
from polyrank.errors import UsageError


def popularity(
    output: Annotated[Path, Option("-o", "--output", help="The folder to make.")],
    files: Annotated[
        list[Path] | None,
        Argument(metavar="FILE...", help="Examples whose right answers to count: pairs, dialogues or lists."),
    ] = None,
    catalogue: Annotated[
        Path | None, Option(help="Replies with a field `count`, as import replies --from-dialogues writes them.")
    ] = None,
    speaker: Speaker = None,
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """Count how often each reply was said; a sum of the counts and an encoder prefers frequent replies."""
    from polyrank.loading.folders import POPULARITY
    from polyrank.scorers.popularity import (
        Popularity,
        catalogue_counts,
        count_replies,
        save_popularity,
    )
    from polyrank.storage.durable import check_replaceable

    check_replaceable(output, own_files=POPULARITY.files, replace=overwrite)
    if (catalogue is None) == (not files):
        raise UsageError("give either FILE... of examples, or --catalogue REPLIES")
    if catalogue is not None and speaker is not None:
        raise UsageError(f"--speaker {speaker} applies to dialogues, and a catalogue holds replies; leave it out")
    counts = count_replies(())
    for file in files or ():
        counts += count_replies(load_examples(file, speaker))
    if catalogue is not None:
        counts += catalogue_counts(catalogue)
    prior = Popularity.of(counts)
    named = [file.name for file in (*(files or ()), *filter(None, [catalogue]))]
    figures = {"data": named, "n_replies": len(counts), "n_said": counts.total(), "most": max(counts.values())}
    save_popularity(output, prior, metadata=figures, replace=overwrite)
    if json_:
        print(json.dumps(figures))
    notify(
        f"wrote {output}: {len(counts):,} replies said {counts.total():,} times; next: polyrank sum MODEL {output}"
        " -o SUM --valid FILE"
    )


def show_popularity(path: Path, *, json_: bool) -> None:
    """Print the source and the number of the counts."""
    from polyrank.loading.folders import read_model

    _, document = read_model(path)
    figures: dict[str, Any] = document["metadata"]
    if json_:
        print(json.dumps({"kind": "popularity", "fingerprint": document["fingerprint"], **figures}))
        return
    counted = f"{figures['n_replies']:,} replies said {figures['n_said']:,} times, one of them {figures['most']:,}"
    print(f"{path}: popularity, fingerprint {document['fingerprint']}")
    print(f"{counted}; of {', '.join(figures['data'])}")
