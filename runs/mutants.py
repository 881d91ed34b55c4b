"""Injects faults into the code, one at a time, and records which of them the tests catch.

    python runs/mutants.py cover [--tests FILE ...]    record which test runs which line; default: changed test files
    python runs/mutants.py run [--package search ...]  try the faults of these packages; a stopped run resumes
    python runs/mutants.py again                       try the faults that survived again
    python runs/mutants.py one --id ID --tests ...     try a fault on these tests only; writes nothing
    python runs/mutants.py table                       write runs/results/mutants.md from the results

A fault is one small change by an operator: an inverted comparison, swapped arguments, a dropped statement and so on.
Each fault runs in its own process, forked from one that has torch imported, on a copy of the package in which one file
differs. The tests that run the changed line decide, those of its package first. A test that catches a fault must pass
without it under the same conditions; otherwise it is not used. Longer files get more faults, drawn by a hash of each,
so that faults move along when code moves. runs/equivalent/PACKAGE.toml lists the faults that change no observable
behaviour, with the reason. ``table`` deletes results of faults whose code no longer exists.

Needs the packages of ``dev``, a compiler for the faults in C, and Linux.
"""

import argparse
import ctypes
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
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from covered import Coverage, measure

from faults import PACKAGE, ROOT, Fault, all_faults, package_of

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
            spent += self.setup(file)
            for test in sorted(by_file[file], key=lambda test: self.coverage.seconds.get(test, 0.3)):
                if len(chosen) > len(REFERENCES) and spent > self.budget:
                    break
                spent += self.coverage.seconds.get(test, 0.3)
                chosen.append(test)
        chosen = chosen if by_file else files
        first = [test for test in (*self.first, *self.noticed.get(fault.id, ())) if test not in self.unfit]
        return [*first, *(test for test in chosen if test not in first)]


# --- running ----------------------------------------------------------------------------------------------------------


