"""Inner-product indexes of vectors: which candidates have the largest products with a query. By faiss, an extra.

An index is derived from the vectors and never the truth: who loses it builds it again. Positions are those of the
vectors it was built from. The same vectors, kind and library give the same index. No torch.
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
from polyrank.errors import ArtifactError, MissingExtraError, UsageError
from polyrank.storage.quantized import AnyVectors

Kind = Literal["flat", "sq8", "ivfpq", "hnsw"]
Floats = NDArray[np.float32]
Positions = NDArray[np.int64]

FLAT_UP_TO = 20_000  # vectors, when the kind is chosen by size; above, a graph answers in a fraction of a scan
HNSW_UP_TO = 300_000  # above, a graph takes minutes to build, lists of codes take seconds
NEIGHBOURS = 32  # of a node in a graph
BREADTH_BUILDING, BREADTH = 80, 128  # nodes that are looked at while a graph is built, and at least in a search
CODES_FROM = 1024  # vectors; codes of 16 values each cannot be learnt from much fewer
PROBED = 16  # one list of so many is looked into
REFINED = 16  # times k candidates are compared again by closer products
ROWS_AT_A_TIME = 65_536  # added
MAGIC = b"polyrank ann 1\n"


class Ann:
    """An inner-product index, in memory. Made by ``build_ann`` and ``read_ann``."""

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
        """Whether a search always returns the true best, up to rounding in fp32."""
        return self.kind == "flat"

    @property
    def dimension(self) -> int:
        return int(self._index.d)

    def search(self, queries: Floats, k: int) -> tuple[Floats, Positions]:
        """The best products of each query.

        Args:
            queries: ``[M, D]``.
            k: at most; cut to the number of vectors.

        Returns:
            Products and positions, ``[M, k]``, best first. A position is -1, its product the lowest float, where an
            index that is not exact found no more.

        Raises:
            UsageError: the queries have another dimension, or k is below one.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            raise UsageError(f"queries are {queries.shape}; this index takes [M, {self.dimension}]")
        if k < 1:
            raise UsageError(f"k is {k}; ask for one vector at least")
        k = min(k, len(self))
        if not k or not len(queries):
            return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        faiss = _faiss()
        settings = faiss.SearchParametersHNSW(efSearch=max(BREADTH, 2 * k)) if self.kind == "hnsw" else None
        products, positions = self._index.search(np.ascontiguousarray(queries, np.float32), k, params=settings)
        return products, positions

    def to_bytes(self) -> bytes:
        """Everything, with a checksum."""
        header = json.dumps({"kind": self.kind, "n": len(self), "d": self.dimension}).encode()
        body = header + b"\n" + bytes(_faiss().serialize_index(self._index))
        return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def read_kind(name: str) -> str:
    """A kind of inner-product index by its name; empty for "none".

    Raises:
        UsageError: there is none of that name.

    >>> read_kind("hnsw"), read_kind("auto"), read_kind("none")
    ('hnsw', 'auto', '')
    """
    if name in ("", "none"):
        return ""
    if name != "auto":
        read_choice(name, Kind, "kind of inner-product index", also="none, auto")
    return name


def check_library(kind: str) -> None:
    """Refuse any kind, where there is one, on a machine without the library.

    Raises:
        MissingExtraError: it is not installed.
    """
    if kind:
        _faiss()


def choose_kind(n: int) -> Kind:
    """By size: exact, a graph, or lists of codes.

    >>> [choose_kind(n) for n in (1000, 100_000, 1_000_000)]
    ['flat', 'hnsw', 'ivfpq']
    """
    return "flat" if n <= FLAT_UP_TO else "hnsw" if n <= HNSW_UP_TO else "ivfpq"


def build_ann(vectors: AnyVectors, kind: Kind | Literal["auto"] = "auto") -> Ann:
    """Index vectors.

    ``flat`` compares all of them, exactly. ``sq8`` does so with 8 bits a number. ``hnsw`` walks a graph of neighbours.
    ``ivfpq`` looks into some lists of 4-bit codes and compares the best again in 8 bits. Building uses one thread,
    because graphs and lists would otherwise depend on timing.

    Args:
        vectors: ``[N, D]``.
        kind: ``auto`` goes by N.

    Raises:
        MissingExtraError: faiss is not installed.
        UsageError: the kind is unknown, or there are too few vectors for it.
    """
    faiss = _faiss()
    n, dimension = vectors.shape
    if kind == "auto":
        kind = choose_kind(n)
    if kind not in get_args(Kind):
        raise UsageError(f"kind {kind!r} is unknown; use auto, {', '.join(get_args(Kind))}")
    if kind in ("ivfpq", "sq8") and n < CODES_FROM:
        raise UsageError(f"{kind} cannot be learnt from {n} vectors; use flat below {CODES_FROM}")
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
    """Read what ``Ann.to_bytes`` made.

    Raises:
        MissingExtraError: faiss is not installed.
        ArtifactError: the bytes are damaged or none of ours.
    """
    faiss = _faiss()
    digest, _, body = data.removeprefix(MAGIC).partition(b"\n")
    if not data.startswith(MAGIC) or digest != hashlib.sha256(body).hexdigest().encode():
        raise ArtifactError("an inner-product index is damaged, or not one of polyrank's; build it again")
    header, _, payload = body.partition(b"\n")
    return Ann(json.loads(header)["kind"], faiss.deserialize_index(np.frombuffer(payload, np.uint8)))


def _faiss() -> ModuleType:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("faiss-cpu", "faiss") from error
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
