"""Inner-product indexes: they find the vectors with the largest products with a query. Requires the extra ``faiss``.

An inner-product index is derived from the vectors and can be rebuilt from them. It returns positions in the array that
it was built from. The same vectors, kind and library version give the same index. No torch.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from polyrank.config.checked import read_choice
from polyrank.errors import ArtifactError, UsageError, needs
from polyrank.storage.quantized import AnyVectors

Kind = Literal["flat", "sq8", "ivfpq", "hnsw"]
Floats = NDArray[np.float32]
Positions = NDArray[np.int64]

FLAT_UP_TO = 20_000  # vectors, if the kind is chosen by size; above, a graph is several times faster than a scan
HNSW_UP_TO = 300_000  # above, a graph takes minutes to build, product quantization seconds
NEIGHBOURS = 32  # of each node of a graph
BREADTH_BUILDING, BREADTH = 80, 128  # nodes visited while a graph is built, and at least in a search
CODES_FROM = 1024  # vectors; fewer are too few to train 16 centroids per code
PROBED = 16  # a search reads one in this many lists
REFINED = 16  # times k candidates are compared again with closer products
ROWS_AT_A_TIME = 65_536  # added at a time
MAGIC = b"polyrank ann 1\n"


class Ann:
    """An inner-product index in memory. ``build_ann`` and ``read_ann`` return one."""

    def __init__(self, kind: Kind, index: Any) -> None:
        faiss = _faiss()
        self.kind: Kind = kind
        self._index = index
        if kind == "ivfpq":
            index.k_factor = float(REFINED)
            lists = faiss.extract_index_ivf(index)
            lists.nprobe = max(lists.nlist // PROBED, 8)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def exact(self) -> bool:
        """Whether a search always returns the true best vectors, up to fp32 rounding."""
        return self.kind == "flat"

    @property
    def dimension(self) -> int:
        return int(self._index.d)

    def search(self, queries: Floats, k: int) -> tuple[Floats, Positions]:
        """The vectors with the largest products with each query.

        Args:
            queries: ``[M, D]``.
            k: number of vectors; limited to the number of vectors in the index.

        Returns:
            Products and positions, ``[M, k]``, best first. If an approximate index finds fewer than k, the position is
            -1 and the product the lowest float.

        Raises:
            UsageError: the queries have another dimension, or k is below 1.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            raise UsageError(f"queries have shape {queries.shape}, this index needs [M, {self.dimension}]")
        if k < 1:
            raise UsageError(f"k is {k}, the minimum is 1; request at least one vector")
        k = min(k, len(self))
        if not k or not len(queries):
            return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        faiss = _faiss()
        settings = faiss.SearchParametersHNSW(efSearch=max(BREADTH, 2 * k)) if self.kind == "hnsw" else None
        products, positions = self._index.search(np.ascontiguousarray(queries, np.float32), k, params=settings)
        return products, positions

    def to_bytes(self) -> bytes:
        """The whole index, with a checksum."""
        header = json.dumps({"kind": self.kind, "n": len(self), "d": self.dimension}).encode()
        body = header + b"\n" + bytes(_faiss().serialize_index(self._index))
        return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def read_kind(name: str) -> str:
    """Check the name of a kind of inner-product index; "none" becomes "".

    Raises:
        UsageError: the kind is unknown.

    >>> read_kind("hnsw"), read_kind("auto"), read_kind("none")
    ('hnsw', 'auto', '')
    """
    if name in ("", "none"):
        return ""
    if name != "auto":
        read_choice(name, Kind, "kind of inner-product index", also="none, auto")
    return name


def check_library(kind: str) -> None:
    """Check that the library is installed if a kind of inner-product index is requested.

    Raises:
        MissingExtraError: faiss is not installed.
    """
    if kind:
        _faiss()


def choose_kind(n: int) -> Kind:
    """The kind for n vectors: exact, a graph, or lists of codes.

    >>> [choose_kind(n) for n in (1000, 100_000, 1_000_000)]
    ['flat', 'hnsw', 'ivfpq']
    """
    return "flat" if n <= FLAT_UP_TO else "hnsw" if n <= HNSW_UP_TO else "ivfpq"


def build_ann(vectors: AnyVectors, kind: Kind | Literal["auto"] = "auto") -> Ann:
    """Index vectors.

    ``flat`` compares every vector exactly. ``sq8`` does the same with 8 bits per number. ``hnsw`` walks a graph of
    neighbours. ``ivfpq`` reads some lists of 4-bit codes and compares the best again in 8 bits. Building uses one
    thread, because otherwise graphs and lists depend on timing.

    Args:
        vectors: ``[N, D]``.
        kind: ``auto`` chooses by N.

    Raises:
        MissingExtraError: faiss is not installed.
        UsageError: the kind is unknown, or N is too small for it.
    """
    faiss = _faiss()
    n, dimension = vectors.shape
    if kind == "auto":
        kind = choose_kind(n)
    if kind not in get_args(Kind):
        raise UsageError(f"kind {kind!r} is unknown; use auto, {', '.join(get_args(Kind))}")
    if kind in ("ivfpq", "sq8") and n < CODES_FROM:
        raise UsageError(f"{kind} cannot be trained on {n} vectors; use flat below {CODES_FROM}")
    n_lists = max(int(2 * sqrt(n)), 1)
    n_codes = next(c for c in range(max(dimension // 2, 1), 0, -1) if dimension % c == 0)
    recipe = {
        "flat": "Flat",
        "sq8": "SQ8",
        "hnsw": f"HNSW{NEIGHBOURS}",
        "ivfpq": f"IVF{n_lists},PQ{n_codes}x4fs,Refine(SQ8)",
    }[kind]
    with _one_thread(faiss):
        index = faiss.index_factory(dimension, recipe, faiss.METRIC_INNER_PRODUCT)
        if kind == "hnsw":
            index.hnsw.efConstruction = BREADTH_BUILDING
        if not index.is_trained:
            index.train(_spread(vectors, 64 * n_lists if kind == "ivfpq" else 100_000))
        for start in range(0, n, ROWS_AT_A_TIME):
            index.add(np.ascontiguousarray(vectors[start : start + ROWS_AT_A_TIME], np.float32))
    return Ann(kind, index)


def read_ann(data: bytes) -> Ann:
    """Read the bytes that ``Ann.to_bytes`` returned.

    Raises:
        MissingExtraError: faiss is not installed.
        ArtifactError: the bytes are damaged or have another format.
    """
    faiss = _faiss()
    digest, _, body = data.removeprefix(MAGIC).partition(b"\n")
    if not data.startswith(MAGIC) or digest != hashlib.sha256(body).hexdigest().encode():
        raise ArtifactError("an inner-product index is damaged, or polyrank did not write it; build it again")
    header, _, payload = body.partition(b"\n")
    return Ann(json.loads(header)["kind"], faiss.deserialize_index(np.frombuffer(payload, np.uint8)))


def _faiss() -> ModuleType:
    with needs("faiss-cpu", "faiss"):
        import faiss
    return faiss


@contextmanager
def _one_thread(faiss: ModuleType) -> Iterator[None]:
    n_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(n_threads)


def _spread(vectors: AnyVectors, n: int) -> Floats:
    """At most ``n`` rows, evenly spaced."""
    rows = np.linspace(0, len(vectors) - 1, min(n, len(vectors))).astype(np.intp)
    return np.ascontiguousarray(vectors[rows], np.float32)
