"""A catalogue encoded by Ray Data: blocks of candidates to actors that hold the model, and a Parquet file from each.

Ray's own retries are not used. A pool that has lost a node would wait for another one; here what is not finished is
dealt anew to the nodes that are there, by the same code that goes on with a folder which an earlier process has left.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from polyrank.data.pool import CandidateLike, pool_of, read_pool
from polyrank.errors import LostProcessError, PolyrankError, UsageError
from polyrank.index.checks import check_candidates
from polyrank.integrations.ray.blocks import Plan, begin, digest, is_finished, write_block
from polyrank.integrations.ray.cluster import check_arguments, connected, n_gpus, working_in
from polyrank.loading.models import Backend, absolute_name, resolve_encoder
from polyrank.records import Candidate
from polyrank.scorers.open import load_encoder
from polyrank.storage.durable import AnyPath

BLOCK = 4096  # candidates; a multiple of what an index encodes at a time, so that the vectors are the same bits
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
    """Encode candidates on a Ray cluster to a folder of Parquet files, of which ``index_blocks`` makes an index.

    A folder that holds finished blocks of the same encoder and candidates is gone on with.

    Args:
        model: an encoder's name, as ``polyrank.load`` takes it, on every node.
        candidates: a file or a folder of files as ``polyrank.read_pool`` takes them, or candidates from memory.
        output: the folder to make, on a disk that all nodes see.
        workers: actors at most, each with the model; there are as many as there is room for.
        cpus: of each, which computes on as many threads.
        block_size: candidates of a file.
        overwrite: whether vectors of other candidates or another encoder in the folder may be deleted.
        device: "auto" (a GPU for each worker where the cluster has any), "cpu" or "cuda".
        backend: of the model.
        address: see ``connected``.
        max_failures: how often it goes on after workers have died.
        progress: told how many candidates are encoded, those of earlier too, and of how many.
        notify: called with lines for the user.

    Returns:
        How many candidates this call has encoded.

    Raises:
        ConfigError: the folder holds vectors of other candidates or of another encoder.
        DataError: the candidates cannot be read, or are faulty.
        OfflineError: there is no cluster.
        LostProcessError: workers have died more often than ``max_failures``; what is finished stays.
    """
    check_arguments(address, device)
    resolve_encoder(model, backend=backend)
    folder = Path(output).absolute()
    pool = (
        read_pool(Path(candidates), notify=notify) if isinstance(candidates, str | os.PathLike) else pool_of(candidates)
    )
    check_candidates(pool)
    with connected(address):
        gpus = n_gpus(device)
        encoder = load_encoder(model, device="cpu", backend=backend)  # here: to know of it, before anybody starts
        plan = Plan(absolute_name(model), encoder.fingerprint, encoder.dimension, digest(pool), len(pool), block_size)
        del encoder
        begin(folder, plan, overwrite=overwrite)
        actor = {
            "model": model,
            "device": "cuda" if gpus else "cpu",
            "backend": backend,
            "folder": folder,
            "plan": plan,
            "cwd": Path.cwd(),
        }
        left = _unfinished(folder, plan, pool)
        n_before = n_done = len(pool) - _count(plan, left)
        if n_before:
            notify(f"{folder}: {n_before:,} of {len(pool):,} candidates are encoded already")
        n_failures = 0
        while left:
            try:
                for number in _encode(pool, plan, left, actor, workers, cpus, gpus):
                    n_done += _count(plan, [number])
                    progress(n_done, len(pool))
            except DEATHS as error:
                n_failures += 1
                if n_failures > max_failures:
                    raise LostProcessError(
                        f"workers have died {n_failures} times, with {len(left):,} of {plan.n_blocks:,} blocks left;"
                        " see what Ray's logs say of them, and run it again: it goes on where it stopped"
                    ) from error
                notify(f"a worker has died; what it had of {plan.n_blocks:,} blocks is dealt anew")
            left = _unfinished(folder, plan, pool)
            n_done = len(pool) - _count(plan, left)
    return len(pool) - n_before


def _unfinished(folder: Path, plan: Plan, pool: Sequence[Candidate]) -> list[int]:
    """The numbers of blocks without a sound file of them."""
    return [n for n in range(plan.n_blocks) if not is_finished(folder, plan, n, pool[plan.block(n)])]


def _count(plan: Plan, numbers: Sequence[int]) -> int:
    """How many candidates blocks have."""
    return sum(min(plan.block_size, plan.n - number * plan.block_size) for number in numbers)


def _encode(
    pool: Sequence[Candidate],
    plan: Plan,
    left: Sequence[int],
    actor: dict[str, Any],
    workers: int,
    cpus: int,
    gpus: int,
) -> Iterator[int]:
    """The numbers of blocks, as their files are there."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    blocks = ray.data.from_items([_row(n, pool[plan.block(n)]) for n in left], override_num_blocks=len(left))
    size = min(workers, len(left))
    with warnings.catch_warnings(action="ignore"):  # max_restarts has no other way in yet
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


def _row(number: int, candidates: Sequence[Candidate]) -> dict[str, Any]:
    return {
        "number": number,
        "ids": [candidate.id for candidate in candidates],
        "texts": [candidate.text for candidate in candidates],
        "metadata": json.dumps([candidate.metadata for candidate in candidates]),
    }


class _Encoder:
    """An actor's model. An error of ours is a result: the death of an actor alone is one for Ray."""

    def __init__(self, model: str, device: str, backend: Backend, folder: Path, plan: Plan, cwd: Path) -> None:
        self.folder, self.plan = folder, plan
        self.failure: PolyrankError | None = None
        try:
            with working_in(cwd):
                self.encoder = load_encoder(model, device=device, backend=backend)
            if self.encoder.fingerprint != plan.fingerprint:
                raise UsageError(f"{model} is another model on another node; give all nodes the same one")
        except PolyrankError as error:
            self.failure = error

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        (row,) = batch.to_pylist()
        outcome = {"number": [row["number"]], "error": [""], "code": [0]}
        try:
            if self.failure is not None:
                raise self.failure
            rows = zip(row["ids"], row["texts"], json.loads(row["metadata"]), strict=True)
            candidates = [Candidate(*values) for values in rows]
            if not is_finished(self.folder, self.plan, row["number"], candidates):
                texts = [candidate.text for candidate in candidates]
                vectors = self.encoder.encode_candidates(texts)
                write_block(self.folder, self.plan, row["number"], candidates, vectors)
        except PolyrankError as error:
            outcome |= {"error": [str(error)], "code": [error.exit_code]}
        return outcome
