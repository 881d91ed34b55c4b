"""Forks under load: children of gunicorn's --preload, celery's prefork and a pool use what their parent has opened.

    python runs/serving/forks.py -n 1000 [--only gunicorn celery pool]

Each child adds replies to an index, records feedback, scores, searches, and asks a server through its parent's client;
after three requests it is replaced. n is the number of forks of all kinds together. Stores "forks" with runs/record.py.
Exits with 1 if an acknowledged change is lost or an answer is wrong; a request without an answer raises an error.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import record

from forked.load import KINDS, forks
from polyrank.bench.machine import describe_machine


def main() -> None:
    """Each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=1000, help="forks")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    options = parser.parse_args()
    parts, load = {}, os.getloadavg()[0]
    for kind in options.only:
        with tempfile.TemporaryDirectory() as name:
            parts[kind] = forks(kind, -(-options.n // len(options.only)), Path(name))
        print(kind, parts[kind], flush=True)
    n_violations = sum(
        part["acknowledged_and_lost"] + sum(part["wrong_answers"].values()) + part["index_problems"]
        for part in parts.values()
    )
    row = {"machine": describe_machine(), "load_average_before": round(load, 1), "parts": parts}
    record.write("forks", row | {"n_violations": n_violations})
    raise SystemExit(n_violations > 0)


if __name__ == "__main__":
    main()
