"""Stress tests of a server: overload, slow clients, signals and kills. Prints a JSON summary.

    python runs/serving/load.py start       # time until the first answers
    python runs/serving/load.py memory      # memory of its processes
    python runs/serving/load.py load        # 1, 2 and 10 times its capacity, open loop
    python runs/serving/load.py canaries    # each answer belongs to its request and equals that of the request alone
    python runs/serving/load.py slow        # a thousand clients that send half a request
    python runs/serving/load.py sigterms    # SIGTERM under load
    python runs/serving/load.py kills       # SIGKILL of the worker process under load, then of the server
    python runs/serving/load.py restarts    # SIGKILL of the server under changes, again and again
    python runs/serving/load.py mixed       # usual, costly and broken requests, and how long others wait meanwhile
    python runs/serving/load.py fuzz        # the same, most of them broken
    python runs/serving/load.py schemathesis

Client and server share the machine's cores. Exits with 1 if a request or a candidate is lost, or an answer is wrong.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from client import Answer, Client, closed_loop, get, open_loop, post
from servers import Running, serving

WORDS = """my wifi is down hello thanks the router light red green please restart it did that bill too high order late
parcel refund card password reset phone screen black water cold train ticket booked seat window cancel""".split()  # noqa: SIM905


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--model", default="shipped:convert", help="a model; load also ran with untuned:embedded")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each measurement")
    parser.add_argument(
        "--n", type=int, default=0, help="number of canaries, signals, kills, slow connections or examples"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of the worker process")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    gc.freeze()
    gc.disable()  # a collection would delay all pending requests
    before, started = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(PARTS[options.part](options, Path(folder)))
    used = resource.getrusage(resource.RUSAGE_SELF)
    from polyrank.bench.machine import describe_machine

    summary = {
        "command": " ".join(["python", "runs/serving/load.py", *sys.argv[1:]]),
        "machine": describe_machine(),
        "note": "client and server share the cores with other work; the load average is of the minute before",
        "load_average_before": round(before, 2),
        "seconds": round(time.monotonic() - started, 1),
        "client_cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        **result,
    }
    print(json.dumps(summary, indent=2))
    raise SystemExit(bool(result["violations"]))


@asynccontextmanager
async def started(
    options: argparse.Namespace, path: str | Path, folder: Path, settings: str = ""
) -> AsyncIterator[Running]:
    """Start a server of one path."""
    config = folder / "serve.toml"
    config.write_text(f"threads = {options.threads}\n{settings}", "utf-8")
    environment = os.environ | {"POLYRANK_PRECISION": "fp32"}  # in bf16 a score depends slightly on its batch
    with serving(f"m={path}", "--config", config, environment=environment) as running:
        yield running


def texts(draw: random.Random, n: int, n_words: int) -> list[str]:
    """``n`` distinct random texts."""
    found: dict[str, None] = {}
    while len(found) < n:
        found[" ".join(draw.choices(WORDS, k=n_words))] = None
    return list(found)


def scoring(seed: int, n_candidates: int) -> Iterator[bytes]:
    """Requests for scores with random texts, so that caches do not help."""
    draw = random.Random(seed)
    while True:
        context, *candidates = (" ".join(draw.choices(WORDS, k=12)) for _ in range(n_candidates + 1))
        yield post("/v1/score", json.dumps({"context": context, "candidates": candidates}).encode())


def index_of(options: argparse.Namespace, folder: Path, n: int = 1_000) -> Path:
    """Build an index to search and change."""
    import polyrank

    replies = texts(random.Random(options.seed), n, 8)
    polyrank.build_index(
        folder / "index", options.model, [polyrank.Candidate(f"r{i}", t) for i, t in enumerate(replies)]
    )
    return folder / "index"


def share(values: list[float], part: float) -> float | None:
    """A quantile of seconds, in milliseconds."""
    return round(float(np.quantile(values, part)) * 1000, 1) if values else None


def times(answers: list[Answer]) -> dict[str, float | None]:
    """Median, 99th percentile and maximum of the answers' times."""
    seconds = [answer.seconds for answer in answers]
    return {"p50_ms": share(seconds, 0.5), "p99_ms": share(seconds, 0.99), "max_ms": share(seconds, 1.0)}


