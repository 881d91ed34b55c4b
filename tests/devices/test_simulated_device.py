"""Computations on a simulated device: no mixed devices, few waits, and the CPU's results."""

import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from convert_models import make
from polyrank.answering.build import add_to_index, build_index
from polyrank.answering.replies import Replies
from polyrank.cli.commands import app
from polyrank.config.train import NetworkTraining
from polyrank.devices.choice import choose_device
from polyrank.devices.pipeline import AHEAD
from polyrank.errors import ArtifactError, DataError
from polyrank.feedback import FeedbackStore, Outcome, Reply, Shown
from polyrank.index import Block, open_index, open_writer, write_index
from polyrank.records import Candidate, Context
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.joined import Joined, Scaled
from polyrank.scorers.open import load_encoder
from polyrank.scorers.protocols import Encoder
from polyrank.search import Result, score_rows, search
from polyrank.search.best import Best
from polyrank.search.on_device import _passes, device_vectors, upper_bounds
from polyrank.serving.worker import Setup, _open_models
from polyrank.storage.quantized import Precision, pack
from polyrank.training import train
from polyrank.training.optimizer import make_optimizer
from shared_fixtures import WORDS
from simulated import DEVICE, MAC, SimulatedDevice
from test_index import Hashed
from test_ranks import KINDS, curve, recipe
from test_rerank import recipe as rerank_recipe
from test_search import ListedInTurn
from varlen_kernels import varlen_kernels


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """A simulated device that ``choose_device("cuda")`` returns."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    # optimizers of torch's CUDA build ask the driver, which is not there
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: None)
    with SimulatedDevice() as simulated:
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: simulated)
        yield simulated


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """A simulated Apple GPU, which "auto" chooses."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    monkeypatch.setattr(torch.mps, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", torch.set_rng_state)
    with SimulatedDevice(MAC) as simulated:
        yield simulated


def test_mixed_devices_are_refused_and_waits_counted(device: SimulatedDevice) -> None:
    here, there = torch.ones(3), torch.ones(3, device="cuda")
    assert there.device == (2 * there + 1).device == DEVICE
    assert here.device.type == "cpu"
    with pytest.raises(RuntimeError, match="mixes devices"):
        here + there
    with pytest.raises(RuntimeError, match="mixes devices"):
        torch.stack([here, there])
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert (there + torch.tensor(1.0)).device == DEVICE  # a host scalar is allowed
    assert not device.waits
    assert float(there.sum()) == 3.0
    assert there.cpu().tolist() == [1.0, 1.0, 1.0]
    assert sum(device.waits.values()) == 2
    layer = torch.nn.Linear(3, 2).to("cuda")
    loss = layer(there).square().sum()
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == DEVICE


Free = list[int]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Free:
    """Bytes of free memory that the device reports."""
    size = [2**40]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (size[0], 2**40))
    return size


def blocks_of(precision: Precision, *, seed: int = 0, n: int = 6000, d: int = 16) -> list[Block]:
    """A block with copies and removed rows, one with offsets, and one that is small."""
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(n, d)).astype(np.float32)
    vectors[100:200] = vectors[4000:4100]  # ties
    return [
        Block(pack(vectors, precision), np.arange(n), generator.random(n) < 0.9),
        Block(pack(vectors[:5000] * 1.01, precision), np.arange(n, n + 5000), None, vectors[:5000, 0].copy()),
        Block(pack(vectors[:300] * 0.9, precision), np.arange(2 * n, 2 * n + 300)),
    ]


