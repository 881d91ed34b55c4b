"""Every command and Python block in the README and docs/ runs as written, on a small copy of the sample."""

import gc
import json
import re
import shlex
import shutil
import subprocess
import zipfile
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from milvus import Milvus
from polyrank.data import read_pool
from polyrank.feedback import Action, FeedbackStore, Outcome, Reply, Shown
from polyrank.records import Context
from processes import run
from servers import serving

ROOT = Path(__file__).parents[2]
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
SAMPLE = Path(str(files("polyrank"))) / "sample"
INSTALLING = ("python3 -m venv", "pip install", "git clone")  # .ci/run does this
ADDRESS = "http://127.0.0.1:8600"
MILVUS = "http://127.0.0.1:19530"
Monkey = pytest.MonkeyPatch
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall((ROOT / page).read_text("utf-8")) if kind == language]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A folder with the files that the pages use."""
    folder = tmp_path_factory.mktemp("blocks")
    replies = [reply.text for reply in read_pool(SAMPLE / "replies.jsonl")][:40]
    (folder / "replies.txt").write_text("\n".join(replies) + "\n", "utf-8")
    (folder / "replies.csv").write_text("reply\n" + "".join(f'"{text}"\n' for text in replies), "utf-8")
    (folder / "more.jsonl").write_text(json.dumps({"id": "r17", "text": "We call you back."}) + "\n", "utf-8")
    dialogues = (SAMPLE / "train.jsonl").read_text("utf-8").splitlines()[:16]
    (folder / "conversations.jsonl").write_text("\n".join(dialogues) + "\n", "utf-8")
    lists = (SAMPLE / "valid.jsonl").read_text("utf-8").splitlines()[:12]
    (folder / "valid.jsonl").write_text("\n".join(lists) + "\n", "utf-8")
    (folder / "test.jsonl").write_text("\n".join(dialogues[:4]) + "\n", "utf-8")
    rows = ["ticket,created,sender,message"]
    for number, dialogue in enumerate(dialogues):
        for minute, turn in enumerate(json.loads(dialogue)["turns"]):
            text = turn["text"].replace('"', "'")
            rows.append(f'{number},2026-03-{1 + number // 2:02d} 10:{minute:02d},{turn["speaker"]},"{text}"')
    (folder / "export.csv").write_text("\n".join(rows) + "\n", "utf-8")
    utterances = [{"text": f"{word} {i}", "intent": word} for word in ("bill", "wifi", "move") for i in range(12)]
    (folder / "utterances.jsonl").write_text("".join(json.dumps(row) + "\n" for row in utterances), "utf-8")
    for name, text in (("a.txt", "Restart the router."), ("b.txt", "Pay the bill.")):
        (folder / name).write_text(text, "utf-8")
    _exports(folder)
    _feedback(folder / "feedback.db", replies)
    for output, kind, method in (("my-run", "poly", ""), ("other-run", "bi", ""), ("cross-run", "cross", "listwise")):
        recipe = f'output = "{output}"\n[model]\nkind = "{kind}"\nbackbone = {json.dumps(str(tiny_backbone))}\n'
        recipe += '[data]\ntrain = "conversations.jsonl"\nvalid = "valid.jsonl"\nspeaker = "agent"\n'
        recipe += "[text]\nmax_context_tokens = 64\nmax_candidate_tokens = 32\n[train]\nmax_steps = 2\n"
        recipe += f'method.kind = "{method}"\nnegatives.n = 3\n' if method else 'method.negatives_weighting = "logq"\n'
        (folder / f"{output}.toml").write_text(recipe, "utf-8")
        result = run("train", f"{output}.toml", cwd=folder)
        assert result.returncode == 0, result.stderr
    shutil.copy(folder / "my-run.toml", folder / "recipe.toml")
    return folder


def _feedback(path: Path, replies: list[str]) -> None:
    """Twenty conversations with replies that were taken, edited or refused."""
    with FeedbackStore(path, keep_text=True) as store:
        for number in range(20):
            shown = tuple(Reply(f"{i}", text=replies[i]) for i in range(number, number + 3))
            action: Action = ("taken", "taken", "edited", "refused")[number % 4]
            reply = None if action == "refused" else f"{number + number % 3}"
            words = f"Like this: {number}" if action in ("edited", "refused") else None
            time = datetime(2026, 3, 1 + number, tzinfo=UTC)
            store.record(
                Shown(f"{number}", shown, Context(f"question {number}"), model="my-run/model", time=time),
                Outcome(f"{number}", action, reply, words, time),
            )


def _exports(folder: Path) -> None:
    """A sheet of tickets, and exports of WhatsApp and Slack."""
    book = openpyxl.Workbook()
    for row in (("Ticket no", "Who", "Body"), (1, "Ann", "my wifi is down"), (1, "Help desk", "Restart the router.")):
        book.active.append(row)
    book.save(folder / "tickets.xlsx")
    with zipfile.ZipFile(folder / "WhatsApp Chat - Shop.zip", "w") as chat:
        chat.writestr("_chat.txt", "[31.12.23, 21:15:03] Ann: is it open?\n[31.12.23, 21:16:10] Shop: Yes, until 5.\n")
    messages = [
        {"type": "message", "user": user, "text": text, "ts": f"17700000{second}.0001"}
        for second, user, text in (
            (10, "U0CUSTOMER", "the bill is too high"),
            (20, "U02AB3C", "Let me look at it."),
            (30, "U04DE5F", "It is fixed."),
        )
    ]
    with zipfile.ZipFile(folder / "slack-export.zip", "w") as workspace:
        names = ("U0CUSTOMER", "ann"), ("U02AB3C", "bea"), ("U04DE5F", "cem")
        workspace.writestr("users.json", json.dumps([{"id": id_, "name": name} for id_, name in names]))
        workspace.writestr("channels.json", json.dumps([{"id": "C1", "name": "support"}]))
        workspace.writestr("support/2026-02-02.json", json.dumps(messages))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "n_blocks"),
    [("docs/python.md", 15), ("docs/index.md", 1), ("docs/formats.md", 1), ("docs/messages.md", 1)],
)
def test_python_blocks_run_as_printed(
    page: str, n_blocks: int, home: Path, tmp_path: Path, monkeypatch: Monkey
) -> None:
    monkeypatch.chdir(shutil.copytree(home, tmp_path / "home"))
    names: dict[str, Any] = {}
    written = blocks(page, "python")
    assert len(written) == n_blocks
    for number, block in enumerate(written):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def test_the_readme_prints_what_its_example_prints(
    tmp_path: Path, monkeypatch: Monkey, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,), (printed,) = blocks("README.md", "python"), blocks("README.md", "text")
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def lines(page: str) -> list[str]:
    """The commands of a page, one a line: without comments, and with continued lines joined."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return [line for raw in text.splitlines() if (line := raw.partition("  #")[0].strip()) and not line.startswith("#")]


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_commands_run_as_printed(home: Path, page: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(home, tmp_path / "home"))
    with ExitStack() as servers:
        url, key, milvus = ADDRESS, "KEY", MILVUS
        if any(MILVUS in line for line in lines(page)):
            pytest.importorskip("milvus_lite", reason="milvus-lite is not installed, the server of this page")
            server = Milvus(tmp_path).start()
            servers.callback(server.kill)
            milvus = f"http://127.0.0.1:{server.port}"
        for line in lines(page):
            if line.startswith(INSTALLING) or "runs/" in line:
                continue
            for part in line.split(" && "):
                words = shlex.split(part.replace(MILVUS, milvus))
                if words[:2] == ["polyrank", "serve"]:
                    running = servers.enter_context(serving(*words[2:], folder=folder))
                    url, key = running.url, running.key
                    continue
                if words[0] != "polyrank" or "|" in words or "<" in words:
                    part = part.replace(ADDRESS, url).replace("Bearer KEY", f"Bearer {key}")
                    command = ["bash", "-c", part.replace("curl -s", "curl -sS --fail-with-body")]
                    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
                else:
                    done = run(*shortened(words[1:]), cwd=folder)
                assert done.returncode == 0, f"{part}\n{done.stdout}\n{done.stderr}"


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of other libraries
def test_client_blocks_run_as_printed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shutil.copytree(home, tmp_path / "home"))
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    assert run("index", "build", "shipped:convert", "replies.txt", "-o", "support").returncode == 0
    with serving("support") as running:
        names: dict[str, Any] = {}
        for number, block in enumerate(blocks("docs/clients.md", "python")):
            code = block.replace(ADDRESS, running.url).replace('"KEY"', repr(running.key))
            exec(compile(code, f"docs/clients.md, block {number}", "exec"), names)
        assert len(names["query"]) == 256
        names.clear()
        gc.collect()  # closes the sockets that the clients leave open


def shortened(words: list[str]) -> list[str]:
    """Trainings take two short steps and a fit 12 seconds on a machine of any speed: enough to show that it works."""
    if words[0] == "fit":
        limits = {"--minutes": "0.2", "--ms": "1000"}
        return [limits.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    short = ["--set", "train.max_steps=2", "--set", "train.batch_size=4"]
    return [*words, *short] if words[0] == "train" and "--resume" not in words else words
