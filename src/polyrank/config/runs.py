"""The layout of a training's output: folders of seeds, in them those of networks, in them the model.

A training with one seed has no folder for it, and one with one network has none for that.
"""

import re
from collections.abc import Sequence
from pathlib import Path

NETWORKS = ("retriever", "reranker")
"""The names of the two networks of a mutual training, and of their folders."""
NETWORK_FOLDERS = ("", *(f"{name}/" for name in NETWORKS))
"""The start of a path to a network's files: empty for a single network, or the folder of one of two."""
MODEL_FOLDER = "model"
SEED_FOLDERS = "seed-*"
_SEED = re.compile(r"/seed-(\d+)(?=/|$)", re.ASCII)


def seed_folders(output: Path, seeds: Sequence[int]) -> dict[int, Path]:
    """The folder of each seed.

    >>> seed_folders(Path("run"), [1, 2])[2].as_posix(), seed_folders(Path("run"), [1])[1].as_posix()
    ('run/seed-2', 'run')
    """
    return {seed: output if len(seeds) == 1 else output / f"seed-{seed}" for seed in seeds}


def seeds_inside(folder: Path) -> list[Path]:
    """The folders of seeds in a training's output, by seed."""
    named = [(seed_of(f"/{path.name}"), path) for path in folder.glob(SEED_FOLDERS) if path.is_dir()]
    return [path for _, path in sorted((seed, path) for seed, path in named if seed is not None)]


def seed_of(path: str) -> int | None:
    """The seed whose folder, below another one, is in a path; None if there is none.

    >>> seed_of("run/seed-2/model"), seed_of("./seed-3"), seed_of("run/model")
    (2, 3, None)
    """
    match = _SEED.search(path)
    return None if match is None else int(match[1])


def without_seed(path: str) -> str:
    """The path without the folder of a seed.

    >>> without_seed("run/seed-2/retriever"), without_seed("run/retriever")
    ('run/retriever', 'run/retriever')
    """
    return _SEED.sub("", path)
