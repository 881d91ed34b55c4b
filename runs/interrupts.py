"""Sends SIGINT and SIGTERM at random moments of every long command.

    python runs/interrupts.py -n 200 --cold 100

Prints a table and stores "interrupts" with runs/record.py; with ``--only``, results of the other commands stay.

Each warm process is forked from one that has the libraries imported, and sends itself the signal after a given
processor time. These times are spread evenly over what the uninterrupted command uses. Cold processes are new
interpreters and receive the signal from this script. A command must end with 130 or 143, or with 0 if its work was
complete; print one line; leave each file whole or absent; and work when it runs again.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS = 300  # a process that takes longer hangs
FORBIDDEN = ("Traceback", "Exception ignored", "KeyboardInterrupt", "panicked", "Fatal Python error", "internal error")

_warm = multiprocessing.get_context("forkserver")
PRELOADED = [
    "polyrank.answering.calibration",
    "polyrank.cli.commands",
    "polyrank.evaluation",
    "polyrank.frozen.intents",
    "polyrank.negatives.mine",
    "polyrank.answering.pipeline",
    "polyrank.cli.quickstart",
    "polyrank.frozen.maps",
    "polyrank.answering.retrievers",
    "polyrank.scorers.open",
    "polyrank.training",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
]

Check = Callable[[Path, bool], list[str]]


@dataclass(frozen=True)
class LongCommand:
    """A command that takes seconds. ``{home}`` is the folder of the inputs; it runs in an empty folder.

    Args:
        arguments: of ``polyrank``.
        check: returns the problems of the files that it left; receives whether the command reported success.
        stdin: a file of ``home``.
        again: arguments for running it again, where they differ.
        copied: the file or folder of ``home`` that it changes or writes next to; each run gets a copy.
    """

    arguments: str
    check: Check
    stdin: str = ""
    again: str = ""
    copied: str = ""


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code (None if it hung), output, and processor seconds."""

    code: int | None
    stdout: str
    stderr: str
    seconds: float


# --- checks of the files that a command leaves ------------------------------------------------------------------------


def rows(name: str, n: int) -> Check:
    """A file with ``n`` lines of JSON, or no file."""

    def check(folder: Path, done: bool) -> list[str]:
        path = folder / name
        if not path.exists():
            return ["the file is missing"] if done else []
        lines = path.read_text("utf-8").splitlines()
        return [] if len(list(map(json.loads, lines))) == n else [f"{len(lines)} lines of {n}"]

    return check


def answers(n: int) -> Check:
    """At most ``n`` lines of JSON on stdout, each of them whole."""

    def check(folder: Path, done: bool) -> list[str]:
        lines = (folder / "stdout").read_text("utf-8").splitlines()
        n_whole = len(list(map(json.loads, lines)))
        return [] if n_whole == n or (not done and n_whole < n) else [f"{n_whole} answers of {n}"]

    return check


def folder_of(load: Callable[[Path], Any], *names: str) -> Check:
    """Folders that load or are absent."""

    def check(folder: Path, done: bool) -> list[str]:
        problems = []
        for name in names:
            if (folder / name).exists():
                load(folder / name)
            elif done:
                problems.append(f"{name} is missing")
        return problems

    return check


def index_of(*sizes: int, name: str = "out") -> Check:
    """A sound index of one of these sizes; a finished command leaves the last one."""

    def check(folder: Path, done: bool) -> list[str]:
        from polyrank.index import open_index, verify_index

        if not (folder / name).exists():
            return ["the index is missing"] if done or len(sizes) > 1 else []
        with open_index(folder / name) as found:
            n = int(found.info()["n"])
        wanted = sizes[-1:] if done else sizes
        return verify_index(folder / name) + ([] if n in wanted else [f"{n} candidates instead of {wanted}"])

    return check


def loaded_model(folder: Path) -> None:
    from polyrank.models.artifacts import load_model

    load_model(folder)


