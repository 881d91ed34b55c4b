"""What `polyrank fit` reaches within some minutes."""

from report.figures import percent, read_if_there, section, share, table

SETS = ("sgd", "star", "ubuntu-irc", "self-dialogue", "convai2-valid")


def fitted() -> str:
    """One row for each corpus that was run."""
    found = {name: result for name in SETS if (result := read_if_there(f"fit/{name}"))}
    rows = []
    for name, result in found.items():
        alone = {line["step"]: line["metrics"] for line in result["lines"] if line["metrics"]}
        chosen = ", ".join(row["name"] for row in result["terms"] if row["weights"])
        shipped = percent(alone["shipped:minilm"]["R@1"]["mean"])
        valid = percent(result["chosen"]["metrics"]["R@1"]["mean"])
        minutes = f"{result['settings']['minutes']:g}, used {result['settings']['used']:.1f}"
        test = result["test"]
        rows.append([name, minutes, share(test["BM25"]), shipped, valid, share(test["ranker"]), chosen])
    if not rows:
        return ""
    killed = read_if_there("fit-kills/sample")
    kills = (
        f"""Killed at {sum(killed["kills"].values())} random moments and resumed, {killed["equal"]} of
        {killed["fits"]} fits of a part of the sample gave the same ranker, trained models and figures, bit for bit:
        `python runs/killed_fit.py`."""
        if killed
        else ""
    )
    return section(
        "One command",
        """How good is the ranker of `polyrank fit` from 3,000 training pairs? Its choices are made on the first 1,000
        development lists; the first 600 test lists are ranked once.""",
        """- An expert's commands of an earlier version reached R@1 50.7 of the same 600 lists of sgd from 3,008
  pairs, in 16.7 minutes of the processor. In eight minutes, without a training, `fit` reaches 44.7.
- The lists of ubuntu-irc come from a few logs, hence its wide interval. Trained models that are not among the terms
  did not help measurably.
- Machine: AMD EPYC (AVX-512), one thread (the last two sets: two), with up to twenty other processes, which
  lengthen the minutes of the processor too.
- Command: `python runs/fit.py`.""",
        *filter(None, [kills]),
        table(
            ["R@1, %", "minutes", "BM25", "shipped:minilm, validation", "ranker, validation", "ranker, test", "terms"],
            rows,
            (1, 2, 3, 4, 5),
        ),
    )
