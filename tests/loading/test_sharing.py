"""Sharing a model over a Hub: it comes back unchanged, under a name that every command accepts."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_hub import TOKEN, Hub, local_hub
from polyrank.config.models import MODEL, BiConfig, TextPolicy
from polyrank.errors import UsageError
from polyrank.loading.hub import hub_folder
from polyrank.loading.sharing import push_model
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.storage.document import read_document, seal

METADATA = {"recipe": {"output": "/home/somebody/run", "data": {"train": "/home/somebody/chats.jsonl"}}, "seed": 1}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with local_hub() as running:
        yield running


@pytest.fixture
def model(tiny_backbone: Path, tmp_path: Path) -> Path:
    policy = TextPolicy(max_context_tokens=16, max_candidate_tokens=8)
    network, texts, config = new_model(BiConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=["hi"])
    save_model(tmp_path / "model", network, texts, config, metadata=METADATA)
    (tmp_path / "model" / "README.md").write_text("# a model\n", "utf-8")
    return tmp_path / "model"


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a command, or Python, in a new process that uses this hub and an empty cache."""

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        variables = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
        }
        words = [str(word) for word in arguments]
        command = [sys.executable, *(words if words[0] == "-c" else ["-m", "polyrank", *words])]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
        )

    return run


BY_PYTHON = """
import sys, polyrank
def tried(work):
    try:
        print(work())
    except polyrank.PolyrankError as error:
        print(f"{type(error).__name__}: {error}")
model, *names = sys.argv[1:]
for name in (model, *names):
    tried(lambda: polyrank.load(name).score([["hi"]], [["thanks", "bill"]])[0].tolist())
for loaded in (polyrank.load(model), polyrank.load("bm25"), polyrank.BM25()):
    tried(lambda: loaded.push_to_hub("me/loaded", private=True))
"""


