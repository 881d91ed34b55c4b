"""Mutual learning: over three seeds from the shipped encoder, and an earlier run from MiniLM."""

from report.figures import (
    Result,
    change,
    compared,
    last_valid_loss,
    percent,
    read,
    read_if_there,
    section,
    share,
    table,
)

NETWORKS = {"retriever": "Bi-encoder", "reranker": "late Cross-encoder, 25 best of the first Bi-encoder"}
SEEDS_SETS = ("star", "sgd", "ubuntu-irc")
SETS = ("star", "ubuntu-irc")


def mutual_learning() -> str:
    """Trained together or apart, on the same lists."""
    there = {name: found for name in SEEDS_SETS if (found := read_if_there(f"mutual-seeds/{name}"))}
    rows = [["the first Bi-encoder", *(share(found["first"]) for found in there.values())]]
    for network, title in NETWORKS.items():
        for how in ("apart", "together"):
            tests = [found[network]["tests"] if how == "together" else {} for found in there.values()]
            cells = [share(found[network][how]) for found in there.values()]
            rows.append(
                [f"{title}, {how}", *(cell + _gain(test, "R@1") for cell, test in zip(cells, tests, strict=True))]
            )
        mrrs = [
            share(found[network]["together"], "MRR") + _gain(found[network]["tests"], "MRR") for found in there.values()
        ]
        rows.append(["its MRR", *mrrs])
    seeds = "; ".join(f"{name} {_by_seed(found)}" for name, found in there.items())
    return section(
        "Mutual learning",
        """Do two networks rank better if each also learns from the other's predictions (T = 3, alpha = 1)? The
        Bi-encoder and a late Cross-encoder, which joins its two upper layers, start from `shipped:minilm`. They first
        learn apart from 3,200 lists, then from as many again, apart or together: the same lists of a reply and seven
        others, drawn as often as they were said, in the same order. R@1 of 100, all test lists, means of three
        seeds with 95% intervals over dialogues where ids name them; after a semicolon
        the paired difference from training apart, its interval and p. 64 + 32 tokens, fp32, one thread of an AMD EPYC
        (AVX2). Made by `bash runs/mutual_seeds.sh`:""",
        table(["", *there], rows),
        f"""The Bi-encoder's differences by seed: {seeds}.
        So mutual learning can help, and does not help everywhere: where an interval ends below 1 point, a gain of 1
        point would have been seen. The re-ranker alone is far worse than the Bi-encoder, so the gain is not that of a
        better teacher; whether softer targets alone would do as well was not tested.""",
        *_earlier(),
    )


def _by_seed(found: Result) -> str:
    apart, together = (found["retriever"][how]["by_seed"] for how in ("apart", "together"))
    return ", ".join(change(b["R@1"] - a["R@1"]) for a, b in zip(apart, together, strict=True))


def _gain(tests: Result, metric: str) -> str:
    if not tests:
        return ""
    low, high = tests[metric]["interval"]
    return f"; {change(tests[metric]['difference'])} ({change(low)} to {change(high)}), p = {tests[metric]['p']:.2g}"


def _earlier() -> list[str]:
    """One seed, a full Cross-encoder, from MiniLM."""
    many = {name: [read(f"mutual/{name}/{key}") for key in ("bi-many", "bi-mutual-many")] for name in SETS}
    cross = [compared(read(f"mutual/{name}/cross-mutual")["against"]) for name in SETS]
    few = [
        read(f"mutual/star-640/{name}")
        for name in ("bi-many", "bi-mutual-many", "bi-heavy", "cross-heavy", "bi-distilled")
    ]
    gaps = [read(f"mutual/{name}/ensemble")["tests"]["cross against bi"] for name in ("star-640", "star")]
    loss = [last_valid_loss(f"mutual/star/{name}") for name in ("bi", "bi-mutual")]

    def instead(pair: list[Result]) -> str:
        apart, together = (percent(result["metrics"]["R@1"]) for result in pair)
        return f"{together} instead of {apart} ({compared(pair[1]['against'])})"

    return [
        f"""An earlier run of one seed had MiniLM as the start of a Bi-encoder and a full Cross-encoder, which first
        trained apart on 4,000 contexts with 8 candidates each, then once more on the same, apart or together (64 + 32
        tokens, bf16 on one core with AMX; where the paper has projections and a tanh head, the Bi-encoder uses the
        mean of outputs and the Cross-encoder a linear head on the first). The Bi-encoder's R@1 of the first 1,000 test
        examples was {instead(many["star"])} on star and {instead(many["ubuntu-irc"])} on ubuntu-irc; the
        Cross-encoder's, of 300, changed by {cross[0]} and {cross[1]}. On held-out lists of star the Bi-encoder's loss
        was {loss[1]:.2f} instead of {loss[0]:.2f}: mutual learning makes scores less extreme. Made by `BUDGET=4000
        NEGATIVES=7 VALID=60 LIMIT=300 bash runs/mutual.sh`; validation by epoch:
        [star](../runs/results/mutual-star-curves-mutual.svg),
        [ubuntu-irc](../runs/results/mutual-ubuntu-irc-curves-mutual.svg).""",
        f"""With a sixth of the contexts (640), the Cross-encoder was further behind the Bi-encoder on star
        ({compared(gaps[0])}; {compared(gaps[1])} with 4,000), and the Bi-encoder gained nothing measurable:
        {instead(few[:2])}. With nine times the weight on the KL (`TAG=heavy EXTRA="--set train.method.alpha=9"`) both
        were lower, not significantly ({compared(few[2]["against"])} and {compared(few[3]["against"])}); with a ConveRT
        tuned on star as a frozen teacher the Bi-encoder had {percent(few[4]["metrics"]["R@1"])} of
        {few[4]["n_examples"]} examples ({compared(few[4]["against"])}). [Data](../runs/results/mutual.jsonl).""",
    ]
