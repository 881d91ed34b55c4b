"""Encodes a catalogue with Ray Data: actors with the model each encode blocks of candidates to Parquet files.

Ray's own retries are not used, because a pool that lost a node waits for another one. Instead, unfinished blocks are
distributed to the remaining nodes by the same code that resumes an earlier process's folder.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from polyrank.data.pool import CandidateLike, pool_of, stream_pool
from polyrank.errors import LostProcessError, PolyrankError, UsageError
from polyrank.index.checks import check_candidates
from polyrank.integrations.ray.blocks import Plan, begin, is_finished, write_block
from polyrank.integrations.ray.cluster import check_arguments, connected, n_gpus, working_in
from polyrank.integrations.ray.spool import Spool, spooled
from polyrank.loading.models import Backend, absolute_name, resolve_encoder
from polyrank.records import Candidate
from polyrank.scorers.open import load_encoder
from polyrank.storage.durable import AnyPath

BLOCK = 4096  # candidates; a multiple of the batch size of an index, so that the vectors have the same bits
DEATHS = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.ObjectLostError)


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
        candidates: a file or folder as for ``polyrank.read_pool``, or candidates in memory.
        output: the folder to make, on a disk that all nodes share.
        workers: maximum number of actors, each with the model; fewer start if fewer fit.
        cpus: of each actor, which is also its number of threads.
        block_size: candidates per file.
        overwrite: whether vectors of other candidates or another encoder in the folder may be deleted.
        device: "auto" (one GPU per worker if the cluster has any), "cpu" or "cuda".
        backend: of the model.
        address: see ``connected``.
        max_failures: how often encoding continues after workers have died.
        progress: called with the number of encoded candidates, including earlier calls', and their total.
        notify: called with lines for the user.

    Returns:
        How many candidates this call has encoded.

    Raises:
        ConfigError: the folder holds vectors of other candidates or of another encoder.
        DataError: the candidates cannot be read, or are invalid.
        UsageError: another argument is invalid.
        OfflineError: no cluster answers.
        LostProcessError: workers have died more than ``max_failures`` times; finished blocks are kept.
    """
    check_arguments(address, device, workers=workers, cpus=cpus, block_size=block_size)
    resolve_encoder(model, backend=backend)
    folder = Path(output).absolute()
    pool: Iterable[Candidate]
    if isinstance(candidates, str | os.PathLike):
        pool = stream_pool(Path(candidates), notify=notify)
    else:
        check_candidates(pool := pool_of(candidates))
    with spooled(pool, folder, block_size) as spool, connected(address):
        gpus = n_gpus(device)
        encoder = load_encoder(model, device="cpu", backend=backend)  # for its fingerprint and dimension
        plan = Plan(absolute_name(model), encoder.fingerprint, encoder.dimension, spool.digest, spool.n, block_size)
        del encoder
        begin(folder, plan, overwrite=overwrite)
        actor = {
            "model": model,
            "device": "cuda" if gpus else "cpu",
            "backend": backend,
            "folder": folder,
            "plan": plan,
            "spool": spool,
            "cwd": Path.cwd(),
        }
        left = _unfinished(folder, plan, spool)
        n_before = n_done = plan.n - _count(plan, left)
        if n_before:
            notify(f"{folder}: {n_before:,} of {plan.n:,} candidates are encoded already")
        n_failures = 0
        while left:
            try:
                for number in _encode(left, actor, workers, cpus, gpus):
                    n_done += _count(plan, [number])
                    progress(n_done, plan.n)
            except DEATHS as error:
                n_failures += 1
                if n_failures > max_failures:
                    message = (
                        f"workers have died {n_failures} times, with {len(left):,} of {plan.n_blocks:,} blocks left;"
                        " see Ray's logs, and run the same command again to resume"
                    )
                    raise LostProcessError(message) from error
                notify(f"a worker has died; its part of the {plan.n_blocks:,} blocks is distributed again")
            left = _unfinished(folder, plan, spool)
            n_done = plan.n - _count(plan, left)
    return plan.n - n_before


def _unfinished(folder: Path, plan: Plan, spool: Spool) -> list[int]:
    """Numbers of the blocks without a valid file."""
    return [n for n in range(plan.n_blocks) if not is_finished(folder, plan, n, spool.block(n))]


def _count(plan: Plan, numbers: Sequence[int]) -> int:
    """Number of candidates in these blocks."""
    return sum(min(plan.block_size, plan.n - number * plan.block_size) for number in numbers)


def _encode(
    left: Sequence[int],
    actor: dict[str, Any],
    workers: int,
    cpus: int,
    gpus: int,
) -> Iterator[int]:
    """Yields the number of each block once its file exists."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    blocks = ray.data.from_items([{"number": number} for number in left], override_num_blocks=len(left))
    size = min(workers, len(left))
    with warnings.catch_warnings(action="ignore"):  # Ray offers no other way yet to pass max_restarts
        written = blocks.map_batches(
            _Encoder,
            fn_constructor_kwargs=actor,
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(
                min_size=1, max_size=size, initial_size=size, max_tasks_in_flight_per_actor=2
            ),
            num_cpus=cpus,
            num_gpus=gpus or None,
            max_restarts=0,
        )
    for row in written.iter_rows():
        if row["error"]:
            error = PolyrankError(row["error"])
            error.exit_code = row["code"]
            raise error
        yield row["number"]


class _Encoder:
    """An actor with a model. It returns polyrank's errors as results, so that Ray sees only the death of an actor."""

    def __init__(
        self, model: str, device: str, backend: Backend, folder: Path, plan: Plan, spool: Spool, cwd: Path
    ) -> None:
        self.folder, self.plan, self.spool = folder, plan, spool
        self.failure: PolyrankError | None = None
        try:
            with working_in(cwd):
                self.encoder = load_encoder(model, device=device, backend=backend)
            if self.encoder.fingerprint != plan.fingerprint:
                raise UsageError(f"{model} is another model on another node; install the same model on all nodes")
        except PolyrankError as error:
            self.failure = error

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        (row,) = batch.to_pylist()
        outcome = {"number": [row["number"]], "error": [""], "code": [0]}
        try:
            if self.failure is not None:
                raise self.failure
            candidates = self._candidates(row["number"])
            if not is_finished(self.folder, self.plan, row["number"], candidates):
                texts = [candidate.text for candidate in candidates]
                vectors = self.encoder.encode_candidates(texts)
                write_block(self.folder, self.plan, row["number"], candidates, vectors)
        except PolyrankError as error:
            outcome |= {"error": [str(error)], "code": [error.exit_code]}
        return outcome

    def _candidates(self, number: int) -> list[Candidate]:
        try:
            return self.spool.block(number)
        except FileNotFoundError as error:
            raise UsageError(
                f"a node of the Ray cluster has no file {self.spool.file}; choose an output on a disk that all nodes"
                " share"
            ) from error
