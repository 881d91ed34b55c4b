"""Candidates in a temporary file on the disk that all nodes share: the driver writes it, and workers read blocks of it.

So neither the driver's memory nor Ray's grows with the number of candidates.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from polyrank.index.checks import Faults, candidate_faults, refuse
from polyrank.integrations.ray.blocks import digest
from polyrank.records import Candidate
from polyrank.storage.durable import unwritable


@dataclass(frozen=True, slots=True)
class Spool:
    """A file of candidates.

    Args:
        file: one candidate per line.
        starts: the byte at which each block starts, and the end of the last one.
        n: number of candidates.
        digest: SHA-256 of all candidates, as ``polyrank.integrations.ray.blocks.digest``.
    """

    file: Path
    starts: Sequence[int]
    n: int
    digest: str

    def block(self, number: int) -> list[Candidate]:
        """The candidates of a block."""
        with self.file.open("rb") as stream:
            stream.seek(self.starts[number])
            lines = stream.read(self.starts[number + 1] - self.starts[number]).splitlines()
        return [Candidate(*json.loads(line)) for line in lines]


def write_spool(file: Path, candidates: Iterable[Candidate], block_size: int) -> Spool:
    """Write candidates to a file, holding one block in memory.

    Args:
        file: to make.
        candidates: with distinct ids.
        block_size: candidates per block.

    Raises:
        DataError: names the first five invalid candidates by position.
        ResourceError: the disk is full.
    """
    remaining, starts, n = iter(candidates), [0], 0
    faults: Faults = {}

    def written() -> Iterator[Candidate]:
        nonlocal n
        with file.open("wb") as stream:
            while block := list(islice(remaining, block_size)):
                faults.update({n + i: what for i, what in candidate_faults(block).items()})
                n += len(block)
                for candidate in block if not faults else ():
                    stream.write(json.dumps([candidate.id, candidate.text, candidate.metadata]).encode() + b"\n")
                    yield candidate
                starts.append(stream.tell())

    try:
        whole = digest(written())
    except OSError as error:
        raise unwritable(file.parent, error) from error
    refuse(faults)
    return Spool(file, starts, n, whole)


@contextmanager
def spooled(candidates: Iterable[Candidate], output: Path, block_size: int) -> Iterator[Spool]:
    """A spool on the disk of ``output``, inside the block; arguments and errors as for ``write_spool``."""
    with shared_folder(output) as folder:
        yield write_spool(folder / "candidates.jsonl", candidates, block_size)


@contextmanager
def shared_folder(output: Path) -> Iterator[Path]:
    """A temporary folder on the disk of ``output``, which may not exist yet."""
    existing = next(folder for folder in output.absolute().parents if folder.exists())
    with tempfile.TemporaryDirectory(prefix=".ray-", dir=existing) as folder:
        yield Path(folder)
