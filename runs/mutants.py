"""Puts faults into the code, one at a time, and sees which of them the tests notice.

    python runs/mutants.py cover                    which test runs which line (once, and after tests have changed)
    python runs/mutants.py run [--room search ...]  faults into those rooms; goes on where it was stopped
    python runs/mutants.py again                    those that survived, once more
    python runs/mutants.py one --id ID --tests ...  what these tests alone say to a fault; nothing is written
    python runs/mutants.py table                    runs/results/mutants.md from what was seen

A fault is one small change by an operator (a comparison turned, an argument swapped, a statement dropped, ...). Each
runs in a process of its own, forked from one that has torch imported, on a copy of the package in which one file
differs; the tests that run the changed line decide, quickest first. A file has as many faults as its length asks for,
drawn by the hash of each, so that moving code moves its faults along. Those that change nothing that anybody could see
are listed with the reason in runs/equivalent/ROOM.toml.

Needs the packages of ``dev``, a compiler for the faults in C, and Linux.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "polyrank"
WORK = ROOT / "runs" / "work" / "mutants"
EQUIVALENT = ROOT / "runs" / "equivalent"
SEEN = ROOT / "runs" / "results" / "mutants.jsonl"
TABLE = ROOT / "runs" / "results" / "mutants.md"

ROOMS: dict[str, tuple[list[str], list[str]]] = {
    # files of the room, and its tests for lines that no test runs in its own process
    "scoring": (
        ["models/scoring.py", "models/losses.py", "search/scoring.py"],
        ["test_search.py", "test_losses.py"],
    ),
    "metrics": (["ranking/metrics.py", "evaluation/*.py"], ["test_metrics.py", "test_evaluation.py"]),
    "quantization": (
        ["models/convert/quantization.py", "storage/quantized.py"],
        ["test_convert_quantization.py", "test_packing.py"],
    ),
    "artifacts": (
        ["models/artifacts.py", "models/start.py", "storage/tensors.py", "storage/document.py", "scorers/*.py"],
        ["test_artifacts.py", "test_encoding.py", "test_document.py"],
    ),
    "networks": (["models/*.py", "models/convert/*.py"], ["test_models.py", "test_convert.py", "test_references.py"]),
    "text": (["text/*.py"], ["test_text.py", "test_convert_text.py", "test_budgets.py"]),
    "negatives": (
        ["negatives/*.py", "training/batches.py", "training/steps.py", "data/pool.py"],
        ["test_mining.py", "test_training.py"],
    ),
    "checkpoints": (["training/checkpoints.py", "training/teacher.py"], ["test_resume.py", "test_mutual.py"]),
    "mutual": (["training/mutual.py"], ["test_mutual.py"]),
    "training": (["training/*.py"], ["test_training.py", "test_golden.py", "test_convert_training.py"]),
    "search": (["search/*.py"], ["test_search.py", "test_bounds.py"]),
    "kernels": (["kernels.c", "registers.c", "registers.h", "tiles.c"], ["test_kernels.py"]),
    "store": (["storage/durable.py", "index/*.py"], ["test_store.py", "test_store_faults.py", "test_index.py"]),
    "calibration": (["ranking/*.py", "answering/*.py"], ["test_pipeline.py", "test_two_stage.py"]),
    "frozen": (["frozen/*.py", "frozen/intents/*.py"], ["test_intents.py", "test_map.py"]),
    "importers": (
        ["data/*.py", "data/importers/*.py", "records.py", "config/*.py"],
        ["test_data.py", "test_importers.py"],
    ),
    "chats": (["data/chats/*.py"], ["test_chats.py"]),
    "pretraining": (["models/pretraining.py", "training/pretraining/*.py"], ["test_pretraining.py"]),
    "foreign": (["models/foreign/*.py"], ["test_foreign.py"]),
}
LINES_PER_FAULT = 32
DENSE = {
    "scoring": 6,
    "metrics": 16,
    "quantization": 10,
    "checkpoints": 10,
    "mutual": 10,
    "negatives": 18,
    "search": 24,
}
FEWEST, MOST = 1, 14
IN_C = 15  # faults for each file
REFERENCES = ("tests/test_docs.py::test_references_are_current",)  # they tell the defaults of options and recipes
CPU_SECONDS, SECONDS = 120, 600  # for one fault's tests; a fault that takes longer hangs, which is noticed


@dataclass(frozen=True)
class Fault:
    """One change: in ``path`` of the package (or of the C files), characters ``start`` to ``end`` become ``new``."""

    id: str
    room: str
    path: str
    line: int
    where: str
    operator: str
    old: str
    new: str
    start: int
    end: int

    def applied(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


# --- operators --------------------------------------------------------------------------------------------------------

COMPARED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
COMPUTED = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.MatMult: ("@", "+"),
}  # fmt: skip
NAMES = {
    "max": "min", "min": "max", "amax": "amin", "amin": "amax", "maximum": "minimum", "minimum": "maximum",
    "argmax": "argmin", "argmin": "argmax", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any",
    "sum": "mean", "mean": "sum", "log": "log1p", "sqrt": "exp", "sorted": "list", "argsort": "flip",
    "fsync": "fstat", "logsumexp": "amax", "softmax": "sigmoid", "zeros": "ones", "ones": "zeros", "cos": "sin",
}  # fmt: skip


class Operators(ast.NodeVisitor):
    """Every change that an operator knows, as (node or span, operator, old text, new text)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.encoded = [line.encode() for line in text.splitlines(keepends=True)]
        self.where: list[str] = []
        self.changes: list[tuple[int, int, int, str, str, str]] = []  # start, end, line, where, operator, new

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.encoded[line - 1][:column].decode())

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def change(self, start: int, end: int, operator: str, new: str) -> None:
        line = self.text.count("\n", 0, start) + 1
        self.changes.append((start, end, line, ".".join(self.where), operator, new))

    def replace(self, node: ast.expr | ast.stmt, operator: str, new: str) -> None:
        self.change(*self.span(node), operator, new)

    def source(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def between(self, left: ast.expr, right: ast.expr, old: str, operator: str, new: str) -> None:
        start, end = self.span(left)[1], self.span(right)[0]
        found = re.search(rf"(?<![\w*/<>=!]){re.escape(old)}(?![*/<>=])", self.text[start:end])
        if found:
            self.change(start + found.start(), start + found.end(), operator, new)

    def visit_scope(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.where.append(node.name)
        defaults = (
            [*node.args.defaults, *filter(None, node.args.kw_defaults)] if isinstance(node, ast.FunctionDef) else []
        )
        for child in (*node.body, *defaults):
            self.visit(child)
        self.where.pop()

    visit_FunctionDef = visit_ClassDef = visit_scope  # noqa: N815  # names that ast asks for

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            self.replace(node.test, "condition turned", f"not ({self.source(node.test)})")
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Assertions state what types cannot."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self.replace(node, "statement dropped", "pass")  # what errors say is read by people

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Import(self, node: ast.Import) -> None: ...
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            self.replace(node, "statement dropped", "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.replace(node, "statement dropped", "pass")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for kind, right in zip(node.ops, node.comparators, strict=True):
            old, new = COMPARED[type(kind)]
            self.between(left, right, old, "comparison turned", new)
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = (ast.Constant, ast.JoinedStr)
        if any(
            isinstance(side, texts) and not isinstance(getattr(side, "value", ""), int | float)
            for side in (node.left, node.right)
        ):
            return
        if type(node.op) in COMPUTED:
            old, new = COMPUTED[type(node.op)]
            self.between(node.left, node.right, old, "arithmetic", new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self.between(node.values[0], node.values[1], old, "and / or", new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        what = {ast.USub: "sign", ast.Not: "condition turned", ast.Invert: "mask inverted"}
        if type(node.op) in what:
            self.replace(node, what[type(node.op)], f"({self.source(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.replace(node, "constant", str(not value))
        elif isinstance(value, int):
            self.replace(node, "off by one", str(value + 1))
        elif isinstance(value, float):
            self.replace(node, "constant", repr(value * 1.1 if value else 0.1))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in NAMES:
            end = self.span(node.func)[1]
            self.change(end - len(name), end, f"{name} for", NAMES[name])
        plain = [a for a in node.args if not isinstance(a, ast.Starred | ast.JoinedStr | ast.Constant)]
        if (
            len(plain) == len(node.args) >= 2
            and self.source(plain[0]) != self.source(plain[1])
            and name not in ("isinstance", "max", "min", "zip", "cast")
        ):
            start, end = self.span(plain[0])[0], self.span(plain[1])[1]
            gap = self.text[self.span(plain[0])[1] : self.span(plain[1])[0]]
            self.change(start, end, "arguments swapped", self.source(plain[1]) + gap + self.source(plain[0]))
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg in ("dim", "axis", "start_dim") or (keyword.arg is None):
                if isinstance(value, ast.Constant | ast.UnaryOp):
                    self.replace(value, "axis", "0" if self.source(value) != "0" else "-1")
            elif keyword.arg and "seed" in keyword.arg:
                self.replace(value, "seed", "12345")
            elif keyword.arg not in ("strict", "encoding", "help", "progress", "say", "report"):
                start, end = self.span(keyword)
                tail = re.match(r"\s*,\s*", self.text[end:])
                if tail and not isinstance(value, ast.Constant):
                    self.change(start, end + tail.end(), "argument dropped", "")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Name | ast.Attribute) and self.where:
            pass  # what is returned is computed elsewhere
        self.generic_visit(node)


C_CHANGES = [
    (r"(?<=[\w\])]) (<|>) (?=[\w(])", {"<": "<=", ">": ">="}, "comparison turned"),
    (r"(?<=[\w\])]) (<=|>=) (?=[\w(])", {"<=": "<", ">=": ">"}, "comparison turned"),
    (r"(?<=[\w\])]) (\+|-) (?=[\w(])", {"+": "-", "-": "+"}, "arithmetic"),
    (r"(?<=[\w\])]) (\*) (?=[\w(])", {"*": "+"}, "arithmetic"),
    (r"(?<=[\w\])]) (\+=|-=) (?=[\w(])", {"+=": "-=", "-=": "+="}, "arithmetic"),
    (r"\b(?:fmaxf?|fminf?|_mm512_max_ps|_mm512_min_ps|_mm256_max_ps)\b", {}, "max for min"),
    (r"(?<![\w.\"])(\d+\.\d+f?)\b", {}, "constant"),
    (r"(?<![\w.\"\[])([1-9]\d{0,2})\b(?![.\w])", {}, "off by one"),
]


def faults_of(room: str, path: Path, text: str, drawn: bool) -> list[Fault]:
    """All faults of a file, or those that are drawn."""
    name = path.name if path.suffix in (".c", ".h") else path.relative_to(PACKAGE).as_posix()
    changes = list(_c_changes(text)) if path.suffix in (".c", ".h") else _python_changes(text)
    lines = text.splitlines()
    seen: Counter[str] = Counter()
    faults = []
    for start, end, line, where, operator, new in changes:
        body = f"{where}|{operator}|{lines[line - 1].strip()}|{new}"
        seen[body] += 1
        digest = hashlib.sha256(f"{body}|{seen[body]}".encode()).hexdigest()[:10]
        faults.append(Fault(digest, room, name, line, where, operator, text[start:end], new, start, end))
    if not drawn:
        return faults
    code = sum(1 for line in lines if line.strip() and not line.strip().startswith(("#", '"""', "//", "*")))
    share = max(FEWEST, min(MOST, round(code / DENSE.get(room, LINES_PER_FAULT))))
    if path.suffix in (".c", ".h"):
        share = IN_C
    # one of each operator before the second of any, and never two on a line before every line had one
    taken: Counter[tuple[str, str | int]] = Counter()
    ranked = []
    for fault in sorted(faults, key=lambda f: f.id):
        rank = max(taken["operator", fault.operator], 3 * taken["line", fault.line])
        taken["operator", fault.operator] += 1
        taken["line", fault.line] += 1
        ranked.append((rank, fault.id, fault))
    in_order = (fault for *_, fault in sorted(ranked, key=lambda r: r[:2]))
    before = "" if path.suffix in (".c", ".h") else ast.dump(ast.parse(text))
    return list(islice((fault for fault in in_order if not before or _changes(fault, text, before)), share))


def _changes(fault: Fault, text: str, before: str) -> bool:
    """Whether the code is still code, and another one."""
    try:
        return ast.dump(ast.parse(fault.applied(text))) != before
    except SyntaxError:
        return False


def _python_changes(text: str) -> list[tuple[int, int, int, str, str, str]]:
    operators = Operators(text)
    operators.visit(ast.parse(text))
    return operators.changes


def _c_changes(text: str) -> Iterator[tuple[int, int, int, str, str, str]]:
    where = ""
    position = 0
    text = re.sub(r"/\*.*?\*/", lambda comment: re.sub(r"[^\n]", " ", comment[0]), text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if found := re.match(r"(?:\w[\w\s*()\",]*?)\b(\w+)\(", line):
            where = found[1]
        code = line.split("/*")[0].split("//")[0]
        if not code.lstrip().startswith(("*", "#", "argtypes")):
            for pattern, swaps, operator in C_CHANGES:
                for match in re.finditer(pattern, code):
                    group = 1 if match.re.groups else 0
                    old = match[group]
                    if swaps:
                        new = swaps[old]
                    elif operator == "max for min":
                        new = old.replace("max", "MIN").replace("min", "max").replace("MIN", "min")
                    elif operator == "constant":
                        number_part = old.rstrip("f")
                        new = repr(float(number_part) * 1.1 if float(number_part) else 0.1) + old[len(number_part) :]
                    else:
                        new = str(int(old) + 1)
                    yield position + match.start(group), position + match.end(group), number, where, operator, new
        position += len(line)


def all_faults(rooms: list[str], drawn: bool = True) -> list[Fault]:
    taken: set[Path] = set()
    faults = []
    for room, (patterns, _) in ROOMS.items():
        base = ROOT / "kernels" / "polyrank_kernels" if room == "kernels" else PACKAGE
        paths = [path for pattern in patterns for path in sorted(base.glob(pattern)) if path not in taken]
        for path in dict.fromkeys(paths):
            taken.add(path)
            if not rooms or room in rooms:
                faults += faults_of(room, path, path.read_text("utf-8"), drawn)
    return faults


# --- which tests ------------------------------------------------------------------------------------------------------


def cover() -> None:
    """Run the whole suite once and remember which test runs which line, and how long each takes."""
    WORK.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "COVERAGE_FILE": str(WORK / "coverage"), "COVERAGE_CORE": "ctrace"}
    arguments = [
        "-o",
        "addopts=",
        "-o",
        "junit_family=xunit1",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-p",
        "no:cacheprovider",
    ]
    # what interrupts at any moment does so within the measuring too, which then waits for itself
    arguments += ["--deselect", "tests/test_store_faults.py::test_a_writer_that_was_interrupted_at_any_moment_goes_on"]
    measured = ["--cov=polyrank", "--cov-context=test", "--cov-report=", f"--junitxml={WORK / 'times.xml'}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *measured, "tests"], cwd=ROOT, env=environment, check=False
    )


class Coverage:
    """Which tests run a line, quickest first."""

    def __init__(self) -> None:
        import coverage

        data = coverage.CoverageData(str(WORK / "coverage"))
        data.read()
        self.seconds: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        for case in ElementTree.parse(WORK / "times.xml").iter("testcase"):
            self.seconds[f"{case.get('file')}::{case.get('name')}"] = float(case.get("time", 0))
        self.lines: dict[str, dict[int, set[str]]] = {}
        for path in data.measured_files():
            per_line = data.contexts_by_lineno(path)
            self.lines[path.rpartition("/src/polyrank/")[2]] = {  # of a copy elsewhere, too
                line: {context.rpartition("|")[0] for context in contexts if "|" in context}
                for line, contexts in per_line.items()
            }

    def is_there(self, test: str) -> bool:
        """Whether the test is still there by that name."""
        file, _, name = test.partition("::")
        if file not in self.texts:
            self.texts[file] = (ROOT / file).read_text("utf-8") if (ROOT / file).exists() else ""
        return f"def {name.partition('[')[0]}(" in self.texts[file]

    def tests(self, fault: Fault, budget: float = 60.0) -> list[str]:
        """Node ids for a fault; all files of its room where no test runs the line in its own process."""
        room_files = [f"tests/{name}" for name in ROOMS[fault.room][1] if (ROOT / "tests" / name).exists()]
        known = self.lines.get(fault.path, {})
        start = next((n for n in range(fault.line, max(fault.line - 8, 0), -1) if n in known), fault.line)
        tests = known.get(start, set())  # of the statement that the line belongs to
        at_import = not tests
        if at_import:  # such as a default: the next line that tests run is of its function
            tests = next((known[n] for n in range(fault.line, fault.line + 40) if known.get(n)), set())
        if not tests:
            tests = set().union(*known.values()) if known else set()
        tests = {test for test in tests if self.is_there(test)}
        # the room's own tests first: they are the ones that should notice
        ranked = sorted(tests, key=lambda t: (t.partition("::")[0] not in room_files, self.seconds.get(t, 0.3)))
        chosen, spent = (list(REFERENCES) if at_import else []), 0.0
        for test in ranked:
            spent += self.seconds.get(test, 0.3)
            if chosen and spent > budget:
                break
            chosen.append(test)
        return sorted(chosen, key=lambda t: self.seconds.get(t, 0.3)) or room_files


# --- running ----------------------------------------------------------------------------------------------------------


def run(faults: list[Fault], jobs: int, tests_of: Callable[[Fault], list[str]], results: Path | None) -> None:
    """Try each fault in a process of its own."""
    sys.path.insert(0, str(ROOT / "tests"))
    import bm25s  # noqa: F401  # everything heavy that the forked processes would import again and again
    import pytest  # noqa: F401
    import safetensors.torch  # noqa: F401
    import tokenizers  # noqa: F401
    import torch  # noqa: F401
    import transformers.models.bert.modeling_bert  # noqa: F401

    waiting = sorted(faults, key=lambda fault: fault.id)  # rooms mixed
    running: dict[int, tuple[Fault, float, Path]] = {}
    done = 0
    while waiting or running:
        while waiting and len(running) < jobs:
            fault = waiting.pop(0)
            folder = WORK / "trees" / f"{fault.id}-{os.getpid()}"
            tests = tests_of(fault)
            pid = os.fork()
            if pid == 0:
                _child(fault, folder, tests)
            running[pid] = (fault, time.monotonic(), folder)
        time.sleep(0.05)
        for pid, (fault, started, folder) in list(running.items()):
            finished, status = os.waitpid(pid, os.WNOHANG)
            late = time.monotonic() - started > SECONDS
            if not finished and late:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            if finished or late:
                code = -1 if late else os.waitstatus_to_exitcode(status)
                del running[pid]
                done += 1
                outcome = "survived" if code in (0, 5) else "caught" if code != 99 else "does not compile"
                record = {"outcome": outcome, "code": code, "seconds": round(time.monotonic() - started, 1)}
                log = folder / "log"
                text = log.read_text("utf-8", "replace") if log.exists() else ""
                first = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
                record["by"] = first[1] if first else ""
                if code in (3, 4) or (code == 1 and not first):
                    raise SystemExit(f"the tests could not be run for {fault.id}: {text[-2000:]}")
                if results:
                    _append(results, fault.id, record)
                shutil.rmtree(folder, ignore_errors=True)
                change = f"{fault.operator}: {fault.old[:50]!r} -> {fault.new[:50]!r}"
                shown = f"{fault.path}:{fault.line} {fault.where}: {change}"
                by = f" by {record['by']}" if not results else ""
                print(f"[{done}/{done + len(waiting) + len(running)}] {outcome:8} {fault.id} {shown}{by}", flush=True)


def _append(results: Path, name: str, record: dict[str, object]) -> None:
    with results.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"id": name, **record}) + "\n")


def _child(fault: Fault, folder: Path, tests: list[str]) -> None:
    os.setsid()
    folder.mkdir(parents=True)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    source = folder / "src" / "polyrank"
    extra: list[str] = []
    if fault.path.endswith((".c", ".h")):
        if not _compiled(fault, folder):
            os._exit(99)
        sys.path.insert(0, str(folder))
        paths = [str(folder)]
        os.environ["POLYRANK_KERNELS_SOURCES"] = str(
            folder / "build" / "polyrank_kernels"
        )  # what tests build for themselves
    else:
        _linked(PACKAGE, source, fault.path)
        (source / fault.path).write_text(fault.applied((PACKAGE / fault.path).read_text("utf-8")), "utf-8")
        sys.path.insert(0, str(folder / "src"))
        paths = [str(folder / "src")]
        if ">>>" in (PACKAGE / fault.path).read_text("utf-8"):
            extra = [str(source / fault.path)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    temporary = folder / "tmp"
    temporary.mkdir()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    os.environ.update(
        threads,
        PYTHONPATH=os.pathsep.join(paths),
        PYTHONDONTWRITEBYTECODE="1",
        TMPDIR=str(temporary),
        POLYRANK_MUTANT="1",
    )
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    import tempfile

    import pytest
    import torch

    tempfile.tempdir = None
    torch.set_num_threads(1)
    random.seed(0)
    arguments = [
        "-o",
        "addopts=",
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={ROOT}",
        "-x",
        "-q",
        "--tb=line",
        "-rfE",
    ]
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cov", "--hypothesis-seed=0"]
    plugins += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # for what was imported before the fork
    base = [f"--basetemp={temporary / 'pytest'}", "--doctest-modules"]
    code = 0
    for part in (extra, tests):  # doctests first: another file's import must not come from elsewhere
        if part and not code:
            code = int(pytest.main([*arguments, *plugins, *base, *part]))
            code = 0 if code == 5 else code
    sys.stdout.flush()
    os._exit(code)


def _linked(original: Path, copy: Path, changed: str) -> None:
    """The package as links to its files, compiled ones too, without what is to be changed."""
    stem = Path(changed).stem
    for folder, _, files in os.walk(original):
        here = copy / Path(folder).relative_to(original)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            path = Path(folder, name)
            inside = path.relative_to(original)
            own = inside.parent == Path(changed).parent / "__pycache__" and name.startswith(f"{stem}.")
            if inside.as_posix() != changed and not own:
                (here / name).symlink_to(path)


def _compiled(fault: Fault, folder: Path) -> bool:
    """The compiled loops with the fault, as a package in ``folder``."""
    original = ROOT / "kernels"
    shutil.copytree(original, folder / "build", ignore=shutil.ignore_patterns("build", "*.so", "*.egg-info"))
    changed = folder / "build" / "polyrank_kernels" / fault.path
    changed.write_text(fault.applied(changed.read_text("utf-8")), "utf-8")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    if subprocess.run(command, cwd=folder / "build", check=False).returncode:
        return False
    shutil.copytree(folder / "build" / "polyrank_kernels", folder / "polyrank_kernels")
    return True


# --- what was seen ----------------------------------------------------------------------------------------------------


def read_seen(results: Path) -> dict[str, dict[str, object]]:
    if not results.exists():
        return {}
    records = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    return {record.pop("id"): record for record in records}


def read_equivalent() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(EQUIVALENT.glob("*.toml")):
        found |= tomllib.loads(path.read_text("utf-8"))
    return found


def table(faults: list[Fault], seen: dict[str, dict[str, object]]) -> None:
    equivalent = read_equivalent()
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    survived: list[Fault] = []
    harmless: list[Fault] = []
    for fault in faults:
        outcome = str(seen.get(fault.id, {}).get("outcome", "not tried"))
        if outcome == "survived" and fault.id in equivalent:
            outcome = "equivalent"
            harmless.append(fault)
        elif outcome == "survived":
            survived.append(fault)
        rows[fault.room][outcome] += 1
        rows["all"][outcome] += 1
    columns = ["caught", "survived", "equivalent"]
    others = [name for name in ("not tried", "does not compile") if rows["all"][name]]
    lines = ["# Faults put in one at a time", "", "Written by `python runs/mutants.py table`.", ""]
    lines += ["| room | faults | " + " | ".join([*columns, *others]) + " | caught of those that matter |"]
    lines += ["|---" * (len(columns) + len(others) + 3) + "|"]
    for room, counts in rows.items():
        if room == "all":
            continue
        lines.append(_row(room, counts, [*columns, *others]))
    lines.append(_row("**all**", rows["all"], [*columns, *others]))
    lines += ["", "## Survived", ""]
    lines += [
        f"- `{f.path}` {f.where}: {f.operator}: `{_short(f.old)}` -> `{_short(f.new)}` ({f.id})" for f in survived
    ] or ["None."]
    lines += ["", "## Equivalent: nobody could see the difference", ""]
    lines += [
        f"- `{f.path}` {f.where}: {f.operator}: `{_short(f.old)}` -> `{_short(f.new)}` ({f.id}): {equivalent[f.id]}"
        for f in harmless
    ]
    lines += ["", "## Caught", "", "| where | operator | old | new | by |", "|---|---|---|---|---|"]
    for fault in faults:
        record = seen.get(fault.id, {})
        if record.get("outcome") == "caught":
            by = str(record.get("by") or ("a test that hangs" if record.get("code") == -1 else "")).partition("::")
            cells = [
                f"{fault.path} {fault.where}",
                fault.operator,
                f"`{_short(fault.old)}`",
                f"`{_short(fault.new)}`",
                by[2] or by[0],
            ]
            lines.append("| " + " | ".join(cell.replace("|", "\\|").rpartition("/src/")[2] for cell in cells) + " |")
    TABLE.write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines[: 6 + len(rows)]))


def _row(name: str, counts: Counter[str], columns: list[str]) -> str:
    matter = counts["caught"] + counts["survived"]
    share = f"{100 * counts['caught'] / matter:.1f}%" if matter else ""
    return f"| {name} | {sum(counts.values())} | " + " | ".join(str(counts[c]) for c in columns) + f" | {share} |"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cover", "list", "run", "again", "one", "table"])
    parser.add_argument("--room", action="append", default=[], choices=list(ROOMS))
    parser.add_argument("--id", action="append", default=[], help="only these faults, tried anew")
    parser.add_argument("--tests", nargs="*", default=[], help="files or names of tests to run first, for every fault")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    results = SEEN
    if options.what == "cover":
        return cover()
    faults = all_faults(options.room, drawn=options.what != "one")
    if options.id:
        faults = [fault for fault in faults if fault.id in options.id]
    seen = read_seen(results)
    if options.what == "list":
        for fault in faults:
            shown = {key: value for key, value in asdict(fault).items() if key not in ("start", "end")}
            print(json.dumps({**shown, **seen.get(fault.id, {})}))
    elif options.what == "table":
        table(faults, seen)
    elif options.what == "one":
        run([fault for fault in faults if fault.id in options.id], options.jobs, lambda _: options.tests, None)
    else:
        again = options.what == "again" or options.id
        equivalent = read_equivalent()
        if again:
            kept = {fault.id for fault in faults if options.id or seen.get(fault.id, {}).get("outcome") != "caught"}
            faults = [fault for fault in faults if fault.id in kept and (options.id or fault.id not in equivalent)]
            seen = {name: record for name, record in seen.items() if name not in kept}
        coverage, more = Coverage(), options.tests

        def tests_of(fault: Fault) -> list[str]:
            return [*more, *(test for test in coverage.tests(fault) if test not in more)]

        run([fault for fault in faults if fault.id not in seen], options.jobs, tests_of, results)
    return None


if __name__ == "__main__":
    main()
