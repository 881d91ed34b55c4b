"""Injects faults into the code, one at a time, and records which of them the tests catch.

    python runs/mutants.py cover [--jobs 2]            record which test runs which line
    python runs/mutants.py run [--package search ...]  try the faults of these packages; a stopped run resumes
    python runs/mutants.py again                       try the faults that survived again
    python runs/mutants.py one --id ID --tests ...     try a fault on these tests only; writes nothing
    python runs/mutants.py hand --faults FILE          try faults of JSON lines (path, old, new); writes nothing
    python runs/mutants.py table                       write runs/results/mutants.md from the results

A fault is one small change by an operator: an inverted comparison, swapped arguments, a dropped statement and so on.
One process collects all tests, and each fault runs in a fork of it, whose functions get the code with the fault; the
processes that its tests start read a copy of the package. For a fault in code that runs at import, the fork imports
everything again. The tests that run the changed line decide, those of its package first. A test that catches a fault
must pass without it under the same conditions; otherwise it is not used.
Longer files get more faults, drawn by a hash of each, so that faults move along when code moves.
runs/equivalent/PACKAGE.toml lists the faults that change no observable behaviour, with the reason. ``table`` deletes
results of faults whose code no longer exists.

Needs the packages of ``dev``, a compiler for the faults in C, and Linux.
"""

import argparse
import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import pkgutil
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import pytest
from covered import Coverage, measure

from faults import PACKAGE, ROOT, Fault, all_faults, by_hand, package_of

WORK = ROOT / "runs" / "work" / "mutants"
EQUIVALENT = ROOT / "runs" / "equivalent"
SEEN = ROOT / "runs" / "results" / "mutants.jsonl"
TABLE = ROOT / "runs" / "results" / "mutants.md"

# it checks the defaults of options and recipe keys
REFERENCES = ("tests/project/test_docs.py::test_references_are_current",)
CPU_SECONDS, SECONDS = 120, 600  # for one fault's tests; a fault that takes longer counts as caught


# --- selecting tests --------------------------------------------------------------------------------------------------


def tests_of(package: str) -> list[str]:
    """The test files of a package, for lines that no test ran under ``covered.py``."""
    folder = ROOT / "tests" / ("search" if package == "kernels" else package.partition("/")[0])
    return [str(path.relative_to(ROOT)) for path in sorted(folder.glob("test_*.py"))]


class Tests:
    """The tests that decide about a fault: the one that noticed it before, then those of its package, then others."""

    def __init__(self, first: list[str], budget: float = 60.0, noticed: dict[str, list[str]] | None = None) -> None:
        self.coverage, self.first, self.budget, self.noticed = Coverage(), first, budget, noticed or {}
        self.texts: dict[str, str] = {}
        self.setups: dict[str, float] = {}
        self.unfit: set[str] = set()  # tests that also fail without the fault

    def exists(self, test: str) -> bool:
        """Whether a test of that name still exists and passes without a fault."""
        file, _, name = test.partition("::")
        if file not in self.texts:
            self.texts[file] = (ROOT / file).read_text("utf-8") if (ROOT / file).exists() else ""
        return test not in self.unfit and f"def {name.partition('[')[0].rpartition('::')[2]}(" in self.texts[file]

    def setup(self, file: str) -> float:
        """Seconds of a file's slowest test, which is mostly the one that made its fixtures."""
        if file not in self.setups:
            own = [seconds for test, seconds in self.coverage.seconds.items() if test.startswith(f"{file}::")]
            self.setups[file] = max(own, default=0.3)
        return self.setups[file]

    def of(self, fault: Fault) -> list[str]:
        """Node ids for a fault; all test files of its package if no test ran the line."""
        files = tests_of(fault.package)
        found, at_import = self.coverage.tests(fault.path, fault.line)
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in filter(self.exists, found):
            by_file[test.partition("::")[0]].append(test)
        # the package's own test files first, since these should catch it, then those whose fixtures start fast
        order = sorted(by_file, key=lambda file: (files.index(file) if file in files else len(files), self.setup(file)))
        declares = at_import or fault.package in ("cli", "config")  # whose modules tests import late
        chosen, spent = (list(REFERENCES) if declares else []), 0.0
        for file in order:
            for test in sorted(by_file[file], key=lambda test: self.coverage.seconds.get(test, 0.3)):
                if len(chosen) > len(REFERENCES) and spent > self.budget:
                    break
                spent += self.coverage.seconds.get(test, 0.3)
                chosen.append(test)
        chosen = chosen if by_file else files
        first = [test for test in (*self.first, *self.noticed.get(fault.id, ())) if test not in self.unfit]
        return [*first, *(test for test in chosen if test not in first)]


