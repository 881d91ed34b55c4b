"""Candidates and their vectors in Parquet files, a block in each, and an index of them.

Whoever has a core free may encode a block: its file is there whole or not at all, is named by its number alone, and
says of what it was made. So a folder that is half done goes on where it stopped, and each candidate is in it once.
Shapes: n candidates of a block, D dimensions.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ArtifactError, ConfigError, MissingExtraError
from polyrank.index import write_index
from polyrank.records import Candidate
from polyrank.storage.document import DocumentKind, has_document, read_document, seal
from polyrank.storage.durable import AnyPath, check_replaceable, make_folders, write_file
from polyrank.storage.quantized import Precision

DOCUMENT = DocumentKind(
    name="folder of vectors", file="vectors.json", missing="check the path", remedy="encode again with --overwrite"
)
OURS = (DOCUMENT.file, "block-*.parquet", ".block-*", f".{DOCUMENT.file}.*")
MADE_OF = b"polyrank"  # the key of a file's metadata that says of what it was made


@dataclass(frozen=True, slots=True)
class Plan:
    """What a folder of vectors is to hold.

    Args:
        model: where the encoder is found.
        fingerprint: of the encoder.
        dimension: of its vectors.
        candidates: SHA-256 of all of them, in their order.
        n: how many.
        block_size: candidates of a block; the last one has what is left.
    """

    model: str
    fingerprint: str
    dimension: int
    candidates: str
    n: int
    block_size: int

    @property
    def n_blocks(self) -> int:
        """How many files there will be."""
        return -(-self.n // self.block_size)

    def block(self, number: int) -> slice:
        """Where a block's candidates are among all.

        >>> Plan("m", "f", 8, "", n=10, block_size=4).block(2)
        slice(8, 10, None)
        """
        return slice(number * self.block_size, min(self.n, (number + 1) * self.block_size))


def digest(candidates: Iterable[Candidate]) -> str:
    """SHA-256 of candidates: ids, texts and metadata, in their order."""
    seen = hashlib.sha256()
    for candidate in candidates:
        row = [candidate.id, candidate.text, candidate.metadata]
        seen.update(json.dumps(row, sort_keys=True, separators=(",", ":")).encode())
    return seen.hexdigest()


def file_of(folder: Path, number: int) -> Path:
    """A block's file.

    >>> file_of(Path("vectors"), 7).name
    'block-00007.parquet'
    """
    return folder / f"block-{number:05}.parquet"


def begin(folder: Path, plan: Plan, *, overwrite: bool = False) -> None:
    """Make a folder of vectors, or make sure that the one that is there is of the same plan.

    Args:
        folder: where.
        plan: what it is to hold.
        overwrite: whether one of another plan may be emptied.

    Raises:
        ConfigError: one of another plan is there; names what differs.
        UsageError: something else is there.
    """
    _library()
    if has_document(folder, DOCUMENT):
        there, now = read_document(folder, DOCUMENT), asdict(plan)
        differ = [name for name in ("fingerprint", "candidates", "block_size") if there.get(name) != now[name]]
        if not differ:
            return
        if not overwrite:
            named = {"fingerprint": "encoder", "candidates": "candidates", "block_size": "block size"}
            raise ConfigError(
                f"{folder} holds vectors of another {', '.join(named[name] for name in differ)}; give the same, another"
                " output, or --overwrite"
            )
    elif folder.exists() and any(folder.iterdir()):
        check_replaceable(folder, own_files=OURS, replace=overwrite)
    make_folders(folder)
    for file in folder.glob("block-*.parquet"):
        file.unlink()
    write_file(folder / DOCUMENT.file, seal(asdict(plan), DOCUMENT))


def write_block(
    folder: Path, plan: Plan, number: int, candidates: Sequence[Candidate], vectors: NDArray[np.float32]
) -> None:
    """Write a block's file: durable and whole, or not at all.

    Args:
        folder: that ``begin`` has made.
        plan: of the folder.
        number: of the block.
        candidates: of the block.
        vectors: ``[n, D]``, one for each.
    """
    arrow, parquet = _library()
    made_of = {"fingerprint": plan.fingerprint, "candidates": digest(candidates)}
    schema = arrow.schema(
        [
            ("id", arrow.string()),
            ("text", arrow.string()),
            ("metadata", arrow.string()),
            ("vector", arrow.list_(arrow.float32(), plan.dimension)),
        ],
        metadata={MADE_OF: json.dumps(made_of, sort_keys=True).encode()},
    )
    flat = arrow.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    columns = [
        arrow.array([candidate.id for candidate in candidates], arrow.string()),
        arrow.array([candidate.text for candidate in candidates], arrow.string()),
        arrow.array([json.dumps(c.metadata) if c.metadata else None for c in candidates], arrow.string()),
        arrow.FixedSizeListArray.from_arrays(flat, plan.dimension),
    ]
    stream = BytesIO()
    parquet.write_table(arrow.Table.from_arrays(columns, schema=schema), stream, write_page_checksum=True)
    write_file(file_of(folder, number), stream.getvalue())


def is_finished(folder: Path, plan: Plan, number: int, candidates: Sequence[Candidate]) -> bool:
    """Whether a block's file is there, and is of this encoder and these candidates. Reads its last bytes only."""
    arrow, parquet = _library()
    try:
        seen = parquet.read_metadata(file_of(folder, number))
        made_of = json.loads((seen.metadata or {}).get(MADE_OF, b"{}"))
    except (FileNotFoundError, arrow.ArrowException, ValueError):
        return False  # one that was damaged is encoded again
    expected = {"fingerprint": plan.fingerprint, "candidates": digest(candidates)}
    return bool(made_of == expected and seen.num_rows == len(candidates))