def run(faults: list[Fault], jobs: int, tests: Tests, results: Path | None, only: bool = False) -> None:
    """Try each fault in its own process.

    Args:
        faults: the faults to try.
        jobs: number of parallel processes.
        tests: selects the tests of each fault.
        results: the file to append to; None: write nothing.
        only: use only ``tests.first``.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    import fastapi.openapi.utils  # noqa: F401  # slow imports, once for all forked processes
    import httpx  # noqa: F401
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import rich.progress  # noqa: F401
    import safetensors.torch  # noqa: F401
    import tokenizers  # noqa: F401
    import torch  # noqa: F401
    import transformers.models.auto.modeling_auto
    import transformers.models.bert.modeling_bert  # noqa: F401
    import typer._adapters
    import typer.testing  # noqa: F401
    import uvicorn  # noqa: F401

    _adopt()
    waiting = [(fault, "") for fault in sorted(faults, key=lambda fault: fault.id)]  # packages mixed
    running: dict[int, tuple[Fault, str, float, Path]] = {}
    held: dict[str, dict[str, object]] = {}  # results, until the catching test has run without the fault
    fit: set[str] = set()
    done = 0
    while waiting or running:
        while waiting and len(running) < jobs:
            fault, by = waiting.pop(0)
            folder = WORK / "trees" / f"{fault.id}-{os.getpid()}"
            _check_unchanged(fault)
            given = [test for test in tests.first if test not in tests.unfit]
            chosen = [by] if by else given if only else tests.of(fault)
            pid = os.fork()
            if pid == 0:
                _child(replace(fault, new=fault.old) if by else fault, folder, chosen, tests.unfit)
            running[pid] = (fault, by, time.monotonic(), folder)
        time.sleep(0.05)
        for pid, (fault, by, started, folder) in list(running.items()):
            finished, status = os.waitpid(pid, os.WNOHANG)
            late = time.monotonic() - started > SECONDS
            if not finished and late:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            if not finished and not late:
                continue
            code = -1 if late else os.waitstatus_to_exitcode(status)
            del running[pid]
            _end_orphans(set(running))
            log = folder / "log"
            text = log.read_text("utf-8", "replace") if log.exists() else ""
            for written in (folder, _temporary(folder)):
                shutil.rmtree(written, ignore_errors=True)
            if by and code:  # the test fails without the fault, too
                tests.unfit.add(by)
                print(f"not used, since it fails without a fault: {by}", flush=True)
                waiting.insert(0, (fault, ""))
                continue
            if by:
                fit.add(by)
                record = held.pop(fault.id)
            else:
                outcome = "survived" if code in (0, 5) else "caught" if code != 99 else "does not compile"
                record = {"outcome": outcome, "code": code, "seconds": round(time.monotonic() - started, 1)}
                # lines of a log may begin with ERROR, too
                first = re.search(r"^(?:FAILED|ERROR) (\S+\.py(?:::.+?)?)(?: - .*)?$", text, re.M)
                record["by"] = first[1] if first else ""
                if code == 3 and "PluginImportFailure: shared_fixtures" in text:  # the package cannot be imported
                    record["by"] = "runs/mutants.py"
                elif code in (3, 4) or (code == 1 and not first):
                    raise SystemExit(f"the tests could not be run for {fault.id}: {text[-2000:]}")
                noticed = str(record["by"])
                if noticed.startswith("tests/") and noticed not in fit:
                    held[fault.id] = record
                    waiting.insert(0, (fault, noticed))
                    continue
            done += 1
            if results:
                _append(results, fault.id, record)
            change = f"{fault.operator}: {fault.old[:50]!r} -> {fault.new[:50]!r}"
            shown = f"{fault.path}:{fault.line} {fault.where}: {change}"
            ending = f"{record['seconds']} s by {record['by']}" if record["outcome"] == "caught" else ""
            print(f"[{done}/{len(faults)}] {record['outcome']:8} {fault.id} {shown} {ending}", flush=True)


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


def _append(results: Path, name: str, record: dict[str, object]) -> None:
    with results.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"id": name, **record}) + "\n")


def _child(fault: Fault, folder: Path, tests: list[str], unfit: set[str]) -> None:
    os.setsid()
    _adopt()  # so that each fault's orphans stay apart
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
        os.environ["POLYRANK_KERNELS_SOURCES"] = str(folder / "build" / "polyrank_kernels")  # for tests that build it
    else:
        _linked(PACKAGE, source, fault.path)
        (source / fault.path).write_text(fault.applied((PACKAGE / fault.path).read_text("utf-8")), "utf-8")
        sys.path.insert(0, str(folder / "src"))
        paths = [str(folder / "src")]
        if ">>>" in (PACKAGE / fault.path).read_text("utf-8"):
            extra = [str(source / fault.path)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    temporary = _temporary(folder)
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
        *(f"--deselect={test}" for test in sorted(unfit)),
    ]
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cov", "--hypothesis-seed=0"]
    plugins += ["-m", "not deep and not scripts"]  # the tests of the README's command
    plugins += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # modules imported before the fork
    base = [f"--basetemp={temporary / 'pytest'}", "--doctest-modules"]
    code = 0
    for part in (extra, tests):  # doctests first, so that they import the changed copy
        if part and not code:
            code = int(pytest.main([*arguments, *plugins, *base, *part]))
            code = 0 if code == 5 else code
    sys.stdout.flush()
    os._exit(code)


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
    parser.add_argument("what", choices=["cover", "list", "run", "again", "one", "table"])
    packages = sorted({"kernels", *map(package_of, PACKAGE.rglob("*.py"))})
    parser.add_argument("--package", action="append", default=[], choices=packages)
    parser.add_argument("--id", action="append", default=[], help="try only these faults, again")
    parser.add_argument("--tests", nargs="*", default=[], help="cover: test files; run: tests to run first")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured seconds of the tests for one fault")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    if options.what == "cover":
        return measure(options.tests)
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
