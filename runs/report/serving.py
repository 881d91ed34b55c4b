"""The server's capacity, from runs/serving/load.py and runs/peers/serving.py."""

from report.figures import Result, machine, read, read_if_there, table


def load() -> str:
    """Throughput and latency at and above capacity."""
    result = read("serving/load")
    rows = [
        [
            f"{one['times_capacity']} x",
            f"{one['sent']:,}",
            f"{one['goodput_share_of_capacity']:.0%}",
            *(_both(one[what]) for what in ("taken", "refused", "live")),
            f"{one['normal_after_s']:.2f}",
        ]
        for one in result["rows"]
    ]
    head = ["load", "requests", "answered in time, share of capacity", "answered, ms", "refused, ms", "`/live`, ms"]
    note = f"Each request sends {result['request']} to {result['model']}; at capacity, the server answers"
    note += f" {result['capacity_per_s']:.0f} requests per second ({_where(result, 'load')}). Times are medians and"
    note += " 99th percentiles. Clients send requests without waiting for earlier answers."
    return f"{note}\n\n{table([*head, 's until normal'], rows, range(1, 7))}\n\n{faults()}"


MIXED = {"mixed": "usual, broken and costly requests", "fuzz": "the same, nine of ten broken"}


def faults() -> str:
    """Faults injected into a server, and their effects."""
    canaries, kills = read("serving/canaries"), read("serving/kills")
    signals, slow = read("serving/sigterms"), read("serving/slow")
    start, memory = read("serving/start"), read("serving/memory")
    restarts, bombs, forks = read("serving/restarts"), read("bombs"), read("forks")["parts"].values()
    stops = signals["ready_says_503_after_ms"]
    rows = [
        [
            "concurrent requests, each with a different answer",
            f"{canaries['requests']:,}",
            f"{canaries['counts']['right']:,} right; scores within {canaries['largest_difference_from_alone']:.0e} of"
            " single requests",
        ],
        [
            "kills of the worker under load",
            f"{kills['kills']}",
            f"{kills['lost_before_the_server_was_killed']} of {_sum(kills):,} requests lost,"
            f" {kills['acknowledged_and_lost']} of {kills['acknowledged']:,} candidates; {_late(kills)} returned 503;"
            f" without a worker for at most {kills['slowest_s']:.0f} s"
            f" (median: {kills['without_a_process_s']['p50']:.0f}; machine load {kills['load_average_before']:.0f})",
        ],
        [
            "kills of the server during changes",
            f"{restarts['kills']}",
            f"{restarts['acknowledged_and_lost']} of {restarts['acknowledged']:,} candidates lost, no worker left",
        ],
        [
            "SIGTERMs under load",
            f"{signals['signals']}",
            f"every request answered ({_sum(signals):,}); `/ready` returns 503 after {stops['p50']:.0f} ms (median)",
        ],
        [
            "slow connections, each with half a request",
            f"{slow['slow_connections']:,}",
            f"99th percentile of other requests: {slow['p99_ratio']:.2f} times as long",
        ],
        *(_mixed(what, read(f"serving/{name}")) for name, what in MIXED.items()),
        [
            "forks of gunicorn, celery and a pool under load",
            f"{sum(part['forks'] for part in forks):,}",
            f"{sum(part['acknowledged_and_lost'] for part in forks)} of {sum(part['requests'] for part in forks):,}"
            " changes lost, no wrong answer",
        ],
        [
            "files and requests that unpack to much",
            f"{bombs['files'] + bombs['requests']:,}",
            f"at most {bombs['largest'][0]['bytes'] / 1e6:.0f} MB",
        ],
    ]
    took = f"A server with {start['model']} answers `/live` after {start['live_s']['median']:.1f} s and is ready after"
    took += (
        f" {start['ready_s']['median']:.1f} s (median of {start['starts']} starts). It uses {memory['server_mb']:.0f}"
    )
    took += f" MB, and each worker {memory['worker_mb']:.0f} MB including torch and the model."
    return f"{table(['fault', 'count', 'effect'], rows, (1,))}\n\n{took}"


def _mixed(what: str, result: Result) -> list[str]:
    slowest, megabytes = result["slowest_of_others"], max(row[2] for row in result["server_and_worker_mb"])
    waited = f"{slowest['s'] - slowest['s_for_cores']:.1f}"
    return [
        what,
        f"{result['requests']:,}",
        f"another waits at most {waited} s; a worker has at most {megabytes} MB",
    ]


def comparison() -> str:
    """Requests per second compared with a typical server."""
    result = read_if_there("serving/peers")
    if result is None:
        return ""
    rows = [
        [
            one["what"],
            str(one["clients"]),
            *(f"{one[name]['per_second']:.1f}" for name in ("polyrank", "usual")),
            f"{one['ratio']:.1f}",
            *(f"{one[name]['p50_ms']:,.0f} / {one[name]['p99_ms']:,.0f}" for name in ("polyrank", "usual")),
        ]
        for one in result["rows"]
    ]
    head = ["route", "clients", "polyrank, per second", "typical", "ratio", "polyrank, ms", "typical, ms"]
    note = "Compared with a typical FastAPI server around sentence-transformers (`runs/peers/usual_app.py`), with the"
    note += f" same networks and threads, measured alternately ({machine('serving/peers')}, load"
    note += f" {result['load_average']:.1f}):"
    return f"{note}\n\n{table(head, rows, range(1, 7))}"


def _where(result: Result, name: str) -> str:
    return f"{machine(f'serving/{name}')}, load {result['load_average_before']:.0f} from other work"


def _both(times: Result) -> str:
    """Median and 99th percentile, or nothing."""
    return "" if times["p50_ms"] is None else f"{times['p50_ms']:,.0f} / {times['p99_ms']:,.0f}"


def _sum(result: Result) -> int:
    return sum(n for status, n in result["statuses"].items() if status.endswith("200"))


def _late(result: Result) -> int:
    return sum(n for status, n in result["statuses"].items() if status.endswith("503"))
