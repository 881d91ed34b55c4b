"""The C library's setting that spares page faults."""

import ctypes
import platform
import subprocess
import sys

import pytest

from polyrank.devices.memory import keep_freed_memory

ALLOCATE = """
import resource, sys
import numpy as np
from polyrank.devices.memory import keep_freed_memory
match sys.argv[1]:
    case "small" | "all":
        assert keep_freed_memory(all_sizes=sys.argv[1] == "all")
    case "command":
        from polyrank.cli.console import use_processor
        use_processor(None)
    case "server":
        import multiprocessing
        from polyrank.serving.worker import Setup, run_worker
        here, there = multiprocessing.Pipe()
        there.close()
        run_worker(here, Setup({}, "cpu", "torch", None))

def faults(mib):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.ones(mib * 2**18, np.float32) for _ in range(6)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for mib in (8, 40):
    faults(mib)
    print(min(faults(mib) for _ in range(3)))
assert ("torch" in sys.modules) == (sys.argv[1] == "server")
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
@pytest.mark.parametrize("all_sizes", [False, True])
def test_a_setting_that_fails_is_reported(all_sizes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for failing in range(4):
        asked = list[int]()

        class Library:
            def mallopt(self, name: int, value: int, asked: list[int] = asked, failing: int = failing) -> int:
                asked.append(name)
                return int(len(asked) - 1 != failing)

        monkeypatch.setattr(ctypes, "CDLL", lambda name, library=Library: library())
        assert keep_freed_memory(all_sizes=all_sizes) == (failing >= len(asked))


@pytest.mark.deep
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_freed_blocks_are_kept() -> None:
    def faults(setting: str) -> list[int]:
        command = [sys.executable, "-c", ALLOCATE, setting]
        return [
            int(line) for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        ]

    default, every = faults("default"), faults("all")
    assert default[0] > 100
    assert max(every) < 10
    for up_to_32_mib in map(faults, ("small", "command", "server")):
        assert up_to_32_mib[0] < 10
        assert up_to_32_mib[1] > 100