# --- running ----------------------------------------------------------------------------------------------------------


class Failures:
    """A plugin that notes the first test that fails, or the first file that cannot be imported."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.first = folder, ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that may end the process."""
        (self.folder / "test").write_text(nodeid, "utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Of setup, call and teardown."""
        if report.failed and not self.first:
            self.first = report.nodeid
            (self.folder / "test").write_text(self.first, "utf-8")
            print(report.longreprtext[-3000:], flush=True)

    pytest_collectreport = pytest_runtest_logreport


class Live:
    """The functions of the package that this process has imported, by their code."""

    def __init__(self) -> None:
        for found in pkgutil.walk_packages([str(PACKAGE)], "polyrank."):
            if not found.name.endswith("__main__"):
                with suppress(ImportError):
                    importlib.import_module(found.name)
        self.functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        self.caches: list[Any] = []
        gc.unfreeze()  # ``gc.get_objects`` would leave out what the tests' settings froze
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename.startswith(str(PACKAGE)):
                self.functions[self.key(one.__code__)].append(one)
            elif type(one) is functools._lru_cache_wrapper and str(one.__module__).startswith("polyrank"):
                self.caches.append(one)

    @staticmethod
    def key(code: CodeType) -> tuple[str, str, int]:
        return code.co_filename, code.co_qualname, code.co_firstlineno

    def changes(self, fault: Fault) -> list[tuple[FunctionType, CodeType]]:
        """The functions that a fault changes, with their new code; empty if it changes more than that."""
        if fault.package == "kernels":
            return []
        path = PACKAGE / fault.path
        text = path.read_text("utf-8")
        pairs = _changed(compile(text, str(path), "exec"), compile(fault.applied(text), str(path), "exec")) or []
        found = [(one, new) for old, new in pairs for one in self.functions[self.key(old)]]
        is_whole = all(self.functions[self.key(old)] for old, _ in pairs)
        return found if is_whole and all(one.__code__.co_freevars == new.co_freevars for one, new in found) else []

    def swap(self, changes: list[tuple[FunctionType, CodeType]]) -> None:
        """Give functions their new code; what they remembered is forgotten."""
        for function, code in changes:
            function.__code__ = code
        for cache in self.caches:
            cache.cache_clear()


def _changed(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """The outermost functions that differ, before and after; None if code differs that runs at import."""
    if old == new:
        return []
    if old.co_flags & inspect.CO_OPTIMIZED:  # a function
        return [(old, new)]
    parts = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    rest = [
        (code.co_code, code.co_names, [one for one in code.co_consts if not isinstance(one, CodeType)])
        for code in (old, new)
    ]
    if rest[0] != rest[1] or len(parts[0]) != len(parts[1]):
        return None
    found: list[tuple[CodeType, CodeType]] = []
    for before, after in zip(*parts, strict=True):
        inner = _changed(before, after)
        if inner is None:
            return None
        found += inner
    return found


class Trials:
    """A plugin that tries faults in place of running the collected tests, each in a fork of the collecting process."""

    def __init__(self, faults: list[Fault], jobs: int, tests: Tests, results: Path | None, only: bool) -> None:
        self.waiting = [(fault, "") for fault in sorted(faults, key=lambda fault: fault.id)]  # packages mixed
        self.jobs, self.tests, self.results, self.only = jobs, tests, results, only
        self.n_faults, self.done = len(faults), 0
        self.held: dict[str, dict[str, object]] = {}  # results, until the catching test has run without the fault
        self.fit: set[tuple[str, bool]] = set()  # tests that pass without a fault, and whether by a second import
        self.items: dict[str, pytest.Item] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork a process for each fault; pytest does nothing else then."""
        self.items = {item.nodeid: item for item in session.items}
        live = Live()
        running: dict[int, tuple[Fault, str, bool, float, Path]] = {}
        _adopt()
        while self.waiting or running:
            while self.waiting and len(running) < self.jobs:
                fault, by = self.waiting.pop(0)
                folder = WORK / "trees" / f"{fault.id}-{os.getpid()}"
                _check_unchanged(fault)
                given = [test for test in self.tests.first if test not in self.tests.unfit]
                chosen = [by] if by else given if self.only else [*self.doctests(fault), *self.tests.of(fault)]
                changes = live.changes(fault)
                pid = os.fork()
                if pid == 0:
                    if not by:
                        live.swap(changes)
                    self.child(replace(fault, new=fault.old) if by else fault, folder, chosen, reimport=not changes)
                running[pid] = (fault, by, not changes, time.monotonic(), folder)
            time.sleep(0.02)
            for pid, (fault, by, reimport, started, folder) in list(running.items()):
                finished, status = os.waitpid(pid, os.WNOHANG)
                late = time.monotonic() - started > SECONDS
                if not finished and late:
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                if finished or late:
                    del running[pid]
                    _end_orphans(set(running))
                    code = -1 if late else os.waitstatus_to_exitcode(status)
                    self.finish(fault, by, reimport, code, time.monotonic() - started, folder)
        return True

    def doctests(self, fault: Fault) -> list[str]:
        place = f"src/polyrank/{fault.path}::"
        return [test for test in self.items if test.startswith(place) and test not in self.tests.unfit]

    def finish(self, fault: Fault, by: str, reimport: bool, code: int, seconds: float, folder: Path) -> None:
        """Record the outcome of a fault whose process has ended; try it again if its test is not fit to decide."""
        log, last = folder / "log", folder / "test"
        text = log.read_text("utf-8", "replace") if log.exists() else ""
        noticed = last.read_text("utf-8") if last.exists() else ""
        for written in (folder, _temporary(folder)):
            shutil.rmtree(written, ignore_errors=True)
        if by and code:  # the test fails without the fault, too
            self.tests.unfit.add(by)
            print(f"not used, since it fails without a fault: {by}", flush=True)
            self.waiting.insert(0, (fault, ""))
            return
        if by:
            self.fit.add((by, reimport))
            record = self.held.pop(fault.id)
        else:
            if "PluginImportFailure: shared_fixtures" in text:  # the package cannot be imported
                noticed = noticed or "runs/mutants.py"
            if code not in (0, 99) and not noticed:
                raise SystemExit(f"the tests could not be run for {fault.id}: {text[-2000:]}")
            outcome = "survived" if code == 0 else "caught" if code != 99 else "does not compile"
            record = {"outcome": outcome, "code": code, "seconds": round(seconds, 1), "by": noticed if code else ""}
            if outcome == "caught" and noticed in self.items and (noticed, reimport) not in self.fit:
                self.held[fault.id] = record
                self.waiting.insert(0, (fault, noticed))
                return
        self.done += 1
        if self.results:
            with self.results.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"id": fault.id, **record}) + "\n")
        change = f"{fault.operator}: {fault.old[:50]!r} -> {fault.new[:50]!r}"
        shown = f"{fault.path}:{fault.line} {fault.where}: {change}"
        ending = f"by {record['by']}" if record["outcome"] == "caught" else ""
        head = f"[{self.done}/{self.n_faults}] {record['outcome']:8} {record['seconds']} s"
        print(f"{head} {fault.id} {shown} {ending}", flush=True)

    def child(self, fault: Fault, folder: Path, tests: list[str], *, reimport: bool) -> NoReturn:
        """Run the tests of a fault until one fails, in this process, which then ends.

        Args:
            fault: as text it is in the copy of the package.
            folder: of what is written meanwhile.
            tests: to run.
            reimport: import everything again, from the copy.
        """
        os.setsid()
        _adopt()  # so that each fault's orphans stay apart
        folder.mkdir(parents=True)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _prepare(fault, folder)
        code = 1
        try:
            code = _run_reimported(tests, folder) if reimport else self.run(tests, folder)
            if not code:
                (folder / "test").unlink(missing_ok=True)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def run(self, tests: list[str], folder: Path) -> int:
        """1 if one of these tests fails, whose name then is in the file ``test``."""
        items = [self.items[test] for test in tests if test in self.items]
        if not items:
            return 0
        failures = Failures(folder)
        config = items[0].config
        config.pluginmanager.register(failures)
        paths: Any = config._tmp_path_factory  # type: ignore[attr-defined]  # of the collecting process
        paths._given_basetemp, paths._basetemp = _temporary(folder) / "pytest", None
        for item, following in zip(items, [*items[1:], None], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failures.first:
                return 1
        return 0


def _prepare(fault: Fault, folder: Path) -> None:
    """The environment of a fault's tests, with a copy of the package for the processes that they start."""
    source = folder / "src" / "polyrank"
    if fault.package == "kernels":
        if not _compiled(fault, folder):
            os._exit(99)
        paths = [str(folder)]
        os.environ["POLYRANK_KERNELS_SOURCES"] = str(folder / "build" / "polyrank_kernels")  # for tests that build it
    else:
        _linked(PACKAGE, source, fault.path)
        (source / fault.path).write_text(fault.applied((PACKAGE / fault.path).read_text("utf-8")), "utf-8")
        paths = [str(folder / "src")]
    temporary = _temporary(folder)
    temporary.mkdir()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    os.environ.update(
        dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        PYTHONPATH=os.pathsep.join([*paths, *OTHERS]),
        PYTHONDONTWRITEBYTECODE="1",
        TMPDIR=str(temporary),
        POLYRANK_MUTANT="1",
    )
    tempfile.tempdir = None
    random.seed(0)


def _run_reimported(tests: list[str], folder: Path) -> int:
    """Import the package with the fault, and run the tests by another pytest in this process."""
    for name, module in [*sys.modules.items()]:
        is_own = str(getattr(module, "__file__", "")).startswith(str(ROOT)) or name.startswith("polyrank_kernels")
        if is_own and name not in ("__main__", "mutants", "faults", "covered"):
            del sys.modules[name]
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    importlib.invalidate_caches()
    arguments = [*ARGUMENTS, "-x", f"--basetemp={_temporary(folder) / 'reimport'}"]
    here = [test for test in tests if test.startswith("src/polyrank/")]
    doctests = sorted({str(folder / test.partition("::")[0]) for test in here})
    code = 0
    for part in (doctests, [test for test in tests if test not in here]):  # doctests first import the changed copy
        failures = Failures(folder)
        if part and not code:
            code = int(pytest.main([*arguments, *part], plugins=[failures]))
            code = 0 if code == 5 else code
            if failures.first and not failures.first.startswith("tests/"):
                (folder / "test").write_text(failures.first.rpartition("/src/")[2], "utf-8")
    return code


# the tests of the README's command, in this process, without plugins that change their order
ARGUMENTS = [
    "-o", "addopts=", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", "-q", "--tb=short", "-s",
    *(f"-pno:{name}" for name in ("cacheprovider", "randomly", "xdist", "cov", "langsmith_plugin")),
    "--hypothesis-seed=0", "-m", "not deep", "--doctest-modules", "--ignore=src/polyrank/integrations",
    "--ignore=tests/forked", "--ignore-glob=*/conftest.py",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",  # modules that are imported already
]  # fmt: skip
OTHERS = [str(ROOT / name) for name in ("chats", "models", "cluster")]


def run(faults: list[Fault], jobs: int, tests: Tests, results: Path | None, only: bool = False) -> None:
    """Try each fault in its own process.

    Args:
        faults: the faults to try.
        jobs: number of parallel processes.
        tests: selects the tests of each fault.
        results: the file to append to; None: write nothing.
        only: use only ``tests.first``.
    """
    if not faults:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *OTHERS])
    sys.path[:0] = [str(ROOT / "src"), *OTHERS]
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    trials = Trials(faults, jobs, tests, results, only)
    code = pytest.main([*ARGUMENTS, "tests", "src/polyrank"], plugins=[trials])
    if code not in (0, 5):
        raise SystemExit(int(code))


