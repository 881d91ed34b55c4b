"""Encoders corrected for hubs, as runs/hubs.sh measures it."""

from report.best import SETS
from report.figures import Result, compared, gain, listed, percent, read_if_there, section, share, table, trials

ENCODERS = {
    "untuned": "MiniLM, untuned",
    "shipped": "`shipped:minilm`",
    "trained": "Bi-encoder of the set",
}


def hubs() -> str:
    """A row for each set and encoder."""
    rows, found = [], {name: trials(f"hubs/{name}", ENCODERS, "hubs") for name in SETS}
    for name, results in found.items():
        for number, (key, (alone, corrected, fit)) in enumerate(results.items()):
            title = f"{name} ({SETS[name]})" if number == 0 else ""
            shares = [share(alone), f"{share(corrected)}; {compared(corrected['against'])}"]
            rows.append([title, ENCODERS[key], *shares, f"{fit['weight']:.2f}", f"{fit['scale']:.2g}"])
    if not rows:
        return ""
    shipped = "; ".join(
        f"{name} {gain(results['shipped'][1]['against'])}" for name, results in found.items() if "shipped" in results
    )
    return section(
        "Correction for hubs",
        f"""Does it help to subtract the score that a candidate has in other contexts? On chats that an encoder was not
        trained on, yes. `polyrank hubs` changes R@1 of `shipped:minilm` by: {shipped}. It needs contexts of the corpus,
        but no right answers for them. With reply counts in addition, without any training: {_rises(found)}. Bi-encoders
        that were trained on many pairs of the set gain little.{_lower_ranks(found)}""",
        listed(
            """Models: `polyrank hubs` subtracts w H, where H is the logarithm of the mean of exp(a g) over 1,000
            contexts of the training part, divided by a. 500 dev lists choose the scale a and the weight w (mutual:
            training lists; medquad: lists drawn from training pairs). The Bi-encoders of star and sgd are those of
            "one pass" in the last table of [both stages on all pairs](#both-stages-on-all-pairs), that of convai2-valid
            is the one from the third pass in [more pairs](#more-pairs-and-two-encoders-as-one).
            `shipped:minilm` was trained on the training parts of star, ubuntu-irc and self-dialogue.""",
            """Evaluation: R@1 of the first 1,000 test examples with 95% intervals (star's Bi-encoder: all; mutual:
            886 of its dev part; medquad: hits@1 in the pool). After a semicolon: the paired difference from the
            encoder alone, over dialogues where examples have some.""",
            """Machine and command: bf16 on one busy core of an AMD EPYC (AVX-512 with bf16); `LIMIT=1000 bash
            runs/hubs.sh`, with `MODELS="trained=runs/work/halves/SET/all/model"` for star and sgd;
            [data](../runs/results/hubs.jsonl).""",
        ),
        table(["set", "encoder", "R@1 alone, %", "corrected", "w", "a"], rows, (4, 5)),
        *_with_counts(),
        *_of_sum(),
    )


def _of_sum() -> list[str]:
    """The best sum of convai2-valid, corrected."""
    if not (found := read_if_there("best/convai2-valid/hubs-160")):
        return []
    return [
        f"""A sum that is already good gains nothing: the best one of convai2-valid changes by {gain(found["against"])}
        ([more pairs](#more-pairs-and-two-encoders-as-one))."""
    ]


def _lower_ranks(found: dict[str, dict[str, tuple[Result, Result, Result]]]) -> str:
    """The difference in R@5 on medquad."""
    if "shipped" not in found["medquad"]:
        return ""
    others = found["medquad"]["shipped"][1]["against"]["others"]
    test = next(one for one in others if one["metric"] == "R@5")
    return f" On medquad, whose answers are articles, only lower ranks gain (R@5 {gain(test)})."


def _rises(found: dict[str, dict[str, tuple[Result, Result, Result]]]) -> str:
    """R@1 of the shipped encoder alone, and with both corrections."""
    texts = []
    for name, results in found.items():
        both = read_if_there(f"hubs/{name}/shipped-both")
        if both and "shipped" in results:
            before, after = (percent(one["metrics"]["R@1"]) for one in (results["shipped"][0], both))
            texts.append(f"{name} {before} to {after}")
    return ", ".join(texts)


def _with_counts() -> list[str]:
    """Both corrections together; nothing without results."""
    rows = []
    for name in SETS:
        counts, both = (read_if_there(f"hubs/{name}/shipped-{kind}") for kind in ("counts", "both"))
        if counts and both:
            rows.append([f"{name} ({SETS[name]})", share(counts), f"{share(both)}; {compared(both['against'])}"])
    if not rows:
        return []
    return [
        """Where replies repeat, hubs are often frequent replies, which are right more often, so w is small. Subtract
        all of H and then [add the counts](#a-prior-over-replies): the first are log-odds over any context, the second
        is the logarithm of how likely the reply is in any context. `shipped:minilm` with counts, whose weight 500 dev
        lists choose, and the same with w = 1 (`COUNTS=1 SETS="star sgd" MODELS=shipped=shipped:minilm`):""",
        table(["R@1, %", "with counts", "corrected, with counts"], rows),
    ]
