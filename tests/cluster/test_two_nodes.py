"""A Ray cluster of two nodes, one of which is killed: equal losses, each text once, an answer to every request."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import polyrank
import ray_nodes
from attached import end_with_parent
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.errors import ConfigError, OfflineError, UsageError
from polyrank.training import train
from polyrank_ray import cluster as connection, encode, train as train_on_ray
from polyrank_ray.blocks import block_file, index_blocks, read_blocks
from processes import join, run, start
from test_ranks import assert_alike
from train_settings import train_config

PATIENCE_S = 240
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own warnings


@pytest.fixture(scope="module")
def nodes() -> Iterator[ray_nodes.Nodes]:
    with ray_nodes.two_nodes() as started:
        yield started
        assert any("raylet" in name for name in started.processes())
    assert started.processes() == []


# training


def recipe(task: dict[str, Path], backbone: Path, output: Path) -> Recipe:
    return Recipe(
        model=BiConfig(backbone=str(backbone), reduction="mean", shared_towers=True),
        text=TextPolicy(max_context_tokens=24, max_candidate_tokens=8),
        data=DataConfig(train=str(task["train"]), valid=str(task["valid"])),
        train=train_config(
            batch_size=11, epochs=8, optimizer="adadelta", lr=0.1, warmup_steps=2, schedule="constant",
            train_layers="all", precision="fp32", dropout=0.0, evaluate_per_epoch=1,
        ),
        output=str(output),
    )  # fmt: skip


def train_alone(plan: Recipe) -> None:
    train(plan)


def train_and_kill_a_node(nodes: ray_nodes.Nodes, plan: Recipe) -> None:
    """There are two workers; the node of one is killed, and the other continues alone."""
    said: list[str] = []
    killed = []

    def report(seed: int, record: dict[str, Any]) -> None:
        if record["step"] == 16 and not killed:
            killed.append(record["step"])
            nodes.kill()

    (result,) = train_on_ray(plan, workers=2, device="cpu", report=report, notify=said.append)
    nodes.add()
    assert result.fit.n_steps == 56
    started = [line for line in said if "parameters on cpu" in line]
    assert [", 2 processes" in line for line in started] == [True, False], said


@pytest.mark.slow
def test_a_training_that_loses_a_node_has_the_losses_of_one_process(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, nodes: ray_nodes.Nodes
) -> None:
    nodes.run(train_and_kill_a_node, recipe(task, tiny_backbone, tmp_path / "ray"))
    plan = recipe(task, tiny_backbone, tmp_path / "alone")
    assert join([start(train_alone, plan)]) == [0]
    assert_alike(tmp_path / "ray", tmp_path / "alone")
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("ray", "alone")]
    assert files[0] == files[1]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def train_in_vain(nodes: ray_nodes.Nodes, plan: Recipe) -> None:
    with pytest.raises(UsageError, match="holds an earlier run; pass `resume=True`"):
        train_on_ray(plan, device="cpu")
    with pytest.raises(UsageError, match="the Ray cluster has no GPU"):
        train_on_ray(plan, device="cuda")


@pytest.mark.slow
def test_a_workers_error_is_reported_without_a_retry(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, nodes: ray_nodes.Nodes
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    nodes.run(train_in_vain, recipe(task, tiny_backbone, tmp_path / "run"))


def test_replicas_share_the_gpus_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from polyrank_ray.cluster import share_of_gpus

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 4.0})
    assert [share_of_gpus("auto", n) for n in (1, 4, 5, 8, 9)] == [1, 1, 1 / 2, 1 / 2, 1 / 3]
    assert share_of_gpus("cpu", 2) == 0
    monkeypatch.setattr(ray, "cluster_resources", dict)
    assert share_of_gpus("auto", 2) == 0


# encoding

TEXTS = [f"my {a} is {b} {i}" for i in range(50) for a in ("wifi", "router") for b in ("down", "red", "green", "high")]


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    """Two files of replies in a folder."""
    (tmp_path / "replies").mkdir()
    for name, part in (("b.csv", TEXTS[300:]), ("a.jsonl", TEXTS[:300])):
        rows = part if name == "b.csv" else [f'{{"text": "{text}", "id": "{text[::-1]}"}}' for text in part]
        head = ["text"] if name == "b.csv" else []
        (tmp_path / "replies" / name).write_text("\n".join([*head, *rows]) + "\n", "utf-8")
    return tmp_path / "replies"


@pytest.mark.slow
def test_each_text_is_encoded_once_if_a_node_dies(
    catalogue: Path, tiny_backbone: Path, tmp_path: Path, nodes: ray_nodes.Nodes
) -> None:
    model, folder = f"untuned:{tiny_backbone}", tmp_path / "vectors"
    given = [model, str(catalogue), str(folder)]
    code = f"from polyrank_ray import encode; print(encode(*{given}, block_size=2, device='cpu',"
    code += f" workers=2, address={nodes.address!r}))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent
    ) as running:
        guard = threading.Timer(PATIENCE_S, running.kill)
        guard.start()
        while running.poll() is None and len(list(folder.glob("block-*"))) < 5:
            pass  # wait for the first blocks
        nodes.kill()
        early = {path.name: path.stat().st_mtime_ns for path in folder.glob("block-*")}
        said = running.communicate()[0]
        guard.cancel()
    nodes.add()
    assert running.returncode == 0, said
    assert 5 <= len(early) < 200
    assert said.split()[-1] == "400"
    blocks = list(read_blocks(folder))
    assert [candidate.text for part, _ in blocks for candidate in part] == TEXTS
    assert {name: (folder / name).stat().st_mtime_ns for name in early} == early  # no block was written again

    index_blocks(folder, tmp_path / "index")
    alone = tmp_path / "alone"
    assert run("index", "build", model, catalogue, "-o", alone, "--device", "cpu").returncode == 0
    with polyrank.open(str(tmp_path / "index")) as own, polyrank.open(str(alone)) as other:
        for context in ("my wifi is down", ["hello", "the light is red"], "restart it please"):
            ranked, expected = (pipeline.answer(context, k=10).ranked for pipeline in (own, other))
            assert [(r.id, r.text) for r in ranked] == [(r.id, r.text) for r in expected]
            np.testing.assert_allclose([r.score for r in ranked], [r.score for r in expected], rtol=1e-5)


def encode_again(nodes: ray_nodes.Nodes, model: str, folder: Path) -> None:
    texts = TEXTS[:60]
    settings: dict[str, Any] = {"block_size": 20, "device": "cpu"}
    assert encode(model, texts, folder, **settings) == 60
    before = {number: block_file(folder, number).stat().st_mtime_ns for number in range(3)}
    vectors = [vectors for _, vectors in read_blocks(folder)]
    block_file(folder, 0).write_bytes(b"PAR1")
    block_file(folder, 2).unlink()
    done: list[tuple[int, int]] = []
    assert encode(model, texts, folder, **settings, progress=lambda *counts: done.append(counts)) == 40
    assert done == [(40, 60), (60, 60)]
    assert block_file(folder, 1).stat().st_mtime_ns == before[1]
    for (_, found), expected in zip(read_blocks(folder), vectors, strict=True):
        assert np.array_equal(found, expected)
    assert encode(model, texts, folder, **settings) == 0
    with pytest.raises(ConfigError, match="vectors of another candidates"):
        encode(model, texts[:-1], folder, **settings)
    with pytest.raises(ConfigError, match="vectors of another encoder"):
        encode("shipped:convert", texts, folder, **settings)


@pytest.mark.slow
def test_an_encoding_resumes_with_missing_or_damaged_blocks(
    tiny_backbone: Path, tmp_path: Path, nodes: ray_nodes.Nodes
) -> None:
    nodes.run(encode_again, f"untuned:{tiny_backbone}", tmp_path / "vectors")


# serving


def replicas() -> list[int]:
    """Ids of the replicas' processes."""
    return [pid for pid, (_, name) in ray_nodes.processes().items() if "ServeReplica" in name]


