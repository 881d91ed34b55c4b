"""Crash tests of an index: kills, failing calls, full disks, power loss, flipped bits. Prints a JSON summary.

    python runs/crash.py --kills 1000 --calls 2 --power 2 --losses 2 --flips 1 --all-bits --log-flips 1 --removals 1

The summary must count no lost acknowledged operation, no removed candidate that is back, and no unreadable index.
``--calls``, ``--power`` and ``--losses`` need a C compiler and Linux. You can run the parts in parallel and join their
summaries: ``python runs/crash.py --join a.json b.json``.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from crashes import faults


def main() -> None:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, help="number of kills at random moments")
    parser.add_argument("--calls", type=int, default=0, help="number of workloads; each durable call fails once")
    parser.add_argument("--power", type=int, default=0, help="number of workloads; power is lost after each call")
    parser.add_argument("--losses", type=int, default=0, help="number of workloads; each sync loses its writes")
    parser.add_argument("--flips", type=int, default=0, help="number of indexes; a bit of each byte is flipped")
    parser.add_argument("--log-flips", type=int, default=0, help="as --flips, after a kill, so that the log is in use")
    parser.add_argument("--removals", type=int, default=0, help="as --flips, then a candidate is removed")
    parser.add_argument("--all-bits", action="store_true", help="--flips: every bit, not one of each byte")
    parser.add_argument("--every", type=int, default=1, help="try only every N-th place")
    parser.add_argument("--offset", type=int, default=0, help="--flips: the first of those places")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bare", action="store_true", help="leave out the description of the machine")
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="summaries of earlier runs")
    options = parser.parse_args()
    if options.calls or options.power or options.losses:
        faults.preload()
    parts = {key: part for path in options.join for key, part in json.loads(path.read_text())["parts"].items()}
    parts |= run(options)
    n_violations = sum(part["n_violations"] for part in parts.values())
    print(json.dumps((machine() if not options.bare else {}) | summary(parts, n_violations), indent=2))
    raise SystemExit(n_violations > 0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run each part for each of its seeds."""
    from crashes import cases

    first, every, places = options.seed, options.every, slice(options.offset, None, options.every)
    some = f", 1 place of {every} from {options.offset}" if every > 1 else ""
    kinds = [
        ("kills", options.kills and 1, lambda seed: cases.kills(options.kills, seed)),
        ("calls", options.calls, lambda seed: cases.calls(seed, every)),
        ("power", options.power, lambda seed: cases.power(seed, every)),
        ("losses", options.losses, lambda seed: cases.losses(seed, every)),
        ("flips", options.flips, lambda seed: cases.flips(seed, places, all_bits=options.all_bits)),
        ("log flips", options.log_flips, lambda seed: cases.flips(seed, places, killed=True)),
        ("removals", options.removals, lambda seed: cases.lost_removals(seed, places)),
    ]
    parts: dict[str, Any] = {}
    for name, n, work in kinds:
        for seed in range(first, first + n):
            started = time.monotonic()
            tally = work(seed)
            parts[f"{name}, seed {seed}{some}"] = tally | {"seconds": round(time.monotonic() - started, 1)}
            print(f"{name}, seed {seed}: {tally['n']} cases, {tally['n_violations']} violations", file=sys.stderr)
    return parts


def machine() -> dict[str, Any]:
    """A description of this machine."""
    from polyrank.bench.machine import describe_machine  # late: it imports torch, which would slow forks down

    return {"machine": describe_machine()}


def summary(parts: dict[str, Any], n_violations: int) -> dict[str, Any]:
    """Numbers of cases and violations, by kind and in total."""
    kinds: dict[str, int] = {}
    for key, part in parts.items():
        kind = key.partition(",")[0]
        kinds[kind] = kinds.get(kind, 0) + part["n"]
    return {
        "command": " ".join(["python", "runs/crash.py", *sys.argv[1:]]),
        "cases": {**kinds, "in all": sum(kinds.values())},
        "violations": n_violations,
        "seconds": round(sum(part["seconds"] for part in parts.values()), 1),
        "parts": parts,
    }


if __name__ == "__main__":
    main()
