"""The best results on each corpus with two cores, from runs/best.sh: more pairs, sums, given wrong answers."""

from report.figures import Result, change, compared, ms, p_value, read_if_there, section, share, table

CORRECTED = {"star": "logq-all", "sgd": "logq-more", "self-dialogue": "logq"}
"""The Bi-encoder with corrected frequencies that is best on development lists."""

SETS = {
    "star": "1 of 100",
    "sgd": "1 of 100",
    "ubuntu-irc": "1 of 100",
    "self-dialogue": "1 of 100",
    "convai2-valid": "1 of 20",
    "mutual": "1 of 4",
    "medquad": "of 15,805",
}
MODELS = {
    "bi": "Bi-encoder",
    "convert": "ConveRT",
    "sum-shipped": "sum of that Bi-encoder and `shipped:convert`",
    "sum": "sum of both",
    "bi-all": "Bi-encoder, all pairs",
    "convert-all": "ConveRT, all pairs",
    "sum-all": "sum of both, all pairs",
    "bi-wide": "Bi-encoder in batches of 256",
    "sum-wide": "sum of both Bi-encoders and ConveRT",
    "logq": "Bi-encoder, frequencies corrected",
    "logq-all": "Bi-encoder, frequencies corrected, all pairs",
    "late": "its 25 best, re-ranked by a late Cross-encoder",
    "logq-more": "the Bi-encoder, trained further on pairs drawn from all",
    "sum-first": "sum of the first of these Bi-encoders and ConveRT",
    "sum-more": "sum of both of these Bi-encoders and ConveRT of all pairs",
    "sum-late": "its 25 best, re-ranked by the late Cross-encoder",
    "scratch": "ConveRT from random weights, all pairs",
    "counts": "reply frequency alone",
    "sum-logq": "sum of both and of counts",
    "sum-logq-all": "sum of both and of counts",
    "sum-logq-more": "sum of the one trained further, of ConveRT and of counts",
    "sum-four": "sum of that Bi-encoder, of it trained further, of ConveRT and of counts",
    "passes": "Bi-encoder, three passes",
    "bi-2": "Bi-encoder, another seed",
    "bi-3": "Bi-encoder, a third seed",
    "sum-seeds": "sum of both Bi-encoders and ConveRT",
    "joint": "sum of both, parts trained together",
    "bi-more": "the Bi-encoder, trained further",
    "uniform": "the Bi-encoder, trained further with an earlier frequency correction",
    "uniform-3": "the same, another seed",
    "uniform-4": "the same, a third seed",
    "lists": "the Bi-encoder, trained further on lists of random wrong answers",
    "distilled": "the Bi-encoder, trained further on lists of 32 scored by the sum",
    "poly-64": "a Poly-encoder of 64 codes from it, trained as long",
    "sentence-transformers-matched": "sentence-transformers, from MiniLM",
    "cross": "Cross-encoder on the given wrong answers",
    "shipped": "`shipped:minilm`, not trained further",
    "unmined": "Bi-encoder, with the other answers of the batch only",
    "mined": "Bi-encoder, with a mined wrong answer for each context",
    "half": "likewise, on every second pair",
    "half-late": "its ten best, re-ranked by a late Cross-encoder of the other half",
}


def best() -> str:
    """One table for all sets; each row is a model of a set."""
    results = {name: {key: read_if_there(f"best/{name}/{key}") for key in MODELS} for name in SETS}
    rows = [
        [name if key == first_of(row) else "", MODELS[key], *training_cost(name, key), share(one), test(one)]
        for name, row in results.items()
        for key, one in row.items()
        if one
    ]
    if not rows:
        return ""
    return section(
        "More pairs, and two encoders as one",
        """Bi-encoders start from the first pass of `shipped:minilm` ([one encoder for several
        corpora](#one-encoder-for-several-corpora)), ConveRTs from `shipped:convert`, on random batches of 64 pairs
        (ConveRT: 256), one pass (convai2-valid two, ConveRT three), one seed, bf16, on one busy core. The Cross-encoder
        of mutual starts from MiniLM after [an hour of masked words and next
        utterances](#post-training-on-dialogues-without-labels), three passes over the training part, in which every
        context has one right answer and three that people wrote as wrong ones. sentence-transformers starts from the
        original MiniLM, with left truncation and polyrank's learning rate, which did better than its defaults in [a
        sixth of the pairs](#a-sixth-of-the-pairs), so its difference is also one of starts: it is smaller from [the
        same start](#the-same-start-and-pairs-in-three-libraries). R@1 of all test examples with 95% intervals; for
        mutual, whose test answers are withheld, of its dev part. The last column is the paired difference from the
        set's Bi-encoder, and that of MRR. Models of all pairs are compared with those of fewer, their sum with the sum
        of those, and the Poly-encoder with the Bi-encoder trained as long on the same pairs. A sum's weights come from
        300 dev lists (of three parts, from 1,994; on convai2-valid, 777). Bi-encoders with corrected frequencies
        (`negatives_weighting = "logq"`) and those of convai2-valid start from `shipped:minilm` itself; sums of these
        are compared with them. These, ConveRTs from random weights, counts and the models of medquad and convai2-valid
        are in fp32 on one core of an AMD EPYC (AVX2), with intervals over dialogues; the weights of their sums come
        from 1,000 dev lists. Those of sums of four are fitted by maximum likelihood to 3,000 dev lists, as `polyrank
        sum` does now; the others come from an earlier search for the best MRR. The sum of four of sgd is compared with
        its best part, the Bi-encoder trained further. On star that Bi-encoder, after 24,000 more pairs (64 minutes),
        does not rank better alone (78.0 instead of 77.8 on 1,000 dev lists).
        medquad: hits@1 of the first 1,000 test questions, from `shipped:minilm` itself, 64 + 128 tokens; each pair may
        add one mined wrong answer to those of the batch, drawn from the ranks 2 to 20 of the first weights; the one
        without is compared with it. Late Cross-encoders correct the scores of the Bi-encoder that they are compared
        with. That of medquad is trained once on the pairs that its Bi-encoder has not seen, with eight wrong answers of
        the Bi-encoder's twelve best (no Bi-encoder was trained on both halves, so part of the gain may be that of more
        pairs); the others on pairs drawn from all, with the best eight of 300 random wrong answers, if the right one is
        among the best nine. On star these are drawn from the distinct replies, and the Bi-encoder has seen all pairs;
        on self-dialogue they are drawn as often as they were said, and it has seen a seventh. Made by
        `MODELS="bi convert sum sum-shipped bi-all convert-all sum-all logq logq-all logq-more scratch counts sum-logq
        sum-logq-all sum-logq-more bi-wide sum-wide joint bi-more uniform distilled poly-64 cross library" bash
        runs/best.sh`, and `SETS=medquad LIMIT=1000 MODELS="shipped mined unmined half half-late"` and
        `SETS=self-dialogue MODELS="logq late" BUDGET=46080 LATE=8000 DRAW=as_said`, `SETS=self-dialogue
        MODELS="convert sum-first"`, then `MODELS="logq-more convert-all sum-more sum-late"
        MORE=24000 EPOCHS=1`, `SETS=convai2-valid MODELS="bi bi-2 convert sum-shipped sum-seeds"` and `SETS=star
        MODELS=late FIRST=logq-all LATE=6400` and `SETS=star FROM=logq-all MORE=24000 MODELS="logq-more sum-four"` and
        `SETS=sgd AGAINST=logq-more MODELS=sum-four`.""",
        table(["set", "model", "training pairs", "minutes", "R@1", "difference"], rows, (2, 3)),
        *weights(),
        *as_one_index(),
    )