def resident(pid: int) -> float:
    """Resident megabytes of a process."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024  # type: ignore[index]


async def watch(client: Client, path: str, seconds: float) -> list[Answer]:
    """Send the same GET request twenty times a second."""
    return await open_loop(client.send, itertools.repeat(get(path)), 20.0, seconds, 1)


async def load(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure capacity, then answers at 1, 2 and 10 times that rate."""
    seconds, requests = options.seconds, scoring(options.seed, 20)
    async with started(options, options.model, folder) as running:
        client = Client(running.address)
        await closed_loop(client, requests, 8, 3)
        done = await closed_loop(client, requests, 8, seconds)
        capacity = sum(answer.status == 200 for answer in done) / seconds
        alone = times(await closed_loop(client, requests, 1, 3))
        rows, violations = [], []
        for factor in (1, 2, 10):
            before = resident(running.process.pid), resident(running.workers[0])
            ahead = list(itertools.islice(requests, int(1.2 * factor * capacity * seconds) + 100))  # costs time
            answers, live = await asyncio.gather(
                open_loop(client.send, ahead, factor * capacity, seconds, options.seed + factor),
                watch(Client(running.address), "/live", seconds),
            )
            normal = await recovery(client, requests, 3 * (alone["p99_ms"] or 0))
            accepted = [answer for answer in answers if answer.status == 200]
            refused = [answer for answer in answers if answer.status in (429, 503)]
            row = {
                "times_capacity": factor,
                "sent": len(answers),
                "statuses": dict(Counter(str(answer.status) for answer in answers)),
                "goodput_share_of_capacity": round(len(accepted) / seconds / capacity, 3),
                "taken": times(accepted),
                "refused": times(refused),
                "refusals_without_retry_after": sum(not answer.retry for answer in refused),
                "live": times(live),
                "live_not_200": sum(answer.status != 200 for answer in live),
                "normal_after_s": normal,
                "server_mb": [round(before[0], 1), round(resident(running.process.pid), 1)],
                "worker_mb": [round(before[1], 1), round(resident(running.workers[0]), 1)],
            }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
            lost = {status for status in row["statuses"] if status not in ("200", "429", "503")}
            violations += [f"{factor}x: status {status}" for status in lost]
            if row["refusals_without_retry_after"] or row["live_not_200"]:
                violations.append(f"{factor}x: refusals without Retry-After, or no /live")
    return {
        "model": options.model,
        "request": "20 candidates of 12 words",
        "server_threads": options.threads,
        "capacity_per_s": round(capacity, 1),
        "capacity_by": f"8 clients, each with one request at a time, {seconds:g} s",
        "alone": alone,
        "rows": rows,
        "violations": violations,
    }


async def recovery(client: Client, requests: Iterator[bytes], normal_ms: float) -> float | None:
    """Seconds until single requests take no longer than ``normal_ms``."""
    start = time.perf_counter()
    while time.perf_counter() < start + 30:
        answer = await client.send(next(requests))
        if answer.status == 200 and answer.seconds * 1000 <= normal_ms:
            return round(time.perf_counter() - start, 2)
        await asyncio.sleep(0.02)
    return None