def loaded_map(folder: Path) -> None:
    from polyrank.scorers.open import load

    load(str(folder))


def loaded_intents(folder: Path) -> None:
    from polyrank.frozen.intents import load_intents

    load_intents(folder)


def loaded_pipeline(folder: Path) -> None:
    from polyrank.loading.answering import read_pipeline

    read_pipeline(folder)


COMMANDS = {
    "train": LongCommand(
        "train bi.toml --json", folder_of(loaded_model, "run/model"), again="train bi.toml --resume", copied="bi.toml"
    ),
    "train, mutual": LongCommand(
        "train mutual.toml --json",
        folder_of(loaded_model, "run/retriever/model", "run/reranker/model"),
        again="train mutual.toml --resume",
        copied="mutual.toml",
    ),
    "evaluate": LongCommand(
        "evaluate shipped:convert {home}/lists.jsonl --scores out.jsonl",
        rows("out.jsonl", 61),
        again="evaluate shipped:convert {home}/lists.jsonl --scores out.jsonl --overwrite",
    ),
    "index build": LongCommand(
        "index build shipped:convert {home}/replies.txt -o out --ann none",
        index_of(400),
        again="index build shipped:convert {home}/replies.txt -o out --overwrite",
    ),
    "index add": LongCommand(
        "index add index {home}/more.jsonl",
        index_of(400, 500, name="index"),
        again="index add index {home}/more.jsonl --replace",
        copied="index",
    ),
    "respond": LongCommand("respond {home}/index", answers(150), stdin="contexts.txt"),
    "rank": LongCommand("rank shipped:convert", answers(60), stdin="lists.jsonl"),
    "mine": LongCommand(
        "mine {home}/lists.jsonl --from shipped:convert -o out.jsonl -n 3",
        rows("out.jsonl", 60),
        again="mine {home}/lists.jsonl --from shipped:convert -o out.jsonl -n 3 --overwrite",
    ),
    "map": LongCommand(
        "map {home}/pairs.jsonl --valid {home}/lists.jsonl --encoder shipped:convert -o out --max-epochs 6",
        folder_of(loaded_map, "out"),
        again="map {home}/pairs.jsonl --valid {home}/lists.jsonl --encoder shipped:convert -o out --max-epochs 2"
        " --overwrite",
    ),
    "sum": LongCommand(
        "sum shipped:convert shipped:convert --valid {home}/lists.jsonl -o out",
        folder_of(loaded_map, "out"),
        again="sum shipped:convert shipped:convert --weights 1,1 -o out --overwrite",
    ),
    "intents train": LongCommand(
        "intents train {home}/intents.csv --encoder shipped:convert -o out",
        folder_of(loaded_intents, "out"),
        again="intents train {home}/intents.csv --encoder shipped:convert -o out --overwrite",
    ),
    "pipeline create": LongCommand(
        "pipeline create {home}/index -o out --valid {home}/known.jsonl --precision 0.05 --no-answer 0.1",
        folder_of(loaded_pipeline, "out"),
        again="pipeline create {home}/index -o out --valid {home}/known.jsonl --precision 0.05 --overwrite",
    ),
    "pipeline test": LongCommand("pipeline test {home}/pipeline {home}/known.jsonl --json", answers(1)),
    "import": LongCommand(
        "import convai2 {home}/convai2.txt -o out.jsonl",
        rows("out.jsonl", 2000),
        again="import convai2 {home}/convai2.txt -o out.jsonl --overwrite",
    ),
    "quickstart": LongCommand(
        "quickstart --output out --start shipped:convert --max-steps 12 --json",
        index_of(406, name="out/index"),
        again="quickstart --output out --start shipped:convert --max-steps 12 --overwrite",
    ),
}
COLD = {"--help": "--help", "info": "info shipped:convert --json", "rank": "rank bm25"}


# --- inputs -----------------------------------------------------------------------------------------------------------


