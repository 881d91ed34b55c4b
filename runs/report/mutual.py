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
        rows.append(["MRR of the last", *mrrs])
    return section(
        "Mutual learning",
        """Do two networks rank better if each also learns from the other's predictions (T = 3, alpha = 1)? The
        Bi-encoder and a late Cross-encoder, which joins its two upper layers, start from `shipped:minilm`. They first
        learn apart from 3,200 lists, then from as many again, apart or together: the same lists of a reply and seven
        others, drawn as often as they were said, in the same order. R@1 of 100, all test lists (of the re-ranker the
        first 1,000), means of three seeds with 95% intervals over dialogues where ids name them; after a semicolon
        the paired difference from training apart, its interval and p. 64 + 32 tokens, fp32, one thread of an AMD EPYC
        (AVX2). Made by `bash runs/mutual_seeds.sh`:""",
        table(["", *there], rows),
        *_earlier(),
    )


def _gain(tests: Result, metric: str) -> str:
    if not tests:
        return ""
    low, high = tests[metric]["interval"]
    return f"; {change(tests[metric]['difference'])} ({change(low)} to {change(high)}), p = {tests[metric]['p']:.2g}"