async def canaries(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send requests with different texts; each answer's scores must equal those of its texts encoded alone."""
    import polyrank

    n = options.n or 100_000
    draw = random.Random(options.seed)
    contexts, candidates = texts(draw, 400, 10), texts(draw, 400, 8)
    encoder = polyrank.load(options.model, precision="fp32")
    left = np.concatenate([encoder.encode_contexts([text])[0][:, 0] for text in contexts])
    right = np.concatenate([encoder.encode_candidates([text]) for text in candidates])
    expected = left.astype(np.float64) @ right.T.astype(np.float64)
    counts: Counter[str] = Counter()
    worst, nearest = 0.0, np.inf
    numbers = iter(range(n))

    async with started(options, options.model, folder, "[limits]\nqueue = 2048\n") as running:
        client = Client(running.address)

        async def one() -> None:
            nonlocal worst, nearest
            for number in numbers:
                own = random.Random(number * 7919 + options.seed)
                row, columns = number % 400, [own.randrange(400) for _ in range(4)]
                body = {"context": contexts[row], "candidates": [candidates[column] for column in columns]}
                request = post("/v1/score", json.dumps(body).encode())
                while (answer := await client.send(request)).status == 429:
                    counts["refused, asked again"] += 1
                    await asyncio.sleep(0.05)
                if answer.status != 200:
                    counts[f"status {answer.status}"] += 1
                    continue
                scores = np.array(json.loads(answer.body)["scores"])
                own_scores = expected[row, columns]
                difference = (np.abs(scores - own_scores) / np.maximum(1, np.abs(own_scores))).max()
                others = np.abs(scores - np.delete(expected, row, 0)[:, columns]).max(1).min()
                worst, nearest = max(worst, difference), min(nearest, others)
                counts["right" if difference < 1e-5 else "wrong"] += 1

        start = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(256)))
        seconds = time.perf_counter() - start
        batches = (await client.send(get("/metrics"))).body.decode()
    jobs = float(re.search(r'polyrank_batch_jobs_sum{operation="score"} (\S+)', batches)[1])  # type: ignore[index]
    n_batches = float(re.search(r'polyrank_batch_jobs_count{operation="score"} (\S+)', batches)[1])  # type: ignore[index]
    return {
        "model": options.model,
        "requests": n,
        "at_once": 256,
        "per_s": round(n / seconds, 1),
        "jobs_in_a_batch_mean": round(jobs / n_batches, 1),
        "counts": dict(counts),
        "largest_difference_from_alone": float(worst),
        "difference": "absolute where the score is below 1, relative above; 1e-5 is allowed",
        "smallest_difference_from_the_same_candidates_for_another_context": float(nearest),
        "violations": [] if counts["right"] == n else ["an answer was wrong or missing"],
    }


