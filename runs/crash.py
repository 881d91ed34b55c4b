"""What an index survives: kills, failing calls, full disks, power loss, flipped bits. Prints a JSON summary.

    python runs/crash.py --kills 1000 --calls 2 --power 2 --losses 2 --flips 2 > runs/results/crash.json

Acknowledged operations that are lost, removed candidates that are back and indexes that cannot be read must be 0.
The calls and the power losses need a C compiler and Linux.
"""

import argparse
import json
import sys
import time

from crashes import faults


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, help="how many kills at random moments")
    parser.add_argument("--calls", type=int, default=0, help="how many workloads to break at every durable call")
    parser.add_argument("--power", type=int, default=0, help="how many workloads to cut the power of after every call")
    parser.add_argument("--losses", type=int, default=0, help="how many workloads to lose what each sync should write")
    parser.add_argument("--flips", type=int, default=0, help="how many indexes to flip a bit of each byte of")
    parser.add_argument("--all-bits", type=int, default=200, help="of how many first bytes of a file to flip every bit")
    parser.add_argument("--every", type=int, default=1, help="try every N-th place only")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.calls or options.power or options.losses:
        faults.preload()
    from crashes import cases

    seeds = range(options.seed, options.seed + max(options.calls, options.power, options.losses, options.flips))
    bits = options.all_bits
    parts = [
        ("kills", [lambda: cases.kills(options.kills, options.seed)] * bool(options.kills)),
        ("calls", [lambda s=s: cases.calls(s, options.every) for s in seeds[: options.calls]]),
        ("power", [lambda s=s: cases.power(s, options.every) for s in seeds[: options.power]]),
        ("losses", [lambda s=s: cases.losses(s, options.every) for s in seeds[: options.losses]]),
        ("flips", [lambda s=s: cases.flips(s, options.every, all_bits=bits) for s in seeds[: options.flips]]),
        ("log flips", [lambda s=s: cases.flips(s, options.every, killed=True) for s in seeds[: options.flips]]),
        ("removals", [lambda s=s: cases.lost_removals(s, options.every) for s in seeds[: options.flips]]),
    ]
    summary: dict[str, object] = {}
    n_violations = 0
    for name, runs in parts:
        for number, run in enumerate(runs):
            started = time.monotonic()
            tally = run()
            n_violations += tally["n_violations"]
            key = name if len(runs) == 1 else f"{name} {number}"
            summary[key] = tally | {"seconds": round(time.monotonic() - started, 1)}
            print(f"{key}: {tally['n']} cases, {tally['n_violations']} violations", file=sys.stderr)
    print(json.dumps(summary, indent=2))
    raise SystemExit(n_violations > 0)


if __name__ == "__main__":
    main()
