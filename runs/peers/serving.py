"""Compares polyrank's server with a common hand-written one: requests per second and latency, measured in alternation.

python runs/peers/serving.py [--rounds N] [--seconds S] [--clients N]

Both serve the embedded backbone's encoder and a Cross-encoder on it (with a random head, since speed does not depend on
the weights), with one thread per core. The script sends requests to one server at a time. Prints one JSON object.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import httpx
import torch

from polyrank.bench import describe_machine
from polyrank.config.models import BiConfig, CrossConfig, TextPolicy
from polyrank.data import read_examples, read_pool
from polyrank.models import new_model
from polyrank.models.artifacts import save_model

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "src" / "polyrank" / "sample"
POLICY = TextPolicy(max_context_tokens=360, max_candidate_tokens=72)
N_DOCUMENTS = 100


def models(folder: Path) -> dict[str, Path]:
    """Save both networks as polyrank models."""
    texts = [candidate.text for candidate in read_pool(SAMPLE / "replies.jsonl")]
    for name, config in (
        ("bi", BiConfig(backbone="embedded", reduction="mean", shared_towers=True)),
        ("cross", CrossConfig(backbone="embedded")),
    ):
        model, policy, resolved = new_model(config, POLICY, seed=0, sample=texts)
        save_model(folder / name, model, policy, resolved)
    return {name: folder / name for name in ("bi", "cross")}


def bodies() -> dict[str, list[dict[str, Any]]]:
    """Request bodies: a hundred documents for a query, one text, and thirty-two texts.

    No text comes twice in a round, since polyrank's server caches the vectors of candidates.
    """
    queries = [" ".join(example.context[-2:]) for example in read_examples(SAMPLE / "test.jsonl").examples]
    texts = [candidate.text for candidate in read_pool(SAMPLE / "replies.jsonl")]
    endless = cycle(texts)
    return {
        f"/v1/rerank of {N_DOCUMENTS}": [
            {"query": query, "documents": [*islice(endless, N_DOCUMENTS)]} for query in queries[:64]
        ],
        "/v1/embeddings of 1": [{"input": [query]} for query in queries],
        "/v1/embeddings of 32": [{"input": queries[start : start + 32]} for start in range(0, len(queries) - 32, 32)],
    }


def renumbered(requests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The bodies in an endless loop, each text with a unique number."""
    numbers = count(time.time_ns() % 10**9)
    for body in cycle(requests):
        yield {
            name: [f"{text} {next(numbers)}" for text in value] if isinstance(value, list) else value
            for name, value in body.items()
        }


async def load(url: str, path: str, requests: list[dict[str, Any]], n_clients: int, seconds: float) -> dict[str, float]:
    """Measure clients that send the next request after each answer."""
    times: list[float] = []
    todo = renumbered(requests)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        (await client.post(path, json=next(todo))).raise_for_status()
        end = time.perf_counter() + seconds

        async def one() -> None:
            while time.perf_counter() < end:
                started = time.perf_counter()
                (await client.post(path, json=next(todo))).raise_for_status()
                times.append(time.perf_counter() - started)

        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(n_clients)))
        elapsed = time.perf_counter() - started
    cuts = statistics.quantiles(times, n=100) if len(times) > 1 else times * 99
    return {
        "n": len(times),
        "per_second": round(len(times) / elapsed, 2),
        "p50_ms": round(cuts[49] * 1000, 1),
        "p99_ms": round(cuts[98] * 1000, 1),
    }


def middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median round by requests per second."""
    return sorted(rounds, key=lambda each: each["per_second"])[len(rounds) // 2]


def ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None:
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the server at {url} has ended with exit code {process.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--backend", default="torch")
    arguments = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        served = [f"{name}={path}" for name, path in models(folder).items()]
        own = [sys.executable, "-m", "polyrank", "serve", *served, "--port", "8651", "--backend", arguments.backend]
        usual = [sys.executable, "-m", "uvicorn", "usual_app:app", "--port", "8652", "--log-level", "warning"]
        urls = {"polyrank": "http://127.0.0.1:8651", "usual": "http://127.0.0.1:8652"}
        with (folder / "log").open("wb") as log:
            for name, command, cwd in (("polyrank", own, ROOT), ("usual", usual, Path(__file__).parent)):
                process = subprocess.Popen(command, cwd=cwd, env=environment, stderr=log, stdout=log)
                resources.callback(process.wait)
                resources.callback(process.terminate)
                ready(urls[name], process)
            rows = []
            for what, requests in bodies().items():
                path = what.split()[0]
                for n_clients in arguments.clients:
                    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in urls}
                    for _ in range(arguments.rounds):
                        for name, url in urls.items():
                            extra = {"model": "cross" if "rerank" in path else "bi"}
                            todo = [body | extra for body in requests] if name == "polyrank" else requests
                            rounds[name].append(asyncio.run(load(url, path, todo, n_clients, arguments.seconds)))
                    medians = {name: middle(each) for name, each in rounds.items()}
                    ratio = medians["polyrank"]["per_second"] / medians["usual"]["per_second"]
                    rows.append({"what": what, "clients": n_clients, **medians, "ratio": round(ratio, 2)})
                    print(json.dumps(rows[-1]), file=sys.stderr)
    load_average = os.getloadavg()[0]
    print(json.dumps({"machine": describe_machine(), "load_average": load_average, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