@pytest.mark.slow
def test_replicas_answer_like_the_model_and_one_may_die(tiny_backbone: Path, nodes: ray_nodes.Nodes) -> None:
    model = f"untuned:{tiny_backbone}"
    command = ["ray", "serve", f"tiny={model}", "--replicas", "2", "--port", str(free_port())]
    server = subprocess.Popen(
        [sys.executable, "-m", "polyrank", *command, "--address", nodes.address],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    )
    guard = threading.Timer(PATIENCE_S, server.kill)
    guard.start()
    try:
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(line)
            if match := re.match(r"listening at (http://127\.0\.0\.1:\d+): 2 replicas of tiny", line):
                break
        assert match, lines
        body = {"model": "tiny", "query": "my wifi is down", "documents": ["restart it", "pay the bill", "hello"]}
        (scores,) = polyrank.load(model, device="cpu").score([body["query"]], [body["documents"]])
        raw = scores.astype(np.float64)
        expected = dict(enumerate((0.5 + raw / (2 + 2 * np.abs(raw))).tolist()))
        with httpx.Client(base_url=match[1], timeout=60) as client:

            def ask() -> None:
                answer = client.post("/v1/rerank", json=body)
                assert answer.status_code == 200, answer.text
                found = {row["index"]: row["relevance_score"] for row in answer.json()["results"]}
                assert found == pytest.approx(expected, rel=1e-6)

            for _ in range(20):
                ask()
            there = replicas()
            assert len(there) == 2
            ray_nodes.end(there[0])
            while there[0] in ray_nodes.processes():
                ask()
            for _ in range(50):
                ask()
            while len(replicas()) < 2:  # Ray restarts it
                ask()
        server.terminate()
        assert server.wait(60) == 0
        assert replicas() == []
    finally:
        guard.cancel()
        server.kill()
        server.communicate()


