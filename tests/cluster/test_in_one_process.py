"""Work on a Ray cluster with Ray's functions replaced by ones that do everything in this process, which is cheap."""

import asyncio
import dataclasses
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import ray.train.torch

from polyrank import load_recipe
from polyrank.answering import build
from polyrank.config.serving import ServingSettings
from polyrank.devices import distributed
from polyrank.errors import (
    ConfigError,
    DataError,
    LockedError,
    LostProcessError,
    MissingExtraError,
    OfflineError,
    PolyrankError,
    ResourceError,
    UsageError,
)
from polyrank.index import open_index
from polyrank.records import Candidate
from polyrank.scorers.open import load_encoder
from polyrank.serving.pool import StartupError
from polyrank.storage.lock import hold
from polyrank.training import train as train_here
from polyrank.training.run_folder import LOCK
from polyrank_ray import cli, cluster, encoding, serving, training
from polyrank_ray.blocks import Plan, read_blocks, read_plan
from test_ranks import assert_alike
from train_settings import bi_tables

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own warnings, also those of its imports in a test
TEXTS = [f"my {a} is {b}" for a in ("wifi", "router", "bill") for b in ("down", "red", "high")] + ["hello"]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """This process as a member of a cluster, with the resources that the test writes into the dictionary."""
    resources: dict[str, float] = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    return resources


# --- connecting -------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What ``ray.init`` is called with; like Ray's, it takes the handler of SIGTERM. ``{}``: a shutdown."""
    calls: list[dict[str, Any]] = []

    def init(**settings: Any) -> None:
        calls.append(settings)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append({}))
    for name in [name for name in os.environ if name.startswith("POLYRANK_")]:
        monkeypatch.delenv(name)
    return calls


