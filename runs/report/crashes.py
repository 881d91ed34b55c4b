"""Crashes of an index, interrupted commands, and faults that tests detect."""

from report.figures import Result, machine, read, read_if_there, section, table
from report.models import ROOT


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
            "a durable call is killed before or half-way, fails with EIO or ENOSPC, writes short, or the disk"
            " is full from then on",
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
        f"""Does an index survive crashes? There were {result["violations"]} violations in {cases["in all"]:,} cases. A
        violation is a lost acknowledged change, a removed candidate that reappears, or an unreadable index.""",
        f"""The index is under a scripted workload (create, add, replace, remove, snapshot, compact, rebuild), with
        vectors in fp32, bf16 or int8. On {machine("crash")}. Command: `python runs/crash.py`, which lists its parts and
        outcomes [here](../runs/results/crash.jsonl).""",
        table(
            ["event", "cases", "where"],
            [[what, f"{cases[name]:,}", where] for name, what, where in rows]
            + [["**total**", f"**{cases['in all']:,}**", f"**violations: {result['violations']}**"]],
            (1,),
        ),
    )


def kills() -> str:
    """Kills of trainings that resume."""
    kills = read_if_there("kills")
    if not kills:
        return ""
    killed = "; ".join(
        f"{name}: {part['kills']} kills in {part['runs']} runs, {part['n_violations']} with a different result or bit"
        for name, part in kills["parts"].items()
    )
    return section(
        "Killed trainings",
        f"""Trainings were killed (kill -9) at random moments, resumed with `--resume` until they ended, and compared
        with uninterrupted ones: {killed}. The streamed training is a ConveRT from `data.cache` in two processes, one or
        both of which are killed. Command: `python runs/kills.py`.""",
    )


def faults() -> str:
    """The counts of the table of mutants: its last row."""
    rows = (ROOT / "runs" / "results" / "mutants.md").read_text("utf-8").splitlines()
    n_all, n_caught, n_survived, n_equivalent = (
        int(cell) for cell in next(row for row in rows if row.startswith("| **all**")).split("|")[2:6]
    )
    n_tried = n_caught + n_survived + n_equivalent
    return section(
        "Mutation testing",
        f"""Of {n_all:,} single faults in the code, {n_tried:,} have been tried, one at a time; the tests notice
        {n_caught:,} of the {n_caught + n_survived:,} that change anything: [the table by
        package](../runs/results/mutants.md). Each fault has at most 20 seconds of the tests that run its line,
        so all tests notice at least as many. Command: `python runs/mutants.py run --seconds 20`.""",
    )