async def slow(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure normal requests while other connections stay open with half a request."""
    n, seconds = options.n or 1_000, options.seconds
    requests = scoring(options.seed, 5)
    half_head = b"POST /v1/score HTTP/1.1\r\nhost: loc"
    half_body = post("/v1/score", b" " * 100)[:-50]
    async with started(options, options.model, folder) as running:
        client = Client(running.address)
        await closed_loop(client, requests, 4, 3)
        rate = 0.3 * sum(a.status == 200 for a in await closed_loop(client, requests, 4, 5)) / 5
        counts: Counter[str] = Counter()
        stop = asyncio.Event()

        async def hold(sent: bytes) -> None:
            while not stop.is_set():
                with suppress(OSError):
                    reader, writer = await asyncio.open_connection(*running.address)
                    writer.write(sent)
                    counts["opened"] += 1
                    ended = asyncio.ensure_future(reader.read())
                    await asyncio.wait({ended, asyncio.ensure_future(stop.wait())}, return_when="FIRST_COMPLETED")
                    counts["ended by the server"] += ended.done()
                    ended.cancel()
                    writer.close()

        rows = []
        for turn in range(2):  # without slow clients, with, without, with
            rows.append(await open_loop(client.send, requests, rate, seconds, options.seed + turn))
            stop.clear()
            holding = [asyncio.ensure_future(hold((half_head, half_body)[i % 2])) for i in range(n)]
            while counts["opened"] < n * (turn + 1):
                await asyncio.sleep(0.01)
            rows.append(await open_loop(client.send, requests, rate, seconds, options.seed + turn))
            stop.set()
            await asyncio.gather(*holding)
    without, with_ = times(rows[0] + rows[2]), times(rows[1] + rows[3])
    statuses = Counter(str(answer.status) for row in rows for answer in row)
    return {
        "model": options.model,
        "slow_connections": n,
        "rate_per_s": round(rate, 1),
        "slow": dict(counts),
        "statuses": dict(statuses),
        "without": without,
        "with": with_,
        "p99_ratio": round((with_["p99_ms"] or 0) / (without["p99_ms"] or 1), 2),
        "violations": [f"status {status}" for status in statuses if status != "200"],
    }


async def sigterms(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Stop a server under load at a random moment; clients stop when /ready answers 503."""
    n, draw = options.n or 100, random.Random(options.seed)
    path, requests = index_of(options, folder), responding(options.seed)
    statuses: Counter[str] = Counter()
    violations, stopped, ready_after = [], [], []
    for number in range(n):
        async with started(options, path, folder) as running:
            client, leave = Client(running.address), asyncio.Event()

            async def one(client: Client = client, leave: asyncio.Event = leave) -> None:
                while not leave.is_set():
                    statuses[str((await client.send(next(requests))).status)] += 1

            async def balancer(running: Running = running, leave: asyncio.Event = leave) -> None:
                own = Client(running.address)
                await asyncio.sleep(draw.uniform(0.2, 0.7))
                running.process.send_signal(signal.SIGTERM)
                start = time.perf_counter()
                while (answer := await own.send(get("/ready"))).status == 200:
                    await asyncio.sleep(0.01)
                if answer.status != 503:
                    violations.append(f"/ready answered {answer.status}, not 503")
                ready_after.append(time.perf_counter() - start)
                leave.set()

            await asyncio.gather(balancer(), *(one() for _ in range(8)))
            start = time.perf_counter()
            code = await asyncio.to_thread(running.process.wait, 60)
            stopped.append(time.perf_counter() - start)
            if code != 0:
                violations.append(f"{number}: exit code {code}")
        print(f"{number + 1} of {n}: {dict(statuses)}, {violations}", file=sys.stderr)
    violations += [f"status {status}" for status in statuses if status not in ("200", "429")]
    return {
        "model": options.model,
        "signals": n,
        "statuses": dict(statuses),
        "ready_says_503_after_ms": {"p50": share(ready_after, 0.5), "max": share(ready_after, 1.0)},
        "ended_s_after_clients_left": {"p50": np.median(stopped).round(2), "max": round(max(stopped), 2)},
        "violations": violations,
    }


def responding(seed: int) -> Iterator[bytes]:
    """Requests for replies."""
    draw = random.Random(seed)
    while True:
        yield post("/v1/respond", json.dumps({"context": " ".join(draw.choices(WORDS, k=10))}).encode())


async def kills(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill the worker process repeatedly, and the server at the end."""
    import polyrank

    n, draw = options.n or 100, random.Random(options.seed)
    path, requests = index_of(options, folder), responding(options.seed)
    statuses: Counter[str] = Counter()
    acknowledged: list[str] = []
    down: list[float] = []
    slowest, end = 0.0, asyncio.Event()
    async with started(options, path, folder) as running:
        client = Client(running.address)

        async def ask() -> None:
            nonlocal slowest
            while not end.is_set():
                answer = await client.send(next(requests))
                statuses[f"respond {answer.status}"] += 1
                slowest = max(slowest, answer.seconds)
                await asyncio.sleep(0.5 if answer.status in (0, 429, 503) else 0)

        async def add(name: str) -> None:
            for number in itertools.count():
                if end.is_set():
                    return
                one = {"id": f"{name}{number}", "text": f"reply {name} {number}"}
                request = post("/v1/candidates", json.dumps({"candidates": [one]}).encode(), running.key)
                answer = await client.send(request)
                statuses[f"add {answer.status}"] += 1
                if answer.status == 200:
                    acknowledged.append(one["id"])
                elif answer.status == 0:
                    return
                await asyncio.sleep(0.1)

        async def until_ready() -> None:
            while (await client.send(get("/ready"))).status != 200:
                await asyncio.sleep(0.02)

        work = [asyncio.ensure_future(one) for one in (*(ask() for _ in range(4)), *(add(name) for name in "xyz"))]
        for number in range(n):
            await asyncio.sleep(draw.uniform(0.1, 1.0))
            for pid in running.workers:
                os.kill(pid, signal.SIGKILL)
            start = time.perf_counter()
            while (await client.send(get("/ready"))).status == 200 and time.perf_counter() < start + 5:
                await asyncio.sleep(0.005)
            await until_ready()
            down.append(time.perf_counter() - start)
            print(f"{number + 1} of {n}: {dict(statuses)}", file=sys.stderr)
        await asyncio.sleep(1)
        lost_before = sum(n for status, n in statuses.items() if status.split()[1] not in ("200", "429", "503"))
        running.process.kill()  # while candidates are being added
        end.set()
        await asyncio.gather(*work)
    with polyrank.open(path) as pipeline:
        ids = {candidate.id for _, candidate in pipeline.index.iter_candidates()}
    missing = [one for one in acknowledged if one not in ids]
    violations = ["an accepted request was lost"] * bool(lost_before)
    violations += ["an acknowledged candidate was lost"] * bool(missing)
    return {
        "model": options.model,
        "kills": n,
        "statuses": dict(statuses),
        "status_0": "requests that were open when the server itself was killed, at the end",
        "lost_before_the_server_was_killed": lost_before,
        "slowest_s": round(slowest, 2),
        "without_a_process_s": {"p50": np.median(down).round(2), "max": round(max(down), 2)},
        "acknowledged": len(acknowledged),
        "acknowledged_and_lost": len(missing),
        "violations": violations,
    }


async def restarts(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill the server repeatedly while candidates are added to one index, and start it again."""
    import polyrank

    n, draw, path = options.n or 300, random.Random(options.seed), index_of(options, folder)
    statuses: Counter[str] = Counter()
    acknowledged, left = list[str](), 0
    for number in range(n):
        async with started(options, path, folder) as running:
            client, workers = Client(running.address), running.workers

            async def add(name: str, number: int = number, running: Running = running, client: Client = client) -> None:
                for i in itertools.count():
                    one = {"id": f"{number}.{name}{i}", "text": f"reply {number} {name} {i}"}
                    request = post("/v1/candidates", json.dumps({"candidates": [one]}).encode(), running.key)
                    answer = await client.send(request)
                    statuses[f"add {answer.status}"] += 1
                    if answer.status != 200:
                        return
                    acknowledged.append(one["id"])

            adding = [asyncio.ensure_future(add(name)) for name in "wxyz"]
            await asyncio.sleep(draw.uniform(0.05, 1.0))
            running.process.kill()
            await asyncio.gather(*adding)
            for _ in range(600):  # the worker notices that its server is gone
                if not any(Path(f"/proc/{pid}").exists() for pid in workers):
                    break
                await asyncio.sleep(0.05)
            left += any(Path(f"/proc/{pid}").exists() for pid in workers)
        if number % 10 == 9:
            print(f"{number + 1} of {n}: {dict(statuses)}", file=sys.stderr, flush=True)
    verified = subprocess.run([sys.executable, "-m", "polyrank", "index", "verify", str(path)], capture_output=True)
    with polyrank.open(path) as pipeline:
        ids = {candidate.id for _, candidate in pipeline.index.iter_candidates()}
    missing = [one for one in acknowledged if one not in ids]
    violations = ["an acknowledged candidate was lost"] * bool(missing)
    violations += ["the index is damaged"] * bool(verified.returncode)
    violations += ["a worker outlived its server"] * bool(left)
    violations += ["an addition was refused"] * any(status not in ("add 200", "add 0") for status in statuses)
    return {
        "model": options.model,
        "kills": n,
        "statuses": dict(statuses),
        "acknowledged": len(acknowledged),
        "acknowledged_and_lost": len(missing),
        "violations": violations,
    }


ROUTES = {
    "/v1/respond": "context", "/v1/explain": "text", "/v1/score": "candidates", "/v1/rerank": "documents",
    "/v1/embeddings": "input", "/embed": "inputs", "/v1/candidates": "candidates", "/v1/feedback": "shown",
}  # fmt: skip


def costly(draw: random.Random, number: int) -> tuple[str, Any]:
    """A request that the limits accept, with texts made to be slow."""
    piece = draw.choice(["a\u0301\u0316", "\U0001f600\u200d", "1 ", "{a}", "Hi Ab, ", "a", "", "-- ", "http://a.b/"])
    text = (piece * 50_000)[: draw.choice([100_000, 10_000, 1_000])] or " ".join(draw.choices(WORDS, k=15_000))
    texts = [f"{number} {text}"[:100_000]] * max(1, min(1_000, 900_000 // len(text.encode())))
    slow = " or ".join(f'shop > "zone {draw.random()}"' for _ in range(30))
    return draw.choice(
        [
            ("/v1/respond", {"context": texts, "k": 1_000}),
            ("/v1/respond", {"context": texts[0], "filter": slow}),
            ("/v1/explain", {"context": texts, "text": texts[0]}),
            ("/v1/score", {"context": texts[:1], "candidates": texts}),
            ("/v1/rerank", {"query": texts[0], "documents": texts}),
            ("/v1/embeddings", {"input": texts}),
        ]
    )


def usual(draw: random.Random, number: int) -> tuple[str, Any]:
    """A request with short texts, which no other has, so that caches grow."""
    context, *others = (f"{number} {' '.join(draw.choices(WORDS, k=12))}" for _ in range(6))
    return draw.choice(
        [
            ("/v1/respond", {"context": [context, *others[:2]]}),
            ("/v1/respond", {"context": context, "k": 20}),
            ("/v1/score", {"context": context, "candidates": others}),
            ("/v1/rerank", {"query": context, "documents": others}),
            ("/v1/embeddings", {"input": others}),
            ("/v1/candidates", {"candidates": [{"id": f"a{number}", "text": context, "metadata": {"shop": context}}]}),
        ]
    )


def broken(draw: random.Random, number: int) -> tuple[str, bytes]:
    """A usual request with another route, or with bytes changed, removed and added."""
    path, value = usual(draw, number)
    body = bytearray(json.dumps(value | {"k": draw.choice([0, -1, 1e99, "1", [], None, {}])}).encode())
    for _ in range(draw.choice([0, 1, 1, 3, 30])):
        at = draw.randrange(len(body))
        body[at : at + draw.choice([0, 1, 1, 9])] = draw.choice(
            [b"", b'"', b"[" * 999, b"{", b"]", b"\\ud800", b"\xff", b"9" * 999, b"null", draw.randbytes(2)]
        )
    return draw.choice([path, *ROUTES]), bytes(body)


MIXED = {"usual": usual, "broken": broken, "costly": costly}


def waited(running: Running) -> float:
    """Seconds for which the server, its worker and this process waited for cores that others used."""
    pids = (running.process.pid, *running.workers, os.getpid())
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[1]) for file in files if file.exists()) / 1e9


async def mixed(
    options: argparse.Namespace, folder: Path, shares: tuple[int, int, int] = (79, 20, 1)
) -> dict[str, Any]:
    """Requests of which these shares are usual, broken and costly; another client sends small requests meanwhile."""
    import polyrank

    n, draw, path = options.n or 100_000, random.Random(options.seed), index_of(options, folder)
    statuses: Counter[str] = Counter()
    acknowledged, curve, probes, wrong = list[str](), list[list[float]](), list[dict[str, Any]](), list[str]()
    numbers, pending, end = iter(range(n)), Counter[str](), asyncio.Event()
    async with started(options, path, folder) as running:
        client, prober, workers = Client(running.address), Client(running.address), running.workers

        async def ask() -> None:
            for number in numbers:
                kind = draw.choices([*MIXED], shares)[0]
                where, body = MIXED[kind](draw, number)
                data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
                label = f"{kind} {where}"
                pending[label] += 1
                while (answer := await client.send(post(where, data, running.key))).status == 429 and kind == "usual":
                    statuses["usual 429, sent again"] += 1
                    await asyncio.sleep(0.05)
                pending[label] -= 1
                statuses[f"{kind} {answer.status}"] += 1
                if kind == "usual" and answer.status == 503:
                    print(label, answer, sorted(+pending), *running.lines[-3:], file=sys.stderr, flush=True)
                if answer.status not in (200, 429, 503) and (kind == "usual" or answer.status in (0, 500)):
                    wrong.append(f"{label} {answer.status}: {data[:200]!r} {answer.body[:200]!r}")
                if where == "/v1/candidates" and kind == "usual" and answer.status == 200:
                    acknowledged.append(f"a{number}")
                if number % max(1, n // 20) == 0:
                    curve.append([number, *(round(resident(pid)) for pid in (running.process.pid, *running.workers))])
                    print(curve[-1], dict(statuses), file=sys.stderr, flush=True)

        async def probe() -> None:
            while not end.is_set():
                before, among, start = waited(running), sorted(+pending), time.perf_counter()
                small = post("/v1/respond", json.dumps({"context": f"hi {draw.random()}"}).encode())
                while (answer := await prober.send(small)).status != 200:  # until it is answered
                    statuses[f"others {answer.status}, sent again"] += 1
                    await asyncio.sleep(0.02)
                took = time.perf_counter() - start
                probes.append({"s": took, "s_for_cores": min(took, waited(running) - before), "among": among})
                await asyncio.sleep(0.02)

        probing = asyncio.ensure_future(probe())
        await asyncio.gather(*(ask() for _ in range(4)))
        end.set()
        await probing
        wrong += ["the worker was replaced"] * (running.workers != workers)
    with polyrank.open(path) as pipeline:
        missing = {*acknowledged} - {candidate.id for _, candidate in pipeline.index.iter_candidates()}
    slowest = max(probes, key=lambda one: one["s"] - one["s_for_cores"])
    wrong += ["an acknowledged candidate was lost"] * bool(missing)
    wrong += ["others waited for more than 2 s"] * (slowest["s"] - slowest["s_for_cores"] > 2)
    wrong += ["the worker has more than 1 GB"] * any(max(row[2:], default=0) > 1_000 for row in curve)
    return {
        "model": options.model,
        "requests": n,
        "statuses": dict(statuses.most_common()),
        "others": times([Answer(200, seconds=one["s"]) for one in probes]),
        "slowest_of_others": slowest,
        "s_for_cores": "at most this part of its time was waiting for cores that other programs used",
        "server_and_worker_mb": curve,
        "acknowledged": len(acknowledged),
        "acknowledged_and_lost": len(missing),
        "violations": wrong[:20],
    }


async def schemathesis(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send requests that match the server's OpenAPI description, and requests that do not."""
    checks = (
        "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
        "response_schema_conformance,negative_data_rejection,unsupported_method"
    )
    async with started(options, index_of(options, folder, 50), folder) as running:
        command = [sys.executable, "-m", "schemathesis.cli", "run", running.url + "/openapi.json"]
        command += ["--max-examples", str(options.n or 500), "--seed", str(options.seed), "--checks", checks]
        command += ["--phases", "examples,coverage,fuzzing,stateful", "--no-shrink", "--continue-on-failure"]
        command += ["--generation-database", "none", "--header", f"authorization: Bearer {running.key}"]
        work = subprocess.run
        done = await asyncio.to_thread(work, command, stdout=subprocess.PIPE, text=True, cwd=folder)
        server_alive = running.process.poll() is None and len(running.workers) == 1
    output = done.stdout
    print(output[-6_000:], file=sys.stderr)
    cases = re.search(r"([\d,]+) generated", output)
    failures = re.findall(r"❌ (ST\d+ .+: \d+)", output)
    return {
        "model": options.model,
        "examples_of_each_operation": options.n or 500,
        "checks": checks.split(","),
        "cases": int(cases[1].replace(",", "")) if cases else None,
        "failures": failures,
        "exit_code": done.returncode,
        "violations": failures
        + ["the server died"] * (not server_alive)
        + ["schemathesis failed"] * bool(done.returncode),
    }


async def start(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure seconds from the command to the first answer of /live and to the first 200 of /ready."""
    rows = []
    for _ in range(options.n or 5):
        began = time.perf_counter()
        with serving(f"m={options.model}", wait=False) as running:
            client = Client(running.address)
            assert (await client.send(get("/live"))).status == 200
            live = time.perf_counter() - began
            await asyncio.to_thread(running.ready.wait, 60)
            assert (await client.send(get("/ready"))).status == 200
            ready = time.perf_counter() - began
            used = [cpu_seconds(pid) for pid in (running.process.pid, *running.workers)]
            client.close()
        rows.append((live, ready, *used))
    names = ("live_s", "ready_s", "server_cpu_s", "worker_cpu_s")
    columns = [sorted(column) for column in zip(*rows, strict=True)]
    return {
        "model": options.model,
        "starts": len(rows),
        **{
            name: {"least": round(column[0], 2), "median": round(float(np.median(column)), 2)}
            for name, column in zip(names, columns, strict=True)
        },
        "violations": [],
    }


async def memory(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure the resident memory of the server process and of the worker process when they are ready."""
    with serving(f"m={options.model}") as running:
        (worker,) = running.workers
        sizes = {"server_mb": round(resident(running.process.pid), 1), "worker_mb": round(resident(worker), 1)}
    return {"model": options.model, **sizes, "violations": []}


def cpu_seconds(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


PARTS = {
    "start": start,
    "memory": memory,
    "load": load,
    "canaries": canaries,
    "slow": slow,
    "sigterms": sigterms,
    "kills": kills,
    "restarts": restarts,
    "mixed": mixed,
    "fuzz": partial(mixed, shares=(9, 90, 1)),
    "schemathesis": schemathesis,
}

if __name__ == "__main__":
    main()
