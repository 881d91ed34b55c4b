"""How much wider intervals over dialogues are, as runs/intervals.py measures it."""

from report.figures import read_if_there, table

SETS = ("star", "sgd", "ubuntu-irc", "self-dialogue", "convai2-valid")


def wider() -> str:
    """The widths over dialogues as multiples of those over examples, by set."""
    results = {name: result for name in SETS if (result := read_if_there(f"intervals/{name}"))}
    columns = list(next(iter(results.values()))["wider"]) if results else []
    rows = [
        [
            name,
            f"{result['n_examples']:,}",
            f"{result['n_dialogues']:,}",
            *(f"{result['wider'][c]:.2f}" for c in columns),
        ]
        for name, result in results.items()
    ]
    return table(["width over dialogues / over examples", "examples", "dialogues", *columns], rows) if rows else ""