def _temporary(folder: Path) -> Path:
    """The temporary folder of a fault's tests, with a short path: names of sockets may have about 100 characters."""
    return Path("/tmp") / folder.name


def _check_unchanged(fault: Fault) -> None:
    base = ROOT / "kernels" / "polyrank_kernels" if fault.package == "kernels" else PACKAGE
    if (base / fault.path).read_text("utf-8")[fault.start : fault.end] != fault.old:
        raise SystemExit(f"{fault.path} has changed meanwhile; run it again in a checkout that does not change")


def _adopt() -> None:
    """Make orphaned descendants children of this process (prctl's PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _end_orphans(running: set[int]) -> None:
    """End processes that tests have left behind: servers, clusters, workers."""
    for _ in range(20):  # ending an orphan makes its children orphans
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        orphans = {int(pid) for pid in children} - running
        if not orphans:
            return
        for pid in orphans:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _linked(original: Path, copy: Path, changed: str) -> None:
    """Make ``copy`` a tree of links to the package's files, compiled ones too, except the changed file."""
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
    """Build the compiled loops with the fault as a package in ``folder``; False if they do not compile."""
    original = ROOT / "kernels"
    shutil.copytree(original, folder / "build", ignore=shutil.ignore_patterns("build", "*.so", "*.egg-info"))
    changed = folder / "build" / "polyrank_kernels" / fault.path
    changed.write_text(fault.applied(changed.read_text("utf-8")), "utf-8")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    if subprocess.run(command, cwd=folder / "build", check=False).returncode:
        return False
    shutil.copytree(folder / "build" / "polyrank_kernels", folder / "polyrank_kernels")
    return True


