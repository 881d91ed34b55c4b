"""Kinds of vector indexes on a Milvus server. No torch.

FLAT compares every vector. The others list candidates approximately, from a graph or from lists of vectors in fewer
bits; polyrank then scores the listed candidates with the stored vectors.
"""

from math import isqrt

from polyrank.errors import UsageError

KINDS = {"": "FLAT", "flat": "FLAT", "hnsw": "HNSW", "sq8": "IVF_SQ8", "ivfpq": "IVF_PQ", "diskann": "DISKANN"}
OF_LITE = ("flat", "hnsw", "sq8")  # Milvus Lite accepts any name, and compares every vector for those that it lacks
BREADTH = 128  # nodes of a graph that a search visits at least
MOST_LISTS, PROBED = 1024, 64  # Milvus builds lists for each segment of at most a few hundred thousand vectors


def read_kind(name: str) -> str:
    """Check the name of a kind; "none" becomes "".

    Raises:
        UsageError: the kind is unknown.

    >>> read_kind("diskann"), read_kind("none")
    ('diskann', '')
    """
    name = "" if name == "none" else name
    if name not in KINDS:
        raise UsageError(f"a remote index cannot have index type {name!r}; use none, {', '.join(filter(None, KINDS))}")
    return name


def build_settings(kind: str, n: int, width: int) -> dict[str, int]:
    """Milvus's settings to build an index.

    Args:
        kind: Milvus's name.
        n: number of vectors.
        width: numbers per vector, a multiple of four.

    >>> build_settings("IVF_PQ", 10_000, 392)
    {'nlist': 200, 'm': 98, 'nbits': 8}
    >>> build_settings("IVF_SQ8", 10**6, 392), build_settings("FLAT", 5, 8)
    ({'nlist': 1024}, {})
    """
    lists = {"nlist": max(min(2 * isqrt(n), MOST_LISTS), 1)}
    return {
        "HNSW": {"M": 32, "efConstruction": 128},
        "IVF_SQ8": lists,
        "IVF_PQ": {**lists, "m": width // 4, "nbits": 8},
    }.get(kind, {})


def search_settings(kind: str, n: int) -> dict[str, int]:
    """Milvus's settings to list ``n`` products.

    >>> [search_settings(kind, 200) for kind in ("FLAT", "HNSW", "IVF_SQ8", "IVF_PQ", "DISKANN")]
    [{}, {'ef': 200}, {'nprobe': 64}, {'nprobe': 64}, {'search_list': 200}]
    >>> search_settings("HNSW", 10)  # a graph is searched more widely than the list is long
    {'ef': 128}
    """
    breadth = max(n, BREADTH)
    return {
        "HNSW": {"ef": breadth},
        "IVF_SQ8": {"nprobe": PROBED},
        "IVF_PQ": {"nprobe": PROBED},
        "DISKANN": {"search_list": breadth},
    }.get(kind, {})