@pytest.mark.deep
def test_a_pushed_model_is_loaded_by_its_name_and_pushed_from_python(
    hub: Hub, model: Path, run: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    pushed = run("push", model, "hf:me/support", "--private")
    assert pushed.returncode == 0, pushed.stderr
    assert f"{hub.url}/me/support/commit/" in pushed.stderr
    assert pushed.stderr.endswith("; load it with hf:me/support\n")
    known = hub.files("me/support")
    assert known is not None
    revision, files = known
    assert hub.private["me/support"]
    assert set(files) == {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert b"/home/somebody" not in b"".join(files.values())
    sent, local = (json.loads(data) for data in (files["config.json"], (model / "config.json").read_bytes()))
    assert sent["fingerprint"] == local["fingerprint"]
    names = ["hf:me/support", f"hf:me/support@{revision}", "hf:me/support@nosuch"]
    found = run("-c", BY_PYTHON, model, *names)
    assert found.returncode == 0, found.stderr
    local_scores, *others, refused, address, lexical, unnamed = found.stdout.splitlines()
    assert others == [local_scores, local_scores]
    assert refused == "UsageError: the Hub does not have revision 'nosuch' of me/support; check the revision"
    assert address.startswith(f"{hub.url}/me/loaded/commit/")
    assert "push a trained model" in lexical
    assert unnamed == "UsageError: BM25() was not loaded from a folder; push what polyrank.load(FOLDER) returns"
    assert hub.private["me/loaded"]
    by_python = hub.files("me/loaded")
    assert by_python is not None
    assert by_python[1] == files


@pytest.fixture
def here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, which this process uses with an empty cache."""
    from huggingface_hub import constants

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def test_a_repository_is_public_or_private_from_its_first_push_on(here: Hub, model: Path) -> None:
    for name, private in (("open", False), ("closed", True)):
        for later in (private, not private):
            push_model(model, f"hf:me/{name}", private=later)
            assert bool(here.private[f"me/{name}"]) is private
        assert len(here.commits[f"me/{name}"]) == 2


def test_a_pushed_model_names_its_first_stage_only_where_others_find_it(here: Hub, model: Path) -> None:
    document = read_document(model, MODEL)
    for number, (name, kept) in enumerate((("../bi", None), ("./bi", None), ("shipped:minilm", "shipped:minilm"))):
        metadata = {"first_stage": "f" * 64, "first_stage_name": name}
        (model / MODEL.file).write_bytes(seal({**document, "metadata": metadata}, MODEL))
        push_model(model, f"hf:me/second-{number}")
        pushed = here.files(f"me/second-{number}")
        assert pushed is not None
        sent = json.loads(pushed[1][MODEL.file])["metadata"]
        assert (sent["first_stage"], sent.get("first_stage_name")) == ("f" * 64, kept)
        assert pushed[1]["README.md"] == b"# a model\n"
    (model / "README.md").unlink()
    push_model(model, "hf:me/without")
    pushed = here.files("me/without")
    assert pushed is not None
    assert set(pushed[1]) == {"config.json", "model.safetensors", "tokenizer.json"}


def test_only_files_that_a_model_may_need_are_downloaded(here: Hub) -> None:
    needed = ["config.json", "1_Pooling/config.json", "model.safetensors", "vocab.txt", "merges.txt", "spiece.model"]
    others = ["pytorch_model.bin", "modeling.py", "README.md", "model.onnx", "weights.pkl"]
    files = {name: name.encode() for name in (*needed, *others)}
    here.commits["me/files"] = [("a" * 40, dict.fromkeys(files, b"old")), ("b" * 40, files)]
    for name, content in (("hf:me/files", None), (f"hf:me/files@{'a' * 40}", b"old")):
        folder = hub_folder(name)
        found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
        assert found == {path: content or path.encode() for path in needed}


@pytest.mark.usefixtures("here")
def test_a_model_that_the_hub_does_not_give_is_named_with_the_reason(hub: Hub) -> None:
    hub.commits["me/one"] = [("c" * 40, {"config.json": b"{}"})]
    for name, reason in (
        ("hf:me/absent", "folder hf:me/absent does not exist, and the Hub has no public model of that name; check"),
        ("me/absent", "folder me/absent does not exist, and the Hub has no public model of that name; check the name"),
        ("hf:me/one@v2", "the Hub does not have revision 'v2' of me/one; check the revision"),
        ("hf:gated/model", "the Hub gives hf:gated/model only to signed-in users; run hf auth login first"),
        ("hf:a/b/c", "hf:a/b/c is not a valid Hub name; write hf:OWNER/MODEL"),
    ):
        with pytest.raises(UsageError, match=f"^{reason}"):
            hub_folder(name)


REFUSED = """
import contextlib, io, json, os, sys
from polyrank.cli import commands
for model, name, token in json.loads(sys.argv[1]):
    os.environ["HF_TOKEN"] = token
    sys.argv = ["polyrank", "push", model, name]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = commands.run()
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.mark.deep
def test_unpushable_folders_are_refused(
    hub: Hub, model: Path, tmp_path: Path, run: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    damaged = shutil.copytree(model, tmp_path / "damaged")
    data = bytearray((damaged / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(data)
    cases = [
        (model, "me/bare", TOKEN, 2, "me/bare is not a valid Hub name; write hf:OWNER/MODEL"),
        (model, "hf:me/../support", TOKEN, 2, "is not a valid Hub name"),
        (damaged, "hf:me/damaged", TOKEN, 4, "is damaged"),
        ("bm25", "hf:me/words", TOKEN, 2, "push a trained model"),
        (model, "hf:me/refused", "hf_other", 2, "the Hub refuses hf:me/refused (401"),
    ]
    tried = run("-c", REFUSED, json.dumps([[str(folder), name, token] for folder, name, token, _, _ in cases]))
    assert tried.returncode == 0, tried.stderr
    for line, (_, name, _, code, message) in zip(tried.stdout.splitlines(), cases, strict=True):
        found = json.loads(line)
        assert found[:2] == [code, ""], found
        assert message in found[2]
        assert name.removeprefix("hf:") not in hub.commits


@pytest.mark.deep
def test_an_unreachable_hub_is_reported(model: Path, tmp_path: Path) -> None:
    """Nothing listens at port 9."""
    variables = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "polyrank", "push", str(model), "hf:me/support"]
    pushed = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
    )
    assert pushed.returncode == 8
    assert (
        pushed.stderr == "error: cannot upload to the Hub (ConnectionRefusedError); check the network and try again\n"
    )
