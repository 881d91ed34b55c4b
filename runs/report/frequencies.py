"""Trainings by ``negatives_weighting``, as runs/weighting_training.sh measures them."""

from statistics import fmean

from report.figures import Result, change, p_value, percent, read_if_there, section, share, table

SETS = ("star", "sgd", "ubuntu-irc", "self-dialogue")
VALUES = ("as_said", "logq", "uniform")
SEEDS = range(1, 4)
EPOCHS = 3


def weighting_from_scratch() -> str:
    """A small ConveRT by set and value; of several seeds, their mean."""
    rows = []
    for name in SETS:
        found = {value: _seeds(name, value) for value in VALUES}
        if not all(found.values()):
            continue
        fit = read_if_there(f"weighting/{name}/convert/as_said/1.fit") or {}
        rows.append([name, f"{fit['n_examples'] // EPOCHS:,}", *(_cell(results) for results in found.values())])
    if not rows:
        return ""
    return section(
        "Replies that repeat: ConveRT from scratch",
        """`train.method.negatives_weighting` from the first step of a small multi-context ConveRT with random weights,
        two layers of 256, on all training pairs of each set: three passes in batches of 128, the version with the best
        R@1 on 500 development lists. R@1 of 100, all test examples once, with 95% intervals over dialogues (examples
        on ubuntu-irc); after a semicolon, the paired difference from `"as_said"` with the same seed. Of several seeds,
        the mean, and each one's figures. In fp32 on one busy core of an AMD EPYC (AVX2). Made by `bash
        runs/weighting_training.sh`:""",
        table(["set", "pairs", *(f'`"{value}"`' for value in VALUES)], rows, (1,)),
    )


def _seeds(name: str, value: str) -> list[Result]:
    results = [read_if_there(f"weighting/{name}/convert/{value}/{seed}") for seed in SEEDS]
    return [result for result in results if result]


def _cell(results: list[Result]) -> str:
    tests = [result["against"] for result in results if "against" in result]
    if len(results) == 1:
        text = share(results[0])
        return text + "".join(f"; {change(test['difference'])}, {p_value(test['p'])}" for test in tests)
    figures = [result["metrics"]["R@1"] for result in results]
    text = f"{percent(fmean(figures))} (seeds: {', '.join(map(percent, figures))})"
    if tests:
        differences = ", ".join(change(test["difference"]) for test in tests)
        text += f"; {differences}, largest {p_value(max(test['p'] for test in tests))}"
    return text