def test_workers_get_the_variables_that_control_polyrank_and_no_others(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    monkeypatch.setenv("POLYRANK_PRECISION", "fp32")
    before = signal.signal(signal.SIGTERM, handler := lambda *_: None)
    with cluster.connected():
        kept = signal.signal(signal.SIGTERM, before)
    assert kept == handler
    variables = {"env_vars": {"POLYRANK_PRECISION": "fp32"}}
    assert asked == [{"address": "auto", "runtime_env": variables, **quiet}, {}]
    monkeypatch.delenv("POLYRANK_PRECISION")
    with pytest.raises(ZeroDivisionError), cluster.connected("local"):
        raise ZeroDivisionError
    assert asked[2:] == [{"address": "local", "runtime_env": None, "include_dashboard": False, **quiet}, {}]


def test_a_cluster_that_refuses_does_not_answer(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("no such cluster")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(OfflineError, match="no Ray cluster answers at 'auto'; start one"), cluster.connected():
        pass
    assert asked == []


# --- encoding ---------------------------------------------------------------------------------------------------------


class Tasks:
    """Replaces Ray's tasks: each runs when it is waited for, or fails as the test chooses."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.deaths: list[int] = []  # numbers of the tasks whose workers die too often
        self.n_running = self.n_started = self.most_running = 0

    def remote(self, **settings: Any) -> Callable[[Callable[..., None]], Any]:
        self.asked.append(settings)

        def start(work: Callable[..., None], *arguments: Any) -> Callable[[], None]:
            self.n_started += 1
            self.n_running += 1
            self.most_running = max(self.most_running, self.n_running)
            dies = self.n_started in self.deaths

            def run() -> None:
                self.n_running -= 1
                if dies:
                    raise ray.exceptions.WorkerCrashedError
                try:
                    work(*arguments)
                except Exception as error:
                    raise ray.exceptions.RayTaskError("work", "traceback", error) from error

            return run

        return lambda work: SimpleNamespace(remote=lambda *arguments: start(work, *arguments))

    @staticmethod
    def wait(tasks: list[Any], *, num_returns: int) -> tuple[list[Any], list[Any]]:
        return tasks[:num_returns], tasks[num_returns:]


@pytest.fixture
def tasks(joined: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> Tasks:
    made = Tasks()
    monkeypatch.setattr(ray, "remote", made.remote)
    monkeypatch.setattr(ray, "wait", made.wait)
    monkeypatch.setattr(ray, "get", lambda task: task())
    encoding._encoder.cache_clear()
    return made


@pytest.fixture(scope="module")
def model(tiny_backbone: Path) -> str:
    return f"untuned:{tiny_backbone}"


def test_each_block_is_encoded_once(tasks: Tasks, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[int, int]] = []
    folder = tmp_path / "v"

    def progress(*counts: int) -> None:
        done.append(counts)  # type: ignore[arg-type]  # two
        monkeypatch.chdir(tmp_path.parent)  # as if on another node: paths keep their meaning

    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {"block_size": 3, "workers": 2, "cpus": 2, "device": "cpu"}
    assert encoding.encode(model, TEXTS, "v", **settings, progress=progress) == 10
    assert done == [(3, 10), (6, 10), (9, 10), (10, 10)]
    assert tasks.asked == [{"num_cpus": 2, "num_gpus": 0, "max_retries": 3}]
    assert tasks.most_running == 2
    encoder = load_encoder(model, device="cpu")
    plan = read_plan(folder)
    assert (plan.model, plan.fingerprint, plan.dimension) == (model, encoder.fingerprint, encoder.dimension)
    assert (plan.n, plan.block_size) == (10, 3)
    vectors = [row.tolist() for _, part in read_blocks(folder) for row in part]
    assert [c.text for part, _ in read_blocks(folder) for c in part] == TEXTS
    assert vectors == [pytest.approx(row.tolist(), abs=1e-5) for row in encoder.encode_candidates(TEXTS)]
    with pytest.raises(ConfigError, match="vectors of another candidates"):
        encoding.encode(model, TEXTS[:-1], folder, **settings)
    assert encoding.encode(model, TEXTS[:-1], folder, **settings, overwrite=True) == 9


def test_each_of_several_models_in_one_process_encodes_its_own_vectors(
    tasks: Tasks, model: str, mean_pooled_backbone: Path, tmp_path: Path
) -> None:
    for number, name in enumerate((model, f"untuned:{mean_pooled_backbone}", model)):
        encoding.encode(name, TEXTS, tmp_path / f"v{number}", block_size=4, workers=2, device="cpu")
        encoder, plan = load_encoder(name, device="cpu"), read_plan(tmp_path / f"v{number}")
        assert (plan.model, plan.fingerprint) == (name, encoder.fingerprint)
        found = np.concatenate([part for _, part in read_blocks(tmp_path / f"v{number}")])
        np.testing.assert_allclose(found, encoder.encode_candidates(TEXTS), atol=1e-5)


@pytest.mark.parametrize("settings", [{"block_size": 0}, {"block_size": -1}, {"workers": 0}, {"cpus": 0}], ids=str)
def test_numbers_below_1_are_refused_before_anything_is_read(settings: dict[str, Any], tmp_path: Path) -> None:
    ((name, number),) = settings.items()
    with pytest.raises(UsageError, match=f"^{name} is {number}; give 1 or more"):
        encoding.encode("none", tmp_path / "none", tmp_path / "v", **settings)
    assert not (tmp_path / "v").exists()


def test_an_encoding_whose_workers_keep_dying_ends_and_is_resumed(tasks: Tasks, model: str, tmp_path: Path) -> None:
    tasks.deaths = [3]
    (tmp_path / "replies.txt").write_text("\n".join([*TEXTS, TEXTS[0]]), "utf-8")
    said: list[str] = []
    settings: dict[str, Any] = {"block_size": 3, "device": "cpu", "notify": said.append}
    message = "^the workers of a block have died too often; see Ray's logs, and run the same command again to resume"
    with pytest.raises(LostProcessError, match=message):
        encoding.encode(model, tmp_path / "replies.txt", tmp_path / "v", **settings)
    assert said == [f"{tmp_path / 'replies.txt'}: 1 of 11 replies repeat an earlier one and count once"]
    done: list[tuple[int, int]] = []
    counted = {"progress": lambda *counts: done.append(counts)}
    assert encoding.encode(model, tmp_path / "replies.txt", tmp_path / "v", **settings, **counted) == 4
    assert done == [(9, 10), (10, 10)]


def test_a_workers_error_keeps_its_words_and_its_exit_code(
    tasks: Tasks, joined: dict[str, float], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined["GPU"] = 1.0  # which this machine may lack
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(PolyrankError) as refused:
        encoding.encode(model, TEXTS, tmp_path / "v")
    assert "cuda" in str(refused.value)
    assert refused.value.exit_code == UsageError.exit_code
    assert tasks.asked[0]["num_gpus"] == 1


def test_a_worker_encodes_only_with_the_same_model_on_a_shared_disk(model: str, tmp_path: Path) -> None:
    plan = Plan(model, load_encoder(model, device="cpu").fingerprint, 32, "", 1, 4)
    block = [Candidate("a", TEXTS[0])]
    encoding._encode_block(0, block, tmp_path, plan, model, "cpu", "torch", tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name == "block-00000.parquet"
    written = file.stat().st_mtime_ns
    encoding._encode_block(0, block, tmp_path, plan, model, "cpu", "torch", tmp_path)  # as if its worker had died
    assert file.stat().st_mtime_ns == written
    with pytest.raises(UsageError, match=r"has no folder .*none; choose an output on a disk that all nodes share"):
        encoding._encode_block(0, block, tmp_path / "none", plan, model, "cpu", "torch", tmp_path)
    other = dataclasses.replace(plan, fingerprint="another")
    with pytest.raises(UsageError, match=f"^{model} is another model on another node; install the same model"):
        encoding._encode_block(0, block, tmp_path, other, model, "cpu", "torch", tmp_path)


def test_an_index_of_the_command_is_replaced_only_if_asked(
    tasks: Tasks, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies, index = tmp_path / "replies.txt", tmp_path / "i"
    replies.write_text("\n".join(TEXTS), "utf-8")
    monkeypatch.chdir(tmp_path)
    cli.encode(model, replies, Path("v"), index, device="cpu")
    assert tasks.asked[-1]["num_cpus"] == 1
    replies.write_text("\n".join(TEXTS[:4]), "utf-8")
    with pytest.raises(UsageError, match="i already exists"):
        cli.encode(model, replies, Path("other"), index, device="cpu")
    assert not Path("other").exists()
    cli.encode(model, replies, Path("v"), index, overwrite=True, device="cpu")
    with open_index(index) as opened:
        assert len(opened) == 4


def test_invalid_candidates_are_refused_by_position(tmp_path: Path) -> None:
    pool = [Candidate(f"r{i}", text) for i, text in enumerate(TEXTS)]
    bad = [
        *pool,
        Candidate("blank", " "),
        *(dataclasses.replace(c, id=f"again-{c.id}") for c in pool),
        Candidate("x", ""),
    ]
    with pytest.raises(DataError, match=r"^candidate 10: its text is empty; candidate 21: its text is empty; nothing"):
        encoding._checked(bad, 4)


def test_a_block_is_encoded_in_the_batches_of_an_index() -> None:
    size = inspect.signature(encoding.encode).parameters["block_size"].default
    assert size % build.TEXTS_AT_A_TIME == 0


# --- training ---------------------------------------------------------------------------------------------------------


class Actor:
    """Replaces an actor of Ray: its methods run in a thread's event loop, and fail as the test chooses."""

    def __init__(self, made: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._made, self._loop = made, loop
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> Any:
            if self.dead:
                raise ray.exceptions.RayActorError
            return await getattr(self._made, name)(*arguments)

        return SimpleNamespace(remote=lambda *given: asyncio.run_coroutine_threadsafe(call(*given), self._loop))


class Trainers:
    """Replaces Ray Train: calls the work of one worker again if it raises, as often as it may fail."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.daemon = False

    def __call__(self, work: Callable[[Any], None], *, train_loop_config: Any, **settings: Any) -> Any:
        self.asked.append(settings)

        def fit() -> None:
            self.daemon = threading.current_thread().daemon
            failures = settings["run_config"].failure_config.max_failures
            for attempt in range(failures + 1):
                try:
                    work(train_loop_config)
                    break
                except Exception as error:
                    if attempt == failures:
                        raise ray.train.WorkerGroupError("a worker failed", {0: error}) from error

        return SimpleNamespace(fit=fit)


@pytest.fixture
def trainers(joined: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainers]:
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    node = SimpleNamespace(get_node_id=lambda: "this node")
    made = Trainers()
    places: list[Any] = []

    def remote(**place: Any) -> Callable[[type[Any]], Any]:
        places.append(place)
        return lambda kind: SimpleNamespace(remote=lambda: Actor(kind(), loop))

    monkeypatch.setattr(ray, "remote", remote)
    monkeypatch.setattr(ray, "get", lambda future: future.result(60))
    monkeypatch.setattr(ray, "kill", lambda actor: setattr(actor, "dead", True))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: node)
    monkeypatch.setattr(ray.train.torch, "TorchTrainer", made)
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "1")
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "30")
    yield made
    assert places == [{"num_cpus": 0, "label_selector": {"ray.io/node-id": "this node"}}] * len(places)
    loop.call_soon_threadsafe(loop.stop)
    running.join()
    loop.close()


@pytest.fixture
def recipe(task: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> dict[str, Any]:
    """Six steps, with a checkpoint after every other one."""
    return bi_tables(task, tiny_backbone, tmp_path / "run", max_steps=6, batch_size=4, checkpoint_steps=2)


def test_a_training_whose_worker_dies_continues_from_its_checkpoint(
    trainers: Trainers, recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(training._Mailbox):
        async def send(self, kind: str, value: Any) -> None:
            if kind == "report" and self.attempts == 1 and value[1]["step"] == 5:
                raise OSError("the node is gone")
            await super().send(kind, value)

    reported: list[int] = []
    said: list[str] = []
    other: list[Any] = [("another training", threading.Event())]
    with monkeypatch.context() as patch:
        patch.setattr(training, "_Mailbox", Dying)
        patch.setattr(training, "_running", [*other])
        (result,) = training.train(
            recipe, workers=3, cpus=2, overwrite=True, device="cpu", report=lambda _, row: reported.append(row["step"]),
            notify=said.append,
        )  # fmt: skip
        assert training._running == other
    assert result.fit.n_steps == 6
    assert trainers.daemon  # an interrupted command ends without it
    assert sorted(set(reported)) == [1, 2, 3, 4, 5, 6]
    assert any("step 4" in line for line in said), said
    (asked,) = trainers.asked
    scaling = asked["scaling_config"]
    assert (scaling.num_workers, scaling.use_gpu, scaling.resources_per_worker) == ((1, 3), False, {"CPU": 2})
    assert asked["torch_config"].backend == "gloo"
    assert Path(asked["run_config"].storage_path).parent == tmp_path
    assert os.environ["RAY_CHDIR_TO_TRIAL_DIR"] == "0"
    assert os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == "30"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    train_here({**recipe, "output": str(tmp_path / "alone")}, device="cpu")
    assert_alike(tmp_path / "run", tmp_path / "alone")


def test_a_training_whose_workers_keep_dying_ends_with_the_last_reason(
    trainers: Trainers, recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(training._Mailbox):
        async def start_attempt(self) -> int:
            await super().start_attempt()
            raise OSError(f"death {self.attempts}\nsecond line")

    monkeypatch.setattr(training, "_Mailbox", Dying)
    message = (
        r"^workers have died 3 times, the last of OSError: death 3; see Ray's logs, and resume with `resume=True`$"
    )
    with pytest.raises(LostProcessError, match=message):
        training.train(recipe, device="cpu", max_failures=2)
    assert trainers.asked[0]["scaling_config"].num_workers == 1


def test_an_error_of_polyrank_ends_a_training_and_keeps_late_workers_from_starting(
    trainers: Trainers, recipe: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(UsageError, match="holds an earlier run; pass `resume=True`"):
        training.train(recipe, device="cpu")
    (result,) = training.train(recipe, device="cpu", overwrite=True)
    assert result.fit.n_steps == 6

    async def after(kind: str) -> bool:
        mailbox = training._Mailbox()
        await mailbox.send("report", None)
        await mailbox.send(kind, UsageError("no"))
        assert [sent for sent, _ in await mailbox.receive()] == ["report", kind]
        return await mailbox.may_start()

    kinds = ("report", "done", "failed", "failed elsewhere")
    assert [asyncio.run(after(kind)) for kind in kinds] == [True, True, False, False]

    async def twice() -> list[tuple[str, Any]]:
        mailbox = training._Mailbox()
        await mailbox.send("failed", None)
        await mailbox.receive()
        late = asyncio.create_task(mailbox.receive())  # waits for the next message, and does not repeat the first
        await asyncio.sleep(0)
        assert not late.done()
        await mailbox.send("end", None)
        assert not await mailbox.may_start()
        return await late

    assert asyncio.run(twice()) == [("end", None)]


def test_only_rank_0_reports_and_a_second_attempt_waits_for_the_folder(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, Any]] = []
    attempts = [1]
    calls = {"send": lambda *message: sent.append(message), "start_attempt": lambda: attempts[0]}
    mailbox = SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in calls.items()})
    monkeypatch.setattr(ray, "get", lambda value: value)
    task: dict[str, Any] = {"resume": False, "overwrite": False, "device": "cpu", "mailbox": mailbox, "cwd": tmp_path}
    task["plan"] = load_recipe({**recipe, "train": recipe["train"] | {"max_steps": 1}})
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "process_group", nullcontext)  # without the other process
    training._train(task)
    assert sent == []
    training._train(task)
    assert [(kind, type(value)) for kind, value in sent] == [("failed elsewhere", UsageError)]
    monkeypatch.setenv("RANK", "0")
    task["overwrite"] = True
    training._train(task)
    assert {kind for kind, _ in sent[1:]} == {"report", "notify", "done"}
    with hold(tmp_path / "run" / LOCK, "run"):
        training._train(task)
        assert (sent[-1][0], type(sent[-1][1])) == ("failed", LockedError)
        attempts[0] = 2
        with pytest.raises(LockedError):  # of a worker that is dying; Ray tries again
            training._train(task)


def test_a_fit_ends_all_its_trainings(
    trainers: Trainers, joined: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for resources, n in (({"CPU": 1.0}, 1), ({"CPU": 8.0}, 2), ({"CPU": 8.0, "GPU": 1.0}, 1), ({"GPU": 4.0}, 2)):
        joined.clear()
        joined.update(resources)
        with training.trainer("auto") as given:
            assert given["at_once"] == n
    ended = threading.Event()
    ended.set()
    mailboxes = [SimpleNamespace(dead=False) for _ in range(3)]
    monkeypatch.setattr(training, "_running", [(mailbox, ended) for mailbox in mailboxes])
    with pytest.raises(KeyboardInterrupt), training.trainer("auto"):
        raise KeyboardInterrupt
    assert all(mailbox.dead for mailbox in mailboxes)


def test_an_interrupt_stops_the_workers(trainers: Trainers, recipe: dict[str, Any], tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        training.train(recipe, device="cpu", report=interrupt)
    assert threading.enumerate() == before  # they have noticed that nobody listens
    assert not (tmp_path / "run" / "model").exists()


def test_the_end_of_a_training_is_told_once_all_workers_have_ended(trainers: Trainers) -> None:
    """An error of another rank comes before rank 0's, which only reports that a rank is lost."""
    reported: list[Any] = []
    said: list[str] = []

    def heard(*messages: tuple[str, Any]) -> Any:
        mailbox = ray.remote(num_cpus=0, label_selector={"ray.io/node-id": "this node"})(training._Mailbox).remote()
        for message in messages:
            ray.get(mailbox.send.remote(*message))
        return training._listen(mailbox, lambda *row: reported.append(row), said.append)

    assert heard(("notify", "hello"), ("report", (7, {"step": 1})), ("done", ["result"]), ("end", None)) == ["result"]
    assert (said, reported) == (["hello"], [(7, {"step": 1})])
    lost, own = LostProcessError("a rank is gone"), UsageError("a bad file")
    for messages, error in (
        ([("end", lost)], lost),
        ([("failed elsewhere", own), ("end", lost)], own),
        ([("failed elsewhere", own), ("end", None)], own),
        ([("failed", own), ("end", lost)], own),
    ):
        with pytest.raises(PolyrankError) as raised:
            heard(*messages)
        assert raised.value is error


def test_an_error_that_pickle_would_lose_becomes_a_plain_one_with_its_exit_code() -> None:
    own = UsageError("a bad file")
    assert training._portable(own) is own
    for error in (MissingExtraError("ray", "ray"), StartupError("no model", 4)):
        plain = training._portable(error)
        assert type(plain) is PolyrankError
        assert (str(plain), plain.exit_code) == (str(error), error.exit_code)


# --- serving ----------------------------------------------------------------------------------------------------------


class Replicas:
    """Replaces Ray Serve: records what is deployed, and has the status that the test sets."""

    def __init__(self) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        self.proxies: dict[str, str] = {}
        self.applications: dict[str, Any] = {}

    def status(self) -> Any:
        return SimpleNamespace(proxies=self.proxies, applications=self.applications)

    def now(self, status: str, message: str = "") -> None:
        from ray.serve.schema import ApplicationStatus

        self.applications = {"polyrank": SimpleNamespace(status=ApplicationStatus(status), message=message)}

    def recorder(self, name: str) -> Callable[..., None]:
        return lambda *_, **settings: self.asked.update({name: settings})

    def deployment(self, **settings: Any) -> Any:
        self.asked["deployment"] = settings
        return lambda app: SimpleNamespace(bind=lambda: app)

    def run_many(self, targets: list[Any], **settings: Any) -> None:
        (target,) = targets
        self.app = target.target
        self.asked["run_many"] = settings


@pytest.fixture
def replicas(joined: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> Replicas:
    from ray import serve

    made = Replicas()
    monkeypatch.setattr(serve, "ingress", lambda build: lambda: build)
    for name in ("status", "deployment", "run_many"):
        monkeypatch.setattr(serve, name, getattr(made, name))
    for name in ("start", "shutdown"):
        monkeypatch.setattr(serve, name, made.recorder(name))
    return made


def test_replicas_serve_until_a_signal(
    replicas: Replicas, joined: dict[str, float], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined["GPU"] = 1.0
    monkeypatch.chdir(tmp_path)
    Path("keys.txt").write_text("a-key-that-is-long-enough\n")
    said: list[str] = []

    def ready(address: str) -> None:
        said.append(address)
        assert "shutdown" not in replicas.asked
        signal.raise_signal(signal.SIGTERM)

    replicas.now("RUNNING")
    before = signal.getsignal(signal.SIGTERM)
    serving.serve({"tiny": model}, ServingSettings(port=8699, api_key_file="keys.txt"), ready=ready)
    assert said == ["http://127.0.0.1:8699"]
    assert "shutdown" in replicas.asked
    assert signal.getsignal(signal.SIGTERM) == before
    assert replicas.asked["start"]["proxy_location"] == "HeadOnly"
    assert replicas.asked["start"]["http_options"] == {"host": "127.0.0.1", "port": 8699, "request_timeout_s": None}
    deployed = replicas.asked["deployment"]
    assert (deployed["num_replicas"], deployed["max_ongoing_requests"]) == (1, ServingSettings().limits.queue)
    assert deployed["ray_actor_options"] == {"num_cpus": 1, "num_gpus": 1.0}
    waiting = {f"wait_for_{what}": False for what in ("ingress_deployment_creation", "applications_running")}
    assert replicas.asked["run_many"] == waiting  # a signal ends the command also before they run
    replicas.proxies = {"node": "HEALTHY"}
    with pytest.raises(UsageError, match="Ray Serve already runs on this cluster; end it with `serve shutdown`"):
        serving.deploy({"tiny": model}, ServingSettings())


def test_replicas_are_ready_when_all_run(replicas: Replicas) -> None:
    assert not serving.is_ready()
    for status in ("NOT_STARTED", "DEPLOYING", "DELETING", "RUNNING"):
        replicas.now(status)
        assert serving.is_ready() == (status == "RUNNING")
    for status in ("DEPLOY_FAILED", "UNHEALTHY"):
        replicas.now(status, "no\n  memory" + "y" * 400)
        with pytest.raises(ResourceError, match=r"^the replicas do not start: no memoryy{291}; see Ray's logs$"):
            serving.is_ready()


def test_a_replica_starts_in_another_folder_once_its_models_are_open(
    replicas: Replicas, tiny_encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient

    key = "a-key-that-is-long-enough"
    monkeypatch.chdir(tiny_encoders["bi"].parent)
    (tmp_path / "keys.txt").write_text(f"{key}\n")
    keys = os.path.relpath(tmp_path / "keys.txt")
    serving.deploy({"tiny": "bi"}, ServingSettings(api_key_file=keys))
    monkeypatch.chdir(tmp_path)
    with TestClient(replicas.app(), base_url="http://localhost") as client:
        assert client.get("/ready").status_code == 200
        body = {"model": "tiny", "query": "hello", "documents": ["hi", "bill"]}
        assert client.post("/v1/rerank", json=body).status_code == 401
        answer = client.post("/v1/rerank", json=body, headers={"Authorization": f"Bearer {key}"})
        assert len(answer.json()["results"]) == 2


def test_a_model_that_cannot_be_opened_is_named_before_a_replica_starts(replicas: Replicas, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="none is not a model folder") as refused:
        serving.deploy({"tiny": str(tmp_path / "none")}, ServingSettings())
    assert refused.value.exit_code == UsageError.exit_code
    assert replicas.asked == {}