def assert_equal(some: Sequence[Result], others: Sequence[Result]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        assert one.scores.tolist() == other.scores.tolist()
        assert one.exact == other.exact


def assert_searched_as_by_the_cpu(blocks: Sequence[Block], n_vectors: int) -> None:
    """8 contexts, of large and small products too, in all candidates and in few."""
    d = blocks[0].vectors.shape[1]
    generator = np.random.default_rng(n_vectors)
    contexts = generator.normal(size=(8, n_vectors, d)).astype(np.float32) * 0.1 + 1
    contexts[3] *= 30  # products of hundreds
    contexts[4] = 1e-3
    mask = np.ones((8, n_vectors), np.bool_)
    mask[:, 1:] = generator.random((8, n_vectors - 1)) < 0.7
    for k in (1, 10, 500):
        on_device = search(contexts, mask, blocks, k, device="cuda")
        assert_equal(on_device, search(contexts, mask, blocks, k))
        assert all(result.ways[0] == "device" and result.exact for result in on_device)
    few = [replace(block, alive=np.arange(len(block.rows)) % 1000 == 0) for block in blocks]
    assert_equal(search(contexts, mask, few, 10, device="cuda"), search(contexts, mask, few, 10))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("n_vectors", "precision"),
    [(n, precision) for n in (1, 2, 4, 40) for precision in ("fp32", "bf16", "int8")],
)
def test_a_search_on_a_device_returns_the_cpus_answer(
    n_vectors: int, precision: Precision, device: SimulatedDevice, free: Free
) -> None:
    assert_searched_as_by_the_cpu(blocks_of(precision), n_vectors)


def test_a_device_keeps_a_block_and_waits_a_few_times_for_each_context(device: SimulatedDevice, free: Free) -> None:
    contexts, mask = np.ones((5, 2, 16), np.float32), np.ones((5, 2), np.bool_)
    blocks = blocks_of("fp32")[:2]
    search(contexts, mask, blocks, 10, device="cuda")
    device.copies, _ = 0, device.waits.clear()
    first = search(contexts, mask, blocks, 10, device="cuda")
    assert device.copies == 4  # the contexts for each block, the marks of removed rows, the offsets
    assert sum(device.waits.values()) <= 5 * len(contexts) * len(blocks)
    assert all(result.n_scored < 600 for result in first)


