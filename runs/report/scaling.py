"""Measured scaling of one machine, and estimates for 100 million candidates or 700 million pairs."""

from report.figures import machine, ms, read, row, table

CANDIDATES, PAIRS = 100_000_000, 700_000_000
HOUR, DAY = 3600, 86400


def streamed() -> str:
    """Training from examples on disk: time and memory."""
    rows = [
        [
            f"{one['pairs']:,}",
            f"{one['on_disk_mb']:,} MB",
            ms(one["first_run_s"]),
            ms(one["next_run_checkpoint_s"]),
            f"{one['first_run_mb']:,} MB",
            f"{one['next_run_mb']:,} MB",
        ]
        for one in read("large")["rows"]
    ]
    head = [
        "pairs",
        "on disk",
        "first run of 20 steps, s",
        "later run to its checkpoint, s",
        "memory, first run",
        "memory, later run",
    ]
    note = f"Synthetic pairs in Parquet files, a small ConveRT ({machine('large')}, with other work on the machine);"
    note += " memory is private memory of the process. Made by `python runs/large.py`."
    return f"{note}\n\n{table(head, rows, range(6))}"


def growth() -> str:
    """Time and space of an index by the number of candidates."""
    rows = []
    sizes = dict.fromkeys(one["n"] for one in read("bench/growth")["rows"])
    for n in sizes:
        built, opened, best = (row("bench/growth", n=n, what=what) for what in ("build", "open", "exact"))
        rows.append(
            [
                f"{n:,}",
                f"{built['ms'] / 1000:,.1f} s",
                f"{built['bytes'] / 1e6:,.0f} MB",
                f"{ms(opened['ms'])} ms",
                f"{ms(best['ms'])} ms",
                f"{best['n_scored']:,.0f}",
                f"{best['peak_mb']:,.0f} MB",
            ]
        )
    one = row("bench/growth", n=next(iter(sizes)), what="exact")
    head = ["candidates", "build", "on disk", "open", "ten best, exact", "scored in full", "memory"]
    note = f"Candidates of {one['d']} dimensions in int8, contexts of {one['m']} vectors ({machine('bench/growth')})."
    note += " Made by `python runs/timing/search.py`."
    return f"{note}\n\n{table(head, rows, range(7))}"


def paper_costs() -> str:
    """Linear extrapolation from measurements; no such size was run."""
    built, best = row("bench/amx/search", what="build"), row("bench/amx/search", what="fast")
    encoded = row("bench/amx/encode", what="bulk", form="polyrank")
    trained = row("bench/amx/train", form="polyrank, like lengths")
    times = CANDIDATES / built["n"]
    rows = [
        [
            f"encode {CANDIDATES:,} short texts by MiniLM",
            f"{encoded['per_second']:,.0f} texts a second",
            f"{CANDIDATES / encoded['per_second'] / HOUR:,.0f} hours on two cores, divided by the number of machines",
        ],
        [
            "their index in int8, with texts",
            f"{built['bytes'] / built['n']:,.0f} bytes each",
            f"{built['bytes'] * times / 1e9:,.0f} GB on disk",
        ],
        [
            "the ten best of them, exact",
            f"{ms(best['ms'])} ms for {best['n']:,}",
            f"{best['ms'] * times / 1000:,.1f} s by one machine, {best['ms'] * times / 10:,.0f} ms by ten of them",
        ],
        [
            f"train MiniLM on {PAIRS:,} pairs, once",
            f"{trained['per_second']:,.0f} pairs a second",
            f"{PAIRS / trained['per_second'] / DAY:,.0f} days on two cores: use GPUs",
        ],
    ]
    note = f"Extrapolated linearly from two cores ({machine('bench/amx/search')}); nothing of this size was run."
    return f"{note}\n\n{table(['what', 'measured', 'estimated'], rows)}"
