"""Records which tests run which line of the package, in their own process or in one that they start.

``measure`` runs the test files under coverage, in a few processes. Commands, servers and workers run in processes of
their own: a ``sitecustomize.py`` on their path makes each of them record which lines it ran, and when it started and
ended. A process's lines count for every test that ran meanwhile, since the tests of a file may share a server.

This module does not know about faults.
"""

import ast
import atexit
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "polyrank"
COVERED = ROOT / "runs" / "work" / "covered"
FOLDER = "POLYRANK_COVERED"  # the variable that names a test file's folder to the processes that its tests start
# this test also interrupts the coverage code, which then waits for its own lock
LEFT_OUT = "tests/index/test_store_faults.py::test_a_writer_interrupted_at_any_moment_continues"


def measure(jobs: int) -> None:
    """Measure all test files, those of each job one after another in one process."""
    shutil.rmtree(COVERED, ignore_errors=True)
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    started = []
    for job in range(jobs):
        folder = COVERED / str(job)
        (folder / "site").mkdir(parents=True)
        (folder / "site" / "sitecustomize.py").write_text(
            f"import sys\nsys.path.append({str(ROOT / 'runs')!r})\nimport covered\ncovered.follow()\n", "utf-8"
        )
        environment = {**os.environ, "COVERAGE_FILE": str(folder / "coverage"), "COVERAGE_CORE": "ctrace"}
        environment |= {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "runs")])}
        plugins = ["-p", "covered", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
        measured = ["--cov=polyrank", "--cov-context=test", "--cov-report=", "--deselect", LEFT_OUT]
        measured += ["-m", "not deep"]  # the tests of the README's command
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "--no-header", *plugins, *measured]
        started.append(subprocess.Popen([*command, *files[job::jobs]], cwd=ROOT, env=environment))
    for process in started:
        process.wait()


# --- in the process of the tests, as a plugin of pytest ---------------------------------------------------------------

_started: dict[str, float] = {}
_times: dict[str, tuple[float, float]] = {}


def pytest_configure() -> None:
    """Make processes that start from now on record their lines."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), str(Path(os.environ[FOLDER]) / "site")])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Record when a test begins, fixtures included."""
    _started[nodeid] = time.time()


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Record when a test has ended."""
    _times[nodeid] = (_started[nodeid], time.time())


def pytest_sessionfinish() -> None:
    """Save when each test ran."""
    Path(os.environ[FOLDER], "times.json").write_text(json.dumps(_times), "utf-8")


# --- in processes that tests start ------------------------------------------------------------------------------------


def follow() -> None:
    """Record which lines this process and its forks run: every second, since some are killed, and at the end."""
    import coverage

    folder, began = Path(os.environ[FOLDER]), [time.time()]
    measured = coverage.Coverage(data_file=None, include=[f"{PACKAGE}/*"], config_file=False)
    measured.set_option("run:disable_warnings", ["no-data-collected"])  # some tests require an empty stderr
    leave, writing = os._exit, threading.Lock()

    def write() -> None:
        with writing:
            data = measured.get_data()
            lines = {Path(path).relative_to(PACKAGE).as_posix(): data.lines(path) for path in data.measured_files()}
            record = {"began": began[0], "ended": time.time(), "lines": lines}
            whole = folder / f"process-{os.getpid()}-{began[0]}.json"
            part = whole.with_suffix(".part")
            part.write_text(json.dumps(record), "utf-8")
            part.replace(whole)

    def write_on() -> None:
        while True:
            time.sleep(1)
            write()

    def write_and_leave(code: int) -> None:  # as multiprocessing's processes do
        write()
        leave(code)

    def begin() -> None:
        threading.Thread(target=write_on, daemon=True).start()

    def begin_again() -> None:
        writing.release()
        measured.erase()
        began[0] = time.time()
        begin()

    measured.start()
    atexit.register(write)
    os._exit = write_and_leave  # type: ignore[assignment]
    # a fork while the other thread writes would leave coverage's locks held for ever in the child
    os.register_at_fork(before=writing.acquire, after_in_parent=writing.release, after_in_child=begin_again)
    begin()


# --- what was seen ----------------------------------------------------------------------------------------------------


class Coverage:
    """Which tests run a line, and how long each takes."""

    def __init__(self) -> None:
        import coverage

        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for folder in sorted(path.parent for path in COVERED.glob("*/times.json")):
            times = json.loads((folder / "times.json").read_text("utf-8"))
            self.seconds |= {test: end - start for test, (start, end) in times.items()}
            data = coverage.CoverageData(str(folder / "coverage"))
            data.read()
            for path in data.measured_files():
                known = self.lines[path.rpartition("/src/polyrank/")[2]]
                for line, contexts in data.contexts_by_lineno(path).items():
                    known[line] |= {context.rpartition("|")[0] for context in contexts if "|" in context}
            for process in folder.glob("process-*.json"):
                self._add_process(json.loads(process.read_text("utf-8")), times)

    def _add_process(self, record: dict[str, Any], times: dict[str, tuple[float, float]]) -> None:
        tests = {name for name, (start, end) in times.items() if start < record["ended"] and end > record["began"]}
        for path, lines in record["lines"].items():
            for line in _in_functions(path).intersection(lines):
                self.lines[path][line] |= tests

    def tests(self, path: str, line: int) -> tuple[set[str], bool]:
        """Tests that run the statement at a line; where it runs at import, those of what follows, and True."""
        known = self.lines.get(path, {})
        start = next((n for n in range(line, max(line - 8, 0), -1) if n in known), line)
        if tests := known.get(start):
            return set(tests), False
        # such as a default: the next line that tests run is of its function
        after = next((known[n] for n in range(line, line + 40) if known.get(n)), set())
        return set(after) or set().union(*known.values()), True


@cache
def _in_functions(path: str) -> set[int]:
    """Lines of a file that run when a function is called, and not at import."""
    if not (PACKAGE / path).exists():
        return set()
    tree = ast.parse((PACKAGE / path).read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {line for node in functions for line in range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)}