def prepare(home: Path) -> None:
    """Write all inputs into a folder. They are small, since the result depends on moments, not on sizes."""
    words = [
        "my",
        "wifi",
        "is",
        "down",
        "hello",
        "thanks",
        "the",
        "router",
        "light",
        "red",
        "please",
        "restart",
        "bill",
    ]
    chance = random.Random(0)

    def text(n: int) -> str:
        return " ".join(chance.choices(words, k=n))

    def write(name: str, lines: list[Any]) -> None:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (home / name).write_text("\n".join(texts) + "\n", "utf-8")

    replies = [f"{text(6)} {i}" for i in range(400)]
    write("replies.txt", replies)
    write("more.jsonl", [{"id": f"new{i}", "text": f"{text(6)} {i} more"} for i in range(100)])
    write("contexts.txt", [text(8) for _ in range(150)])
    write("pairs.jsonl", [{"context": [text(5), text(5)], "response": f"{text(5)} {i}"} for i in range(200)])
    lists = [{"id": str(i), "context": [text(8)], "candidates": replies[i : i + 9], "relevant": [2]} for i in range(60)]
    write("lists.jsonl", lists)
    write("known.jsonl", [{"context": [r[:20]], "candidates": [r], "relevant": [0]} for r in replies[:60]])
    write("intents.csv", ["text,intent", *(f"{text(6)} {name},{name}" for name in ("pay", "call", "move") * 12)])
    turns = [f"{number % 8 + 1} {text(5)}\t{text(5)}" for number in range(2000)]
    write("convai2.txt", turns)
    _backbone(home / "backbone")
    both = f'[text]\nmax_context_tokens = 24\nmax_candidate_tokens = 12\n[data]\ntrain = "{home}/pairs.jsonl"\n'
    both += f'valid = "{home}/lists.jsonl"\n[train]\nepochs = 1\nmax_steps = 14\nbatch_size = 8\ncheckpoint_steps = 3\n'
    model = f'kind = "%s"\nbackbone = "{home}/backbone"\n'
    write("bi.toml", [f'output = "run"\n[model]\n{model % "bi"}{both}'])
    mutual = both.replace("max_steps = 14", "max_steps = 6")
    mutual += '[train.method]\nkind = "mutual"\n[train.negatives]\nn = 3\n'
    write("mutual.toml", [f'output = "run"\n[model]\n{model % "bi"}{mutual}[reranker]\n{model % "cross"}'])
    for made in (
        "index build shipped:convert {home}/replies.txt -o {home}/index",
        "pipeline create {home}/index -o {home}/pipeline --valid {home}/known.jsonl --precision 0.05 --no-answer 0.1",
    ):
        with tempfile.TemporaryDirectory() as folder:
            ended = run(LongCommand(made, answers(0)), home, Path(folder))
        assert ended.code == 0, ended.stderr


