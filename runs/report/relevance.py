"""How well ``relevance_score`` is calibrated, as runs/relevance.py measures it."""

from report.figures import listed, percent, read_if_there, section, table

MODELS = ("convert", "minilm", "late", "rerank")
SETS = ("star", "sgd", "self-dialogue", "ubuntu-irc")


def relevance() -> str:
    """The calibration error of each shipped model on held-out lists, and which replies pass 0.5."""
    rows, errors = [], []
    for model in MODELS:
        found = [one for name in SETS if (one := read_if_there(f"relevance/{model}/{name}"))]
        if len(found) < len(SETS):
            continue
        errors += [one["ece"] for one in found]
        shares = [f"{one['ece']:.3f}; {percent(one['right'])} / {100 * one['wrong']:.2f}" for one in found]
        fit = found[0]["fit"]
        rows.append([f"`shipped:{model}`", f"{fit['scale']:.3f}, {fit['offset']:.2f}", *shares])
    if not rows:
        return ""
    return section(
        "Relevance",
        f"""Is `relevance_score` a probability? On held-out lists of four sets, the expected calibration error (ten
        equal bins) of the shipped models is at most {max(errors):.3f}. It is the probability that a reply is the only
        right one of 40; `polyrank tune` fits it to your own lists.""",
        listed(
            """Fit: a scale and an offset for all sets together, on development lists of the right reply and 39 wrong
            ones, 60 of each set (late and rerank: 40).""",
            """Evaluation: as many test lists, with all 100 candidates. A cell has the error; then the percentages of
            right and of wrong replies at 0.5 or above.""",
            """Limitation: a weak model is rarely sure. Few right replies of `shipped:convert` reach 0.5, because 39
            others often hold one that it scores as high.""",
            "Command: `python runs/relevance.py`; [data](../runs/results/relevance.jsonl).",
        ),
        table(["model", "scale, offset", *SETS], rows),
    )
