"""What an index went through, and what tests notice."""

from report.figures import Result, machine, read, read_if_there, section, table


def crashes() -> str:
    result = read("crash")
    cases, parts = result["cases"], result["parts"]

    def of(kind: str) -> list[Result]:
        """The parts of one kind, by seed."""
        return [part for name, part in parts.items() if name.startswith(f"{kind}, ")]

    calls, flips = of("calls"), of("flips")
    rows = [
        ("kills", "kill -9 at a random moment", "every part of workloads of all three precisions"),
        (
            "calls",
            "a durable call is killed before or half-way, fails with EIO or ENOSPC, writes short, or finds the disk"
            " full from then on",
            f"each of {calls[0]['n_calls']} calls of one workload (fp32), every second of {calls[1]['n_calls']} of"
            " another (int8)",
        ),
        (
            "power",
            "the power fails: un-synced data and folder entries are gone, or random parts of them stay",
            "after each call of three workloads, " + " + ".join(str(part["n_calls"]) for part in of("power")),
        ),
        (
            "losses",
            "a sync fails once and loses its data; later the power fails",
            "each sync of two workloads, " + " + ".join(str(part["n_syncs"]) for part in of("losses")),
        ),
        (
            "flips",
            "a bit flips, or a file is cut, in a closed index",
            f"every bit in use of {flips[0]['n_bytes']:,} bytes, one of each free byte (int8)",
        ),
        ("log flips", "a bit flips in an index with a live log", "one in every eighth byte (bf16)"),
        ("removals", "a bit flips, then a writer removes and adds", "one in every sixth byte (int8)"),
    ]
    return section(
        "Crashes",
        f"""An index under a scripted workload (create, add, replace, remove, snapshot, compact, rebuild), with
        vectors in fp32, bf16 or int8. A violation is an acknowledged change that is lost, a removed candidate that
        is back, or an index that cannot be read. On {machine("crash")}. Made by `python runs/crash.py`, whose parts
        and outcomes are [here](../runs/results/crash.jsonl).""",
        table(
            ["what happens", "cases", "to what"],
            [[what, f"{cases[name]:,}", where] for name, what, where in rows]
            + [["**in all**", f"**{cases['in all']:,}**", f"**violations: {result['violations']}**"]],
            (1,),
        ),
    )


def interrupts() -> str:
    """Signals to every long command, and kills of trainings that go on."""
    signals, kills = read_if_there("interrupts"), read_if_there("kills")
    if not signals or not kills:
        return ""
    rows = [
        [
            name,
            f"{part['n']:,}",
            ", ".join(f"{said} {n}" for said, n in part["outcomes"].items()),
            str(part["n_violations"]),
        ]
        for name, part in signals["commands"].items()
    ]
    killed = "; ".join(
        f"{name}: {part['kills']} kills in {part['runs']} runs, {part['n_violations']} with another figure or bit"
        for name, part in kills["parts"].items()
    )
    return section(
        "Interrupts and kills",
        f"""Ctrl-C and SIGTERM at random moments of every long command, {signals["interrupts"]:,} in all: it must end
        with 130 or 143, or with 0 when its work is done, say one line, leave files that are whole or not there, and
        work when it is run again. Violations: {signals["violations"]}. Commands that are "cold" begin with their
        interpreter. On {machine("interrupts")}. Made by `python runs/interrupts.py`.""",
        table(["command", "signals", "outcomes", "violations"], rows, (1, 3)),
        f"""And kill -9 at random moments of trainings, which go on with `--resume` until they have ended, against
        uninterrupted ones: {killed}. The streamed one is a ConveRT from `data.cache` in two processes, of which either
        or both are killed. Made by `python runs/kills.py`.""",
    )


def faults() -> str:
    return section(
        "Faults put in on purpose",
        """Single faults are put into the code one at a time, and the tests have to notice: [the table by
        package, and each fault that survived](../runs/results/mutants.md). Made by `python runs/mutants.py`.""",
    )