def _backbone(folder: Path) -> None:
    """A BERT of two layers and 32 dimensions with random weights, whose tokens are letters."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    backend = Tokenizer(WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = BertPreTokenizer()
    tokens = {f"{name.strip('[]').lower()}_token": name for name in names[:5]}
    PreTrainedTokenizerFast(tokenizer_object=backend, **tokens).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(names), max_position_embeddings=64, **shape)).save_pretrained(folder)


# --- processes --------------------------------------------------------------------------------------------------------


def run(
    command: LongCommand, home: Path, folder: Path, number: int = 0, moment: float = 0.0, *, again: bool = False
) -> Ended:
    """Run the command in a new process, which gets the signal after ``moment`` processor seconds."""
    if command.copied and not again:
        copy = shutil.copytree if (home / command.copied).is_dir() else shutil.copyfile
        copy(home / command.copied, folder / command.copied)
    arguments = (command.again if again and command.again else command.arguments).format(home=home).split()
    stdin = home / command.stdin if command.stdin else Path(os.devnull)
    child = _warm.Process(target=_command, args=(arguments, str(folder), str(stdin), number, moment))
    child.start()
    child.join(SECONDS)
    if child.exitcode is None:
        child.kill()
        child.join()
        return Ended(None, *_output(folder))
    return Ended(child.exitcode, *_output(folder))


def _output(folder: Path) -> tuple[str, str, float]:
    out, err, took = ((folder / name) for name in ("stdout", "stderr", "seconds"))
    seconds = float(took.read_text()) if took.exists() else 0.0
    return out.read_text("utf-8"), err.read_text("utf-8"), seconds


def _command(arguments: list[str], folder: str, stdin: str, number: int, moment: float) -> None:
    os.chdir(folder)
    for descriptor, path, flags in ((0, stdin, os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY)):
        opened = os.open(path, flags if descriptor == 0 else flags | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # for the process's whole life
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = ["polyrank", *arguments]
    import torch

    from polyrank.cli import program

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may have inherited "ignore"
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if number:
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), number))
        signal.setitimer(signal.ITIMER_PROF, moment)
    before = _used()
    try:
        program()
    finally:
        if not number:
            Path("seconds").write_text(str(_used() - before), "utf-8")


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cold(arguments: str, number: int, moment: float | None) -> tuple[int | None, str, float]:
    """Run the command in a new interpreter; returns its exit code, its stderr and its wall seconds."""

    def reset_signals() -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    started = time.monotonic()
    command = [sys.executable, "-m", "polyrank", *arguments.split()]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=reset_signals,
    ) as process:
        if moment is not None:
            time.sleep(max(0.0, started + moment - time.monotonic()))
            process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, "", SECONDS
    return process.returncode, errors, time.monotonic() - started


# --- checking ---------------------------------------------------------------------------------------------------------


def check_end(command: LongCommand, ended: Ended, folder: Path, number: int) -> tuple[str, list[str]]:
    """The outcome in a word or two, and its problems."""
    problems = [f"prints {word!r}" for word in FORBIDDEN if word in ended.stderr]
    last = ended.stderr.splitlines()[-1:] or [""]
    done = ended.code == 0
    if ended.code is None:
        outcome = "hangs"
        problems.append("hangs")
    elif done:
        outcome = "done"
    elif ended.code == 128 + number:
        saved = last[0].startswith("stopped by")
        outcome = "stopped and saved" if saved else "interrupted"
        if not saved and not last[0].startswith("interrupted"):
            problems.append(f"does not report that it was interrupted: {last[0]!r}")
        option = next((option for option in ("--resume", "--overwrite") if option in command.again), "")
        if saved and option not in last[0]:
            problems.append(f"does not name {option}: {last[0]!r}")
    else:
        outcome = f"exit code {ended.code}"
        problems.append(f"exit code {ended.code}: {last[0]!r}")
    try:
        problems += command.check(folder, done)
    except Exception as error:
        problems.append(f"it left a broken file: {type(error).__name__}: {error}")
    return outcome, problems


def trial(
    name: str, home: Path, number: int, moment: float, *, again: bool = False
) -> tuple[str, list[str], list[str]]:
    """One process and one signal: the outcome, the problems, and temporary files that it left."""
    command = COMMANDS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ended = run(command, home, folder, number, moment)
        outcome, problems = check_end(command, ended, folder, number)
        left = [p.name for p in folder.rglob(".*")]
        if again:
            once_more = run(command, home, folder, again=True)
            if once_more.code != 0:
                problems.append(f"fails when it runs again: {once_more.stderr.splitlines()[-1:]}")
            else:
                problems += command.check(folder, True)
    return outcome, [f"{name}, {signal.Signals(number).name} at {moment:.3f} s: {p}" for p in problems], left


def alone(name: str, home: Path) -> float:
    """Processor seconds of the uninterrupted command."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run(COMMANDS[name], home, Path(folder))
        if ended.code != 0 or COMMANDS[name].check(Path(folder), True):
            raise SystemExit(f"{name}: {ended.code} {ended.stderr} {COMMANDS[name].check(Path(folder), True)}")
    return ended.seconds