def free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


# errors


def test_a_missing_cluster_is_one_sentence(task: dict[str, Path], tmp_path: Path) -> None:
    for address, code, words in (
        ("127.0.0.1:1", 8, "no Ray cluster answers at '127.0.0.1:1'; start one with `ray start --head`"),
        ("ray://127.0.0.1:1", 2, 'is not the address of a Ray cluster; use "auto"'),
    ):
        (tmp_path / "replies.txt").write_text("hello\n")
        command = ["ray", "encode", "shipped:convert", tmp_path / "replies.txt", "-o", tmp_path / "v"]
        result = run(*command, "--address", address)
        assert result.returncode == code
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "v").exists()


def test_other_machines_need_keys() -> None:
    result = run("ray", "serve", "shipped:convert", "--host", "0.0.0.0")
    assert result.returncode == 2
    assert "0.0.0.0 can be reached by other machines; give a file of keys" in result.stderr


@pytest.mark.parametrize("address", ["", "localhost", ":6379", "a/b:6379", "localhost:", "localhost:x", "http://h:1"])
def test_invalid_addresses(address: str) -> None:
    with pytest.raises(UsageError, match='is not the address of a Ray cluster; use "'), connection.connected(address):
        pass


def test_an_address_ends_with_a_port_that_may_exist() -> None:
    assert connection._host_and_port("fd00::1:6379") == ("fd00::1", 6379)
    with pytest.raises(OfflineError, match=r"no Ray cluster answers at '127\.0\.0\.1:70000'"):
        connection._check_answers("127.0.0.1:70000")


def test_relative_paths_are_resolved_where_the_command_runs(tmp_path: Path) -> None:
    before = Path.cwd()
    with connection.working_in(tmp_path):
        assert Path.cwd() == tmp_path
        with pytest.raises(FileNotFoundError), connection.working_in(tmp_path):
            Path("none").read_text()  # an error of the work, not of the folder
    assert Path.cwd() == before
    missing = tmp_path / "none"
    with (
        pytest.raises(UsageError, match=f"a node of the Ray cluster has no folder {missing}; start from a folder"),
        connection.working_in(missing),
    ):
        pass
    assert Path.cwd() == before


def test_options_that_replicas_lack_are_refused_before_connecting(tmp_path: Path) -> None:
    from polyrank.config.serving import FeedbackSettings, ServingSettings
    from polyrank_ray.serving import deploy

    kept = ServingSettings(feedback=FeedbackSettings(file=str(tmp_path / "feedback.db")))
    with pytest.raises(ConfigError, match="replicas cannot share a feedback file; omit it"):
        deploy({"tiny": "shipped:convert"}, kept)
    with pytest.raises(UsageError, match="key"):
        deploy({"tiny": "shipped:convert"}, ServingSettings(host="0.0.0.0"))