def read_plan(folder: Path) -> Plan:
    """What a folder of vectors is to hold.

    Raises:
        ArtifactError: it is none, or is damaged.
    """
    values = read_document(folder, DOCUMENT)
    try:
        return Plan(**values)
    except TypeError as error:
        raise ArtifactError(f"{folder / DOCUMENT.file} is not as it was written; {DOCUMENT.remedy}") from error


def read_blocks(folder: Path) -> Iterator[tuple[list[Candidate], NDArray[np.float32]]]:
    """Candidates and their vectors ``[n, D]``, block by block, in the order of the file that they came from.

    Raises:
        ArtifactError: a block is missing or damaged, or the folder is none of vectors.
    """
    arrow, parquet = _library()
    plan = read_plan(folder)
    for number in range(plan.n_blocks):
        file = file_of(folder, number)
        try:
            table = parquet.read_table(file, page_checksum_verification=True)
        except FileNotFoundError as error:
            raise ArtifactError(f"{file} is missing; encode again, which goes on where it stopped") from error
        except (arrow.ArrowException, OSError) as error:
            raise ArtifactError(f"{file} is damaged; delete it and encode again, which makes it anew") from error
        rows: list[dict[str, Any]] = table.drop_columns(["vector"]).to_pylist()
        candidates = [Candidate(r["id"], r["text"], json.loads(r["metadata"] or "{}")) for r in rows]
        vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, plan.dimension)
        yield candidates, vectors


def index_blocks(
    folder: AnyPath, path: AnyPath, *, ann: str = "", precision: Precision = "fp32", overwrite: bool = False
) -> int:
    """Write an index of a folder of vectors, as ``build_index`` does of the same candidates and encoder.

    Args:
        folder: of vectors.
        path: the index folder to make.
        ann, precision, overwrite: see ``polyrank.index.write_index``.

    Returns:
        How many candidates it has.

    Raises:
        ArtifactError: a block is missing or damaged.
        UsageError: the path is taken.
    """
    source = Path(folder)
    plan = read_plan(source)
    candidates = [candidate for part, _ in read_blocks(source) for candidate in part]
    if digest(candidates) != plan.candidates:
        raise ArtifactError(f"{source} holds other candidates than it was made for; {DOCUMENT.remedy}")
    write_index(
        path,
        candidates,
        (vectors for _, vectors in read_blocks(source)),
        fingerprint=plan.fingerprint,
        model=plan.model,
        ann=ann,
        precision=precision,
        overwrite=overwrite,
    )
    return len(candidates)


def _library() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    return pyarrow, parquet