def weights() -> list[str]:
    """The best weight of a second stage, as runs/second_weight.py measures it."""
    said, uniform, sgd = (read_if_there(f"second/weight/{kind}") for kind in ("as_said", "uniform", "sgd"))
    if not (said and uniform and sgd):
        return []
    return [
        f"""Wrong answers must be drawn as they occur. The late Cross-encoder of self-dialogue is best added with the
        weight {said["weight"]:.2f} ({said["n"]} dev lists). One whose wrong answers come from the distinct replies
        (`LATE=9600 DRAW=uniform`) is best added with {uniform["weight"]:.2f}: it gives frequent replies high scores,
        and in these lists they are not right more often. Made by `python runs/second_weight.py FIRST SECOND
        DATA/self-dialogue/dev.jsonl.gz --limit 400`.""",
        f"""A second stage does not help on sgd, although the Bi-encoder has seen only a quarter of the pairs (`SETS=sgd
        MODELS=late LATE=8000 DRAW=as_said`). Its best weight is {sgd["weight"]:.2f}. With weight 1, R@1 falls from
        {100 * sgd["R@1_first"]:.1f} to {100 * sgd["R@1_both"]:.1f}. Both are of {sgd["n"]:,} dev lists (`--limit
        {sgd["n"]}`); it was not evaluated on test data.""",
    ]


def corrected(name: str, kind: str = "") -> Result | None:
    """The Bi-encoder with corrected frequencies; "sum-": its sum with a ConveRT from random weights and counts."""
    return read_if_there(f"best/{name}/{kind}{CORRECTED.get(name)}")


def summed(name: str) -> Result | None:
    """The best sum: of one or two Bi-encoders and a ConveRT, on star and sgd with counts."""
    found = (read_if_there(f"best/{name}/{kind}") for kind in ("sum-more", "sum-four", "sum-seeds", "sum-wide"))
    return next((one for one in found if one), None) or corrected(name, "sum-")


def as_one_index() -> list[str]:
    """Searching a sum, as runs/sum_index.py measures it."""
    if not (found := read_if_there("sum-index")):
        return []
    times = ", ".join(
        f"{name} ({found['dimensions'][name]} dimensions) {ms(one)} ms" for name, one in found["ms"].items()
    )
    return [
        f"""A sum is searched as one index: for {found["same_ten"]:,} of {found["n_contexts"]:,} contexts, the ten best
        of {found["n_candidates"]:,} candidates equal those of two separate passes added up. One context's ten best,
        search alone, one thread: {times}. Made by `python runs/sum_index.py DATA`."""
    ]


def first_of(row: dict[str, Result | None]) -> str:
    """The first model with a result."""
    return next(key for key, one in row.items() if one)


def training_cost(name: str, key: str) -> tuple[str, str]:
    """Training pairs and minutes; sentence-transformers has both in its result."""
    if fit := read_if_there(f"best/{name}/{key}.fit"):
        return f"{fit['n_examples']:,}", f"{fit['seconds'] / 60:.0f}"
    one = read_if_there(f"best/{name}/{key}") or {}
    return (f"{one['budget']:,}", f"{one['train_seconds'] / 60:.0f}") if "budget" in one else ("", "")


def test(result: Result) -> str:
    """The paired test, if any."""
    if not (against := result.get("against")):
        return ""
    mrr = next((one for one in against.get("others", ()) if one["metric"] == "MRR"), None)
    return compared(against) + (f"; MRR {change(mrr['difference'])}, {p_value(mrr['p'])}" if mrr else "")
