"""What the server carries, from runs/serving/load.py and runs/peers/serving.py."""

from report.figures import Result, machine, read, read_if_there, table


def load() -> str:
    """An overload, and what it leaves of a server."""
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
    head = ["offered", "requests", "answered in time, of capacity", "answered, ms", "refused, ms", "`/live`, ms"]
    note = f"Requests of {result['request']} to {result['model']}, {result['capacity_per_s']:.0f} a second at capacity"
    note += f" ({_where(result, 'load')}); medians and 99th percentiles. Clients do not wait for each other."
    return f"{note}\n\n{table([*head, 's until normal'], rows, range(1, 7))}\n\n{faults()}"


def faults() -> str:
    """What was done to a server, and what of it was lost."""
    canaries, kills = read("serving/canaries"), read("serving/kills")
    signals, slow = read("serving/sigterms"), read("serving/slow")
    start, memory = read("serving/start"), read("serving/memory")
    stops = signals["ready_says_503_after_ms"]
    rows = [
        [
            "requests beside each other, each with an answer of its own",
            f"{canaries['requests']:,}",
            f"{canaries['counts']['right']:,} right; scores within {canaries['largest_difference_from_alone']:.0e} of"
            " those alone",
        ],
        [
            "kills of the process that computes, under load",
            f"{kills['kills']}",
            f"{kills['lost_before_the_server_was_killed']} of {_sum(kills):,} requests lost,"
            f" {kills['acknowledged_and_lost']} of {kills['acknowledged']:,} candidates; {_late(kills)} got 503, no"
            f" process being up after {kills['slowest_s']:.0f} s (median: {kills['without_a_process_s']['p50']:.0f})",
        ],
        [
            "SIGTERMs under load",
            f"{signals['signals']}",
            f"every request answered ({_sum(signals):,}); `/ready` says 503 after {stops['p50']:.0f} ms (median)",
        ],
        [
            "slow connections, half a request each",
            f"{slow['slow_connections']:,}",
            f"99th percentile of the others {slow['p99_ratio']:.2f} times as long",
        ],
    ]
    took = f"A server of {start['model']} answers `/live` after {start['live_s']['median']:.1f} s and is ready after"
    took += (
        f" {start['ready_s']['median']:.1f} s (median of {start['starts']} starts). It takes {memory['server_mb']:.0f}"
    )
    took += f" MB, and each process that computes {memory['worker_mb']:.0f} MB, torch and the model among it."
    return f"{table(['fault', 'how many', 'what came of it'], rows, (1,))}\n\n{took}"


def beside() -> str:
    """Requests a second beside a server as people write it."""
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
    head = ["route", "clients", "polyrank, a second", "usual", "times", "polyrank, ms", "usual, ms"]
    note = "Beside FastAPI around sentence-transformers, as people write it (`runs/peers/usual_app.py`), with the same"
    note += f" networks and threads, taking turns ({machine('serving/peers')}, load {result['load_average']:.1f}):"
    return f"{note}\n\n{table(head, rows, range(1, 7))}"


def _where(result: Result, name: str) -> str:
    return f"{machine(f'serving/{name}')}, load {result['load_average_before']:.0f} from other work"


def _both(times: Result) -> str:
    """Median and 99th percentile; nothing where there was none."""
    return "" if times["p50_ms"] is None else f"{times['p50_ms']:,.0f} / {times['p99_ms']:,.0f}"


def _sum(result: Result) -> int:
    return sum(n for status, n in result["statuses"].items() if status.endswith("200"))


def _late(result: Result) -> int:
    return sum(n for status, n in result["statuses"].items() if status.endswith("503"))