def test_a_damaged_vector_of_a_later_block_is_refused(device: SimulatedDevice, free: Free) -> None:
    """After the first block, only bounds above a threshold count."""
    first, second = blocks_of("fp32")[:2]
    vectors = np.array(second.vectors)
    vectors[len(vectors) // 2, 3] = np.nan
    for where in ("cuda", "cpu"):
        with pytest.raises(ArtifactError, match="not finite"):
            search(
                np.ones((1, 2, 16), np.float32),
                np.ones((1, 2), np.bool_),
                [first, replace(second, vectors=vectors)],
                10,
                device=where,
            )


@pytest.mark.deep
def test_many_contexts_are_bounded_in_passes(
    device: SimulatedDevice, free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = np.random.default_rng(0).normal(size=(5, 3, 16)).astype(np.float32)
    mask, blocks = np.ones((5, 3), np.bool_), blocks_of("int8")
    for name, value in (("BOUNDS", 13_000), ("COLUMNS", 7), ("NUMBERS", 16 * 100), ("ROWS_AT_A_TIME", 1000)):
        monkeypatch.setattr(f"polyrank.search.on_device.{name}", value)
    assert_equal(search(contexts, mask, blocks, 10, device="cuda"), search(contexts, mask, blocks, 10))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_vectors_copied_in_parts_equal_those_copied_at_once(
    precision: Precision, device: SimulatedDevice, free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).normal(size=(1001, 16)).astype(np.float32)
    copies = []
    for rows_at_a_time in (2000, 1000, 143):
        monkeypatch.setattr("polyrank.search.on_device.ROWS_AT_A_TIME", rows_at_a_time)
        copies.append(device_vectors(pack(vectors, precision), DEVICE))  # packed again: a copy is made once
    for copy in copies:
        assert copy is not None
        assert copy[:].shape == vectors.shape
        assert (copy[:] - torch.from_numpy(vectors).to(DEVICE)).abs().max() < 0.05
        assert torch.equal(copy[:], copies[0][:])
        assert torch.equal(copy.row_errors, copies[0].row_errors)


@pytest.mark.parametrize(
    ("sizes", "n_candidates", "expected"),
    [
        ([3, 3, 3, 3, 3], 10, [2, 2, 1]),  # 7 vectors at most
        ([3, 4, 7, 1], 10, [2, 1, 1]),  # a limit is still allowed
        ([9, 9], 10, [1, 1]),  # one context is never split
        ([1, 1, 1, 1, 1], 100, [3, 2]),  # 300 bounds at most
        ([1, 1], 1000, [1, 1]),
    ],
)
def test_a_pass_takes_as_many_contexts_as_its_limits_allow(
    sizes: list[int], n_candidates: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.search.on_device.COLUMNS", 7)
    monkeypatch.setattr("polyrank.search.on_device.BOUNDS", 300)
    bests = [Best(np.ones((size, 4), np.float32), 5) for size in sizes]
    passes = [list(some) for some in _passes(bests, n_candidates)]
    assert [len(some) for some in passes] == expected
    assert [best for some in passes for best in some] == bests


def test_a_block_that_does_not_fit_is_scanned_by_the_cpu(device: SimulatedDevice, free: Free) -> None:
    contexts, mask = np.ones((2, 3, 16), np.float32), np.ones((2, 3), np.bool_)
    free[0] = 2 * 5500 * (2 * 16 + 8)
    blocks = blocks_of("fp32")  # of 6,000 candidates, 5,000, and 300
    results = search(contexts, mask, blocks, 10, device="cuda")
    assert_equal(results, search(contexts, mask, blocks, 10))
    assert all(len(result.ways) > 1 and "device" in result.ways for result in results)
    (result, _) = search(contexts, mask, blocks[:1], 10, device="cuda")
    assert "device" not in result.ways


def test_a_device_scans_a_block_only_for_contexts_whose_list_is_too_short(device: SimulatedDevice, free: Free) -> None:
    (block, *_) = blocks_of("fp32")
    block = replace(block, alive=None)
    contexts = np.random.default_rng(2).normal(size=(6, 3, 16)).astype(np.float32)
    mask = np.arange(3) < np.array([1, 2, 3, 1, 3, 2])[:, None]
    index = ListedInTurn(block.vectors[:], lengths := [60, 3, 0, 5, 2, 60])
    found = search(contexts, mask, [block], 10, mode="approximate", indexes=[index], device="cuda")
    index.lengths = lengths
    assert_equal(found, search(contexts, mask, [block], 10, mode="approximate", indexes=[index]))
    assert [result.ways for result in found] == [("shortlist",) if n >= 10 else ("device",) for n in lengths]


def test_a_damaged_vector_on_a_device_is_refused(device: SimulatedDevice, free: Free) -> None:
    (block, *_) = blocks_of("fp32")
    block.vectors[77] = np.nan
    block = replace(block, alive=None)
    with pytest.raises(ArtifactError, match="its vector is damaged"):
        search(np.ones((1, 2, 16), np.float32), np.ones((1, 2), np.bool_), [block], 10, device="cuda")


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_no_score_is_above_its_bound_on_a_device(
    scale: float, precision: Precision, device: SimulatedDevice, free: Free
) -> None:
    generator = np.random.default_rng(3)
    for n_vectors in (1, 2, 30):
        contexts = (scale * generator.normal(size=(n_vectors, 16))).astype(np.float32)
        vectors = generator.normal(size=(5000, 16)).astype(np.float32) * generator.exponential(size=(5000, 1))
        block = Block(pack(vectors.astype(np.float32), precision), np.arange(5000))
        copy = device_vectors(block.vectors, DEVICE)
        assert copy is not None
        (bounds,) = upper_bounds([Best(contexts, 1)], copy).cpu().numpy()
        scores = score_rows(contexts, np.ones(n_vectors, np.bool_), block.vectors[:])
        assert (bounds >= scores).all()
        if scale >= 1 and n_vectors == 1:  # bf16 loses half a percent at most
            lengths = np.linalg.norm(contexts) * np.linalg.norm(block.vectors[:], axis=1)
            assert (bounds - scores <= (0.005 if precision == "fp32" else 1e-5) * lengths).all()


@pytest.mark.deep
def test_answers_of_an_index_come_from_the_device(device: SimulatedDevice, free: Free, tmp_path: Path) -> None:
    pool = [Candidate(f"c{i}", f"reply {i} w{i % 50} w{i % 7}", {"n": i}) for i in range(5000)]
    vectors = Hashed().encode_candidates([candidate.text for candidate in pool])
    write_index(tmp_path / "ix", pool, vectors, fingerprint="f" * 64, model="m", precision="int8")
    with open_index(tmp_path / "ix") as index:
        own, there = Replies(Hashed(), index), Replies(Hashed(), index, device="cuda")
        for filter in (None, "n > 100"):
            answer, expected = (retriever.answer("w3 w4 reply", 10, filter=filter) for retriever in (there, own))
            assert answer.ranked == expected.ranked
            assert answer.exact
            assert answer.ways == ("device",)


QUEUE = "bi, chunks"


def test_each_model_process_of_a_server_opens_models_on_its_gpu(
    device: SimulatedDevice, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    setup = Setup({"m": f"untuned:{tiny_backbone}"}, "auto", "torch", None)
    for number in range(3):
        (network,) = _open_models(replace(setup, number=number))["m"].scorer.networks
        assert network.device == torch.device("cuda", number % 2)


# per step: loss and norm are read together; torch groups gradients by their real device, which counts as a wait;
# of a late Cross-encoder, what the frozen layers compute of each side is kept in host memory
WAITS = {"mutual": 4, "distilled": 3, "bi, chunks": 5, "late": 3}


@pytest.mark.parametrize(("kind", "other"), [("rerank", "first_stage"), ("distill", "teacher")])
def test_a_training_and_its_test_are_on_the_cpu_if_the_caller_says_so(
    kind: str,
    other: str,
    task: dict[str, Path],
    tiny_backbone: Path,
    tiny_encoders: dict[str, Path],
    tmp_path: Path,
    device: SimulatedDevice,
) -> None:
    """So are the other models that they load, although there is a GPU, which "auto" chooses."""
    assert choose_device("auto").type == "cuda"
    first = str(tiny_encoders["bi"])
    changes = {"precision": "fp32", "max_steps": 1, "method": {"kind": kind, other: first}}
    plan = rerank_recipe({**task, "test": task["valid"]}, tiny_backbone, first, tmp_path / "run", **changes)
    if kind != "rerank":
        del plan["train"]["method"]["first_stage"]
    (result,) = train(plan, device="cpu")
    assert result.test["metrics"]
    assert device.copies == 0


@pytest.mark.deep
@pytest.mark.parametrize("name", KINDS)
def test_a_training_on_a_device_equals_the_cpus(
    name: str,
    task: dict[str, Path],
    tiny_backbone: Path,
    tmp_path: Path,
    device: SimulatedDevice,
) -> None:
    """Losses equal bit for bit, and each step has at most the known number of waits for the device."""
    train(recipe("cross", task, tiny_backbone, tmp_path / "teacher", max_steps=1))
    waits = {}
    for place, n_steps in (("cpu", 3), ("cuda", 2), ("cuda", 3)):
        before = device.waits.total()
        folder = tmp_path / f"{place}{n_steps}"
        shutil.copytree(tmp_path / "teacher", folder / "teacher")
        train(recipe(name, task, tiny_backbone, folder / name, max_steps=n_steps, epochs=1), device=place)
        waits[place, n_steps] = device.waits.total() - before
    assert curve(tmp_path / "cuda3" / name) == curve(tmp_path / "cpu3" / name)
    assert waits["cpu", 3] == 0
    assert waits["cuda", 3] - waits["cuda", 2] <= WAITS.get(name, 2)


@pytest.mark.deep
def test_a_training_without_padding_equals_the_cpus(
    uneven_task: dict[str, Path],
    tiny_backbone: Path,
    tmp_path: Path,
    device: SimulatedDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Losses are equal up to rounding, and a step waits no more often than with padding."""
    waits = {}
    with varlen_kernels(monkeypatch) as attended:
        for place, n_steps in (("cpu", 4), ("cuda", 2), ("cuda", 4)):
            before = device.waits.total()
            folder = tmp_path / f"{place}{n_steps}"
            train(recipe("poly", uneven_task, tiny_backbone, folder, max_steps=n_steps, epochs=1), device=place)
            waits[place, n_steps] = device.waits.total() - before
            assert bool(attended) == (place == "cuda")
    assert (waits["cuda", 4] - waits["cuda", 2]) / 2 <= WAITS.get("poly", 2)
    found, expected = (dict(curve(tmp_path / folder)) for folder in ("cuda4", "cpu4"))
    losses = [f" {step} " for step in range(1, 5)]
    assert [found[step] for step in losses] == pytest.approx([expected[step] for step in losses], rel=1e-5)


@pytest.mark.deep
def test_adamw_is_fused_on_a_device_and_its_state_moves(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, device: SimulatedDevice
) -> None:
    """A training that moves from the device to the CPU and back has the CPU's losses, up to rounding."""
    for place, fused in (("cpu", None), ("cuda", True)):
        assert make_optimizer(make()[0].to(place), NetworkTraining()).defaults["fused"] is fused
    changes = {"optimizer": "adamw", "lr": 1e-3, "epochs": 1}
    train(recipe("poly", task, tiny_backbone, tmp_path / "cpu", max_steps=6, **changes), device="cpu")
    for place, n_steps in (("cuda", 4), ("cpu", 5), ("cuda", 6)):
        plan = recipe("poly", task, tiny_backbone, tmp_path / "moved", max_steps=n_steps, **changes)
        train(plan, device=place, resume=True)
    found, expected = dict(curve(tmp_path / "moved")), dict(curve(tmp_path / "cpu"))
    losses = [f" {step} " for step in range(1, 7)]
    assert [found[step] for step in losses] == pytest.approx([expected[step] for step in losses], rel=1e-6)


@pytest.mark.deep
def test_a_training_resumed_on_a_device_has_the_bits_of_a_whole_one(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, device: SimulatedDevice
) -> None:
    changes = {"optimizer": "adamw", "lr": 1e-3, "epochs": 1}
    losses = [f" {step} " for step in range(1, 7)]
    train(recipe("poly", task, tiny_backbone, tmp_path / "whole", max_steps=6, **changes), device="cuda")
    for n_steps in (4, 6):
        plan = recipe("poly", task, tiny_backbone, tmp_path / "resumed", max_steps=n_steps, **changes)
        train(plan, device="cuda", resume=True)
    whole, resumed = (dict(curve(tmp_path / folder)) for folder in ("whole", "resumed"))
    assert [resumed[step] for step in losses] == [whole[step] for step in losses]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.deep
def test_a_training_on_a_simulated_mac_equals_the_cpus(
    name: str, task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, mac: SimulatedDevice
) -> None:
    """ "auto" is fp32 on Apple's GPU; validation and mining run there as well."""
    with pytest.raises(TypeError, match="float64"):
        torch.ones(1, device="mps").double()
    train(recipe("cross", task, tiny_backbone, tmp_path / "teacher", max_steps=1), device="cpu")
    for place, precision in (("cpu", "fp32"), ("auto", "auto")):
        folder = tmp_path / place
        shutil.copytree(tmp_path / "teacher", folder / "teacher")
        changes = {"max_steps": 3, "epochs": 1, "precision": precision}
        train(recipe(name, task, tiny_backbone, folder / name, **changes), device=place)
        assert (mac.copies > 0) == (place == "auto")
    assert curve(tmp_path / "auto" / name) == curve(tmp_path / "cpu" / name)


TEXTS = [" ".join(WORDS[(7 * i + j) % 19] for j in range(1 + (i + i // 19 * 2) % 5)) for i in [*range(45), *range(15)]]
TEXTS[18] = f"hello {WORDS[-1]}"  # the only one with this word
PARTS = [TEXTS[start : start + 8] for start in range(0, len(TEXTS), 8)]
IN_A_THREAD = "polyrank-batches"


@pytest.fixture
def encoders(tiny_encoders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Encoder]:
    """Makes encoders by their kind and device; indexes are built in small parts."""
    monkeypatch.setattr("polyrank.answering.build.TEXTS_AT_A_TIME", 8)

    def one(kind: str, place: str) -> EncoderScorer:
        scorer = load_encoder(str(tiny_encoders[kind]), device=place)
        assert isinstance(scorer, EncoderScorer)
        scorer.max_tokens = 24  # several batches in each part, the same on both devices
        return scorer

    def encoder(kind: str, place: str) -> Encoder:
        if kind == "sum":
            return Joined([Scaled(one("bi", place), 0.5), one("poly", place)])
        bi = one("bi", place)
        if kind == "truncated":
            bi.truncate(8)
        return bi

    return encoder


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(IN_A_THREAD)]


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["bi", "truncated", "sum"])
def test_an_index_built_by_a_device_has_the_bits_of_parts_encoded_one_by_one(
    kind: str, encoders: Callable[[str, str], Encoder], device: SimulatedDevice, tmp_path: Path
) -> None:
    pool = [Candidate(f"c{i}", text) for i, text in enumerate(TEXTS)]
    alone = {place: encoders(kind, place) for place in ("cuda", "cpu")}
    device.waits.clear()
    expected = {place: [encoder.encode_candidates(part) for part in PARTS] for place, encoder in alone.items()}
    waits = device.waits.total()
    assert np.concatenate(expected["cuda"]).tobytes() == np.concatenate(expected["cpu"]).tobytes()
    for place in ("cuda", "cpu"):
        encoder = encoders(kind, place)
        device.waits.clear()
        assert build_index(tmp_path / place, encoder, pool, name="m") == len(set(TEXTS)) < len(TEXTS)
        assert device.waits.total() == (waits if place == "cuda" else 0)
        with open_index(tmp_path / place) as index:
            assert [candidate for _, candidate in index.iter_candidates()] == pool
            assert index.blocks()[0].vectors[:].tobytes() == np.concatenate(expected[place]).tobytes()
    build_index(tmp_path / "grown", alone["cuda"], pool[:1], name="m")
    with open_writer(tmp_path / "grown") as writer:
        assert add_to_index(writer, encoders(kind, "cuda"), pool) == len(pool) - 1
    with open_index(tmp_path / "grown") as index:
        vectors = index.vectors([candidate.id for candidate in pool])
        np.testing.assert_allclose([*vectors.values()], np.concatenate(expected["cuda"]), atol=1e-5)
    assert not threads()


@pytest.mark.deep
def test_lists_are_read_and_tokenized_a_few_ahead_of_a_device(
    encoders: Callable[[str, str], Encoder], device: SimulatedDevice
) -> None:
    for place, most in (("cuda", 2 + AHEAD), ("cpu", 1)):
        n_read = 0

        def lists() -> Iterator[list[str]]:
            nonlocal n_read
            for number in range(30):
                n_read += 1
                yield [f"hello {number}"]

        with closing(encoders("bi", place).encode_lists(lists())) as encoded:
            leads = [n_read - number for number, _ in enumerate(encoded)]
            assert not threads() or place == "cuda"
        assert max(leads) == most
        assert len(leads) == n_read == 30
    assert not threads()


def failure(work: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises((Exception, KeyboardInterrupt)) as caught:
        work()
    return caught.type, str(caught.value)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in a job that was started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.deep
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("stage", ["tokens", "network", "vectors", "interrupt"])
def test_an_error_while_an_index_is_built_by_a_device_is_that_of_the_cpu_and_leaves_nothing(
    stage: str, encoders: Callable[[str, str], Encoder], device: SimulatedDevice, tmp_path: Path
) -> None:
    pool = [Candidate(f"c{i}", text) for i, text in enumerate(TEXTS)]
    failures = []
    for place in ("cpu", "cuda"):
        encoder = encoders("bi", place)
        (network,) = encoder.networks
        words = network.model.get_submodule("candidate_tower.backbone.network.embeddings.word_embeddings")
        if stage == "network":
            words.weight = torch.nn.Parameter(words.weight[:-1])  # the network fails at the last word
        elif stage == "vectors":
            words.weight.data[-1] = torch.nan  # the writer refuses them

        def progress(done: int, total: int) -> None:
            if stage == "interrupt" and done > 20:
                signal.raise_signal(signal.SIGINT)

        if stage == "tokens":
            failures.append(failure(lambda: [*encoder.encode_lists([["hello"], ["\ud800"]])]))  # noqa: B023
        else:
            failures.append(failure(lambda: build_index(tmp_path / "i", encoder, pool, name="m", progress=progress)))  # noqa: B023
        assert not [*tmp_path.iterdir()]
        assert not threads()
    assert failures[0] == failures[1]
    kind, message = {
        "tokens": (DataError, "lone surrogate"),
        "network": (IndexError, "index out of range"),
        "vectors": (DataError, "candidate 18: its vector holds NaN"),
        "interrupt": (KeyboardInterrupt, ""),
    }[stage]
    assert failures[0][0] is kind
    assert message in failures[0][1]


COMMANDS = (
    "explain MODEL hello --reply thanks",
    "index build MODEL REPLIES -o OUT",
    "explain INDEX hello --reply thanks",
    "respond INDEX hello",
    "rank MODEL hello REPLIES",
    "evaluate MODEL LISTS",
    "mine PAIRS --from MODEL -o OUT --ranks 1:2",
    "index add INDEX PAIRS",
    "feedback train STORE MODEL -o OUT --set train.epochs=1 --set train.precision=fp32",
)


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=pytest.mark.deep if number > 1 else ()) for number, one in enumerate(COMMANDS)]
)
def test_a_command_computes_on_the_device_that_it_is_given(
    command: str, device: SimulatedDevice, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    """Without the option, on the GPU."""
    rows: dict[str, list[Any]] = {
        "REPLIES": [{"text": text} for text in TEXTS[:4]],
        "LISTS": [{"context": ["hi"], "candidates": TEXTS[:3], "relevant": [1]}],
        "PAIRS": [{"id": f"{n}", "text": text, "context": ["hi"], "response": text} for n, text in enumerate(TEXTS)],
    }
    files = {name: tmp_path / f"{name}.jsonl" for name in rows}
    for name, file in files.items():
        file.write_text("".join(json.dumps(row) + "\n" for row in rows[name]), "utf-8")
    if "STORE" in command:
        files["STORE"] = tmp_path / "kept.db"
        with FeedbackStore(files["STORE"], keep_text=True) as store:
            for number in range(24):
                replies = tuple(Reply(text, text=text) for text in TEXTS[number % 7 : 42 : 7])
                store.record(Shown(f"{number}", replies, Context((f"hello {WORDS[number % 19]} {number}",))))
                store.record(Outcome(f"{number}", "taken", replies[number % 3].id))
    copies = list[int]()
    for options in (["--device", "cpu"], []):
        index = tmp_path / f"index{len(copies)}"
        if "INDEX" in command:
            build_index(
                index,
                load_encoder(str(tiny_encoders["bi"]), device="cpu"),
                [Candidate("a", TEXTS[0])],
                name=str(tiny_encoders["bi"]),
            )
        words = {**files, "MODEL": tiny_encoders["bi"], "INDEX": index, "OUT": tmp_path / f"{len(copies)}.jsonl"}
        arguments = [str(words.get(word, word)) for word in command.split()]
        device.copies = 0
        done = CliRunner().invoke(app, [*arguments, *options])
        assert done.exit_code == 0, (done.exception, done.output)
        copies.append(device.copies)
    assert copies[0] == 0 < copies[1]
