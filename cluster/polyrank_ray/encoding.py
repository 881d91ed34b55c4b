"""Encodes a catalogue on a Ray cluster: tasks that each encode one block of candidates to a Parquet file.

If a worker dies, Ray starts its task again on another one. Each process keeps its model between tasks.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import ray

from polyrank import Candidate, Encoder, LostProcessError, UsageError
from polyrank.data.pool import CandidateLike, pool_of, stream_pool
from polyrank.index.checks import Faults, candidate_faults, refuse
from polyrank.loading import Backend, absolute_name, resolve_encoder
from polyrank.scorers.open import load_encoder
from polyrank.storage.durable import AnyPath
from polyrank_ray.blocks import Plan, begin, digest, is_finished, write_block
from polyrank_ray.cluster import check_arguments, connected, n_gpus, working_in

BLOCK = 4096  # candidates; a multiple of the batch size of an index, so that the vectors have the same bits
DEATHS = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError)


def encode(
    model: str,
    candidates: AnyPath | Iterable[CandidateLike],
    output: AnyPath,
    *,
    workers: int = 1,
    cpus: int = 1,
    block_size: int = BLOCK,
    overwrite: bool = False,
    device: str = "auto",
    backend: Backend = "torch",
    address: str = "auto",
    max_failures: int = 3,
    progress: Callable[[int, int], None] = lambda done, total: None,
    notify: Callable[[str], None] = lambda text: None,
) -> int:
    """Encode candidates on a Ray cluster to a folder of Parquet files; ``index_blocks`` builds an index from it.

    A folder with finished blocks of the same encoder and candidates is resumed.

    Args:
        model: an encoder's name, as for ``polyrank.load``, valid on every node.
        candidates: a file or folder as for ``polyrank.read_pool``, which is read twice; or candidates in memory.
        output: the folder to make, on a disk that all nodes share.
        workers: how many blocks are encoded at the same time; fewer if fewer fit.
        cpus: of each worker, which is also its number of threads.
        block_size: candidates per file.
        overwrite: whether vectors of other candidates or another encoder in the folder may be deleted.
        device: "auto" (one GPU per worker if the cluster has any), "cpu" or "cuda".
        backend: of the model.
        address: see ``connected``.
        max_failures: how often a block is encoded again after its worker has died.
        progress: called with the number of encoded candidates, including earlier calls', and their total.
        notify: called with lines for the user.

    Returns:
        How many candidates this call has encoded.

    Raises:
        ConfigError: the folder holds vectors of other candidates or of another encoder.
        DataError: the candidates cannot be read, or are invalid.
        UsageError: another argument is invalid.
        OfflineError: no cluster answers.
        LostProcessError: workers of a block have died more than ``max_failures`` times; finished blocks are kept.
    """
    check_arguments(address, device, workers=workers, cpus=cpus, block_size=block_size)
    resolve_encoder(model, backend=backend)
    folder = Path(output).absolute()
    if isinstance(candidates, str | os.PathLike):
        first: Iterable[Candidate] = stream_pool(Path(candidates), notify=notify)
        second: Iterable[Candidate] = stream_pool(Path(candidates))
    else:
        first = second = pool_of(candidates)
    n, of_all = _checked(first, block_size)
    with connected(address):
        gpus = n_gpus(device)
        encoder = load_encoder(model, device="cpu", backend=backend)  # for its fingerprint and dimension
        plan = Plan(absolute_name(model), encoder.fingerprint, encoder.dimension, of_all, n, block_size)
        del encoder
        begin(folder, plan, overwrite=overwrite)
        given = (folder, plan, model, "cuda" if gpus else "cpu", backend, Path.cwd())
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=max_failures)(_encode_block)
        running: dict[Any, int] = {}  # the number of candidates by task
        n_encoded = n_kept = 0
        for number, block in enumerate(_blocks(second, block_size)):
            if is_finished(folder, plan, number, block):
                n_kept += len(block)
                continue
            if len(running) == workers:
                n_encoded += running.pop(_first_of(running))
                progress(n_kept + n_encoded, n)
            running[task.remote(number, block, *given)] = len(block)
        while running:
            n_encoded += running.pop(_first_of(running))
            progress(n_kept + n_encoded, n)
    return n_encoded


def _blocks(candidates: Iterable[Candidate], size: int) -> Iterator[list[Candidate]]:
    remaining = iter(candidates)
    while block := list(islice(remaining, size)):
        yield block


def _checked(candidates: Iterable[Candidate], block_size: int) -> tuple[int, str]:
    """The number of candidates and their digest, see ``polyrank_ray.blocks.digest``.

    Raises:
        DataError: names the first five invalid candidates by position.
    """
    faults: Faults = {}
    n = 0

    def counted() -> Iterator[Candidate]:
        nonlocal n
        for block in _blocks(candidates, block_size):
            faults.update({n + i: what for i, what in candidate_faults(block).items()})
            n += len(block)
            yield from block if not faults else ()

    of_all = digest(counted())
    refuse(faults)
    return n, of_all


def _first_of(running: Iterable[Any]) -> Any:
    """The first task that ends.

    Raises:
        PolyrankError: it failed.
    """
    (task,), _ = ray.wait(list(running), num_returns=1)
    try:
        ray.get(task)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except DEATHS as error:
        raise LostProcessError(
            "the workers of a block have died too often; see Ray's logs, and run the same command again to resume"
        ) from error
    return task


def _encode_block(
    number: int,
    candidates: list[Candidate],
    folder: Path,
    plan: Plan,
    model: str,
    device: str,
    backend: Backend,
    cwd: Path,
) -> None:
    """Encode a block and write its file: the task of a worker.

    Raises:
        PolyrankError: the model cannot be opened, or is another one; or the file cannot be written.
    """
    encoder = _encoder(model, device, backend, plan.fingerprint, cwd)
    if not folder.is_dir():
        raise UsageError(
            f"a node of the Ray cluster has no folder {folder}; choose an output on a disk that all nodes share"
        )
    if not is_finished(folder, plan, number, candidates):  # by a worker that died before Ray knew
        write_block(folder, plan, number, candidates, encoder.encode_candidates([c.text for c in candidates]))


@lru_cache(1)
def _encoder(model: str, device: str, backend: Backend, fingerprint: str, cwd: Path) -> Encoder:
    """A process's model."""
    with working_in(cwd):
        encoder = load_encoder(model, device=device, backend=backend)
    if encoder.fingerprint != fingerprint:
        raise UsageError(f"{model} is another model on another node; install the same model on all nodes")
    return encoder