def try_warm(name: str, home: Path, n: int, every: int, chance: random.Random, pool: ThreadPoolExecutor) -> Any:
    seconds = alone(name, home)
    moments = [max(1e-3, (i + chance.random()) / n * seconds * 1.02) for i in range(n)]
    tried = [
        pool.submit(trial, name, home, SIGNALS[i % 2], moment, again=every > 0 and i % every == 0)
        for i, moment in enumerate(moments)
    ]
    found = [each.result() for each in tried]
    problems = [problem for _, some, _ in found for problem in some]
    return {
        "n": n,
        "seconds_alone": round(seconds, 3),
        "outcomes": dict(Counter(outcome for outcome, _, _ in found)),
        "run_again": sum(every > 0 and i % every == 0 for i in range(n)),
        "left_temporary_files": sum(bool(left) for _, _, left in found),
        "n_violations": sum(bool(some) for _, some, _ in found),
        "violations": problems[:20],
    }


def try_cold(arguments: str, n: int, chance: random.Random) -> Any:
    """Interrupt new interpreters. Until polyrank's first line runs, Python alone handles the signal."""
    seconds = min(cold(arguments, 0, None)[2] for _ in range(3))
    outcomes: Counter[str] = Counter()
    problems = []
    for i in range(n):
        number = SIGNALS[i % 2]
        moment = (i + chance.random()) / n * seconds
        code, errors, _ = cold(arguments, number, moment)
        traced = "Traceback" in errors or "Fatal Python error" in errors
        if code in (-number, 1) and "in program" not in errors and "interrupted" not in errors:
            outcomes["before polyrank"] += 1
        elif code in (0, 128 + number) and not any(word in errors for word in FORBIDDEN):
            outcomes["done" if code == 0 else "interrupted"] += 1
        else:
            problems.append(f"{signal.Signals(number).name} at {moment:.3f} s: {code} {traced} {errors[-300:]!r}")
    return {
        "n": n,
        "seconds_alone": round(seconds, 3),
        "outcomes": dict(outcomes),
        "n_violations": len(problems),
        "violations": problems[:20],
    }


def main() -> None:
    """Interrupt all commands, or those of ``--only``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=200, help="interrupts per warm command")
    parser.add_argument("--cold", type=int, default=0, help="interrupts per cold command")
    parser.add_argument("--again", type=int, default=10, help="run every N-th command again afterwards; 0: none")
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), choices=list(COMMANDS), help="commands to try")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    _warm.set_forkserver_preload(PRELOADED)
    parts: dict[str, Any] = record.read("interrupts")["commands"] if record.has("interrupts") else {}

    def keep(key: str, part: dict[str, Any]) -> None:
        _show(key, part)
        parts[key] = part
        _write(parts)

    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.jobs) as pool:
        home = Path(place)
        prepare(home)
        for name in options.only:
            keep(name, try_warm(name, home, options.n, options.again, random.Random(f"{options.seed} {name}"), pool))
    for name, arguments in COLD.items() if options.cold else ():
        keep(f"{name}, cold", try_cold(arguments, options.cold, random.Random(f"{options.seed} {name}, cold")))
    raise SystemExit(any(part["n_violations"] for part in parts.values()))


def _write(parts: dict[str, Any]) -> None:
    """Store all results so far."""
    from polyrank.bench.machine import describe_machine

    result = {
        "machine": describe_machine(),
        "interrupts": sum(part["n"] for part in parts.values()),
        "violations": sum(part["n_violations"] for part in parts.values()),
        "commands": parts,
    }
    record.write("interrupts", result)


def _show(name: str, part: dict[str, Any]) -> None:
    outcomes = ", ".join(f"{outcome} {count}" for outcome, count in sorted(part["outcomes"].items()))
    print(f"{name:18} {part['n']:4}  {outcomes:50} violations {part['n_violations']}", flush=True)
    for problem in part["violations"]:
        print(f"    {problem}", flush=True)


if __name__ == "__main__":
    main()
