"""Candidates and their vectors in Parquet files, one block per file, and indexes built from them.

Any free worker may encode a block: its file appears completely or not at all, its name depends on its number alone, and
it records which encoder and candidates it comes from. So an unfinished folder can be resumed, and contains each
candidate once. Shapes: n candidates of a block, D dimensions.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from polyrank import ArtifactError, Candidate, ConfigError
from polyrank.index import write_index
from polyrank.storage.document import DocumentKind, has_document, read_document, seal
from polyrank.storage.durable import AnyPath, check_replaceable, write_file
from polyrank.storage.quantized import Precision

DOCUMENT = DocumentKind(
    name="folder of vectors", file="vectors.json", missing="check the path", remedy="encode again with `overwrite=True`"
)
FOLDER_FILES = (DOCUMENT.file, "block-*.parquet", ".block-*", f".{DOCUMENT.file}.*")
MADE_OF = b"polyrank"  # key of a file's metadata that records its encoder and candidates


@dataclass(frozen=True, slots=True)
class Plan:
    """The description of a folder of vectors.

    Args:
        model: name or path of the encoder.
        fingerprint: of the encoder.
        dimension: of its vectors.
        candidates: SHA-256 of all candidates in order.
        n: number of candidates.
        block_size: candidates per block; the last block may have fewer.
    """

    model: str
    fingerprint: str
    dimension: int
    candidates: str
    n: int
    block_size: int

    @property
    def n_blocks(self) -> int:
        """Number of files."""
        return -(-self.n // self.block_size)

    def block(self, number: int) -> slice:
        """Positions of a block's candidates among all candidates.

        >>> Plan("m", "f", 8, "", n=10, block_size=4).block(2)
        slice(8, 10, None)
        """
        return slice(number * self.block_size, min(self.n, (number + 1) * self.block_size))


def digest(candidates: Iterable[Candidate]) -> str:
    """SHA-256 of candidates: ids, texts and metadata, in order."""
    seen = hashlib.sha256()
    for candidate in candidates:
        row = [candidate.id, candidate.text, candidate.metadata]
        seen.update(json.dumps(row, sort_keys=True, separators=(",", ":")).encode())
    return seen.hexdigest()


def block_file(folder: Path, number: int) -> Path:
    """Path of a block's file.

    >>> block_file(Path("vectors"), 7).name
    'block-00007.parquet'
    """
    return folder / f"block-{number:05}.parquet"


def begin(folder: Path, plan: Plan, *, overwrite: bool = False) -> None:
    """Make a folder of vectors, or check that the existing folder has the same plan.

    Args:
        folder: the folder.
        plan: what it will contain.
        overwrite: whether a folder with another plan may be emptied.

    Raises:
        ConfigError: the folder has another plan; the message names the differences.
        UsageError: the path holds other files.
    """
    if has_document(folder, DOCUMENT):
        there, now = read_document(folder, DOCUMENT), asdict(plan)
        differ = [name for name in ("fingerprint", "candidates", "block_size") if there.get(name) != now[name]]
        if not differ:
            return
        if not overwrite:
            named = {"fingerprint": "encoder", "candidates": "candidates", "block_size": "block size"}
            raise ConfigError(
                f"{folder} holds vectors of another {', '.join(named[name] for name in differ)}; use the same, another"
                " output, or `overwrite=True`"
            )
    elif folder.exists() and any(folder.iterdir()):
        check_replaceable(folder, own_files=FOLDER_FILES, replace=overwrite)
    for file in folder.glob("block-*.parquet"):
        file.unlink()
    write_file(folder / DOCUMENT.file, seal(asdict(plan), DOCUMENT))


def write_block(
    folder: Path, plan: Plan, number: int, candidates: Sequence[Candidate], vectors: NDArray[np.float32]
) -> None:
    """Write a block's file, completely and durably or not at all.

    Args:
        folder: made by ``begin``.
        plan: of the folder.
        number: of the block.
        candidates: of the block.
        vectors: ``[n, D]``, one per candidate.
    """
    made_of = {"fingerprint": plan.fingerprint, "candidates": digest(candidates)}
    flat = pyarrow.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    columns = {
        "id": pyarrow.array([candidate.id for candidate in candidates], pyarrow.string()),
        "text": pyarrow.array([candidate.text for candidate in candidates], pyarrow.string()),
        "metadata": pyarrow.array(
            [json.dumps(c.metadata) if c.metadata else None for c in candidates], pyarrow.string()
        ),
        "vector": pyarrow.FixedSizeListArray.from_arrays(flat, plan.dimension),
    }
    table = pyarrow.table(columns, metadata={MADE_OF: json.dumps(made_of).encode()})
    stream = BytesIO()
    parquet.write_table(table, stream, write_page_checksum=True)
    write_file(block_file(folder, number), stream.getvalue())


def is_finished(folder: Path, plan: Plan, number: int, candidates: Sequence[Candidate]) -> bool:
    """Whether a block's file exists and comes from this encoder and these candidates. Reads only the file's footer."""
    try:
        seen = parquet.read_metadata(block_file(folder, number))
        made_of = json.loads((seen.metadata or {}).get(MADE_OF, b"{}"))
    except (FileNotFoundError, pyarrow.ArrowException, ValueError):
        return False  # a damaged block is encoded again
    expected = {"fingerprint": plan.fingerprint, "candidates": digest(candidates)}
    return bool(made_of == expected and seen.num_rows == len(candidates))


def read_plan(folder: Path) -> Plan:
    """Read the description of a folder of vectors.

    Raises:
        ArtifactError: it is not a folder of vectors, or is damaged.
    """
    values = read_document(folder, DOCUMENT)
    try:
        return Plan(**values)
    except TypeError as error:
        raise ArtifactError(f"{folder / DOCUMENT.file} lacks or adds keys; {DOCUMENT.remedy}") from error


def read_blocks(folder: Path) -> Iterator[tuple[list[Candidate], NDArray[np.float32]]]:
    """Candidates and their vectors ``[n, D]``, block by block, in the order in which they were encoded.

    Raises:
        ArtifactError: a block is missing or damaged, or it is not a folder of vectors.
    """
    plan = read_plan(folder)
    return (read_block(folder, plan, number) for number in range(plan.n_blocks))


def read_block(folder: Path, plan: Plan, number: int) -> tuple[list[Candidate], NDArray[np.float32]]:
    """Candidates of a block and their vectors ``[n, D]``.

    Raises:
        ArtifactError: the block is missing or damaged.
    """
    file = block_file(folder, number)
    try:
        table = parquet.read_table(file, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise ArtifactError(f"{file} is missing; encode again, which resumes there") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise ArtifactError(f"{file} is damaged; delete it and encode again, which restores it") from error
    rows: list[dict[str, Any]] = table.drop_columns(["vector"]).to_pylist()
    candidates = [Candidate(r["id"], r["text"], json.loads(r["metadata"] or "{}")) for r in rows]
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, plan.dimension)
    return candidates, vectors


def index_blocks(
    folder: AnyPath, path: AnyPath, *, ann: str = "", precision: Precision = "fp32", overwrite: bool = False
) -> int:
    """Write an index from a folder of vectors, the same as ``build_index`` writes with this encoder.

    Memory holds one block and all ids.

    Args:
        folder: the vectors.
        path: the index folder to make.
        ann, precision, overwrite: see ``polyrank.index.write_index``.

    Returns:
        The number of candidates.

    Raises:
        ArtifactError: a block is missing or damaged.
        UsageError: the path already exists.
    """
    source = Path(folder)
    plan = read_plan(source)
    if digest(candidate for part, _ in read_blocks(source) for candidate in part) != plan.candidates:
        raise ArtifactError(f"{source} holds other candidates than when it was made; {DOCUMENT.remedy}")
    candidates = _StoredCandidates(source, plan)
    write_index(
        path,
        candidates,
        (candidates.vectors(number) for number in range(plan.n_blocks)),
        fingerprint=plan.fingerprint,
        model=plan.model,
        ann=ann,
        precision=precision,
        overwrite=overwrite,
    )
    return plan.n


class _StoredCandidates(Sequence[Candidate]):
    """The candidates of a folder of vectors, read block by block, with the latest block in memory."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._plan = plan
        self._block = lru_cache(1)(partial(read_block, folder, plan))

    def __len__(self) -> int:
        return self._plan.n

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> list[Candidate]: ...
    def __getitem__(self, at: int | slice) -> Candidate | list[Candidate]:
        match range(len(self))[at]:
            case int(position):
                return self._block(position // self._plan.block_size)[0][position % self._plan.block_size]
            case positions:
                return [self[position] for position in positions]

    def vectors(self, number: int) -> NDArray[np.float32]:
        """Vectors ``[n, D]`` of a block."""
        return self._block(number)[1]