# --- results ----------------------------------------------------------------------------------------------------------


def read_seen(results: Path) -> dict[str, dict[str, object]]:
    if not results.exists():
        return {}
    records = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    return {record.pop("id"): record for record in records}


def prune() -> None:
    """Delete results of faults whose code no longer exists, and keep each reason in its package's file."""
    places = {fault.id: fault.package for fault in all_faults([], drawn=False)}
    seen = {name: record for name, record in read_seen(SEEN).items() if name in places}
    SEEN.write_text("".join(json.dumps({"id": name, **record}) + "\n" for name, record in seen.items()), "utf-8")
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in read_equivalent().items():
        if name in places:
            reasons[places[name].replace("/", ".")].append(f"{json.dumps(name)[1:-1]} = {json.dumps(reason)}\n")
    for path in EQUIVALENT.glob("*.toml"):
        path.unlink()
    for package, lines in reasons.items():
        (EQUIVALENT / f"{package}.toml").write_text("".join(lines), "utf-8")


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
        rows[fault.package][outcome] += 1
        rows["all"][outcome] += 1
    columns = ["caught", "survived", "equivalent"]
    others = [name for name in ("not tried", "does not compile") if rows["all"][name]]
    lines = ["# Faults put in one at a time", "", "Written by `python runs/mutants.py table`.", ""]
    lines += ["| package | faults | " + " | ".join([*columns, *others]) + " | caught of all but equivalent ones |"]
    lines += ["|---" * (len(columns) + len(others) + 3) + "|"]
    for package, counts in rows.items():
        if package == "all":
            continue
        lines.append(_row(package, counts, [*columns, *others]))
    lines.append(_row("**all**", rows["all"], [*columns, *others]))
    lines += ["", "## Survived", ""]
    lines += [
        f"- `{f.path}` {f.where}: {f.operator}: `{_short(f.old)}` -> `{_short(f.new)}` ({f.id})" for f in survived
    ] or ["None."]
    lines += ["", "## Equivalent: no observable difference", ""]
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
    matter = sum(counts.values()) - counts["equivalent"]  # what was not tried counts as not caught
    share = f"{100 * counts['caught'] / matter:.1f}%" if matter else ""
    return f"| {name} | {sum(counts.values())} | " + " | ".join(str(counts[c]) for c in columns) + f" | {share} |"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cover", "list", "run", "again", "one", "hand", "table"])
    packages = sorted({"kernels", *map(package_of, PACKAGE.rglob("*.py"))})
    parser.add_argument("--package", action="append", default=[], choices=packages)
    parser.add_argument("--id", action="append", default=[], help="try only these faults, again")
    parser.add_argument("--tests", nargs="*", default=[], help="tests to run first")
    parser.add_argument("--faults", type=Path, help="hand: their file")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured seconds of the tests for one fault")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    if options.what == "cover":
        return measure(options.jobs)
    if options.what == "table":
        prune()
    faults = all_faults(options.package, drawn=options.what != "one")
    if options.id:
        faults = [fault for fault in faults if fault.id in options.id]
    seen = read_seen(SEEN)
    # a doctest ran in a copy, which is gone
    noticed = {name: [str(record["by"])] for name, record in seen.items() if str(record["by"]).startswith("tests/")}
    if options.what == "list":
        for fault in faults:
            shown = {key: value for key, value in asdict(fault).items() if key not in ("start", "end")}
            print(json.dumps({**shown, **seen.get(fault.id, {})}))
    elif options.what == "table":
        table(faults, seen)
    elif options.what == "one":
        run(faults, options.jobs, Tests(options.tests), None, only=True)
    elif options.what == "hand":
        run(by_hand(options.faults), options.jobs, Tests(options.tests, options.seconds), None)
    else:
        if options.what == "again" or options.id:
            equivalent = read_equivalent()
            kept = {fault.id for fault in faults if options.id or seen.get(fault.id, {}).get("outcome") == "survived"}
            faults = [fault for fault in faults if fault.id in kept and (options.id or fault.id not in equivalent)]
            seen = {name: record for name, record in seen.items() if name not in kept}
        tests = Tests(options.tests, options.seconds, noticed)
        run([fault for fault in faults if fault.id not in seen], options.jobs, tests, SEEN)
    return None


if __name__ == "__main__":
    main()
