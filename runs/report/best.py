"""The best results on each corpus with two cores, from runs/best.sh: more pairs, sums, given wrong answers."""

from report.figures import Result, change, compared, listed, p_value, percent, read_if_there, section, share, table

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
    "sum": "sum of Bi-encoder and ConveRT",
    "bi-all": "Bi-encoder, all pairs",
    "convert-all": "ConveRT, all pairs",
    "sum-all": "sum of Bi-encoder and ConveRT, all pairs",
    "bi-wide": "Bi-encoder in batches of 256",
    "sum-wide": "sum of both Bi-encoders and ConveRT",
    "logq": "Bi-encoder, frequencies corrected",
    "logq-all": "Bi-encoder, frequencies corrected, all pairs",
    "late": "the 25 best of that Bi-encoder, re-ranked by a late Cross-encoder",
    "logq-more": "Bi-encoder, frequencies corrected, trained further on pairs drawn from all",
    "sum-first": "sum of the first Bi-encoder with corrected frequencies and ConveRT",
    "sum-more": "sum of both Bi-encoders with corrected frequencies and ConveRT of all pairs",
    "sum-late": "the 25 best of that sum, re-ranked by the late Cross-encoder",
    "scratch": "ConveRT from random weights, all pairs",
    "counts": "reply frequency alone",
    "sum-logq": "sum of Bi-encoder with corrected frequencies, ConveRT from random weights and counts",
    "sum-logq-all": "sum of Bi-encoder with corrected frequencies, ConveRT from random weights and counts",
    "sum-logq-more": "the same sum with the Bi-encoder trained further",
    "sum-four": "the same sum with both this Bi-encoder and the one trained further",
    "passes": "Bi-encoder, three passes",
    "bi-2": "Bi-encoder, another seed",
    "bi-3": "Bi-encoder, a third seed",
    "sum-seeds": "sum of both Bi-encoders and ConveRT",
    "sum-three": "sum of both and the one of [both stages](#both-stages-on-all-pairs), last table",
    "sum-general": "the same with the third pass of `shipped:minilm` itself",
    "third": "Bi-encoder from the third pass of `shipped:minilm`, frequencies corrected",
    "third-2": "the same, another seed",
    "sum-third": "sum of both and ConveRT",
    "both-160": "Bi-encoder of both speakers' pairs, which reads 160 tokens, frequencies corrected",
    "sum-160": "sum of the last three Bi-encoders and ConveRT",
    "bi-more": "the Bi-encoder, trained further",
    "uniform": "the Bi-encoder, trained further with an earlier frequency correction",
    "uniform-3": "the same, another seed",
    "uniform-4": "the same, a third seed",
    "lists": "the Bi-encoder, trained further on lists of random wrong answers",
    "distilled": "the Bi-encoder, trained further on lists of 32 scored by the sum",
    "poly-64": "a Poly-encoder of 64 codes from the Bi-encoder, trained as long",
    "sentence-transformers-matched": "sentence-transformers, from MiniLM",
    "given": "Bi-encoder on the given wrong answers",
    "given-2": "Bi-encoder on the given wrong answers, another seed",
    "given-3": "the same, a third seed",
    "sum-given": "sum of the three, with equal weights",
    "cross": "Cross-encoder on the given wrong answers",
    "shipped": "the second pass of `shipped:minilm`, not trained further",
    "unmined": "Bi-encoder, with the other answers of the batch only",
    "mined": "Bi-encoder, with a mined wrong answer for each context",
    "half": "Bi-encoder, with mined wrong answers, on every second pair",
    "half-late": "the ten best of that Bi-encoder, re-ranked by a late Cross-encoder of the other half",
}


def best() -> str:
    """One table for all sets; each row is a model of a set."""
    results = {name: {key: read_if_there(f"best/{name}/{key}") for key in MODELS} for name in SETS}
    rows = []
    for name, row in results.items():
        numbers = {key: str(number) for number, key in enumerate((key for key in row if row[key]), 1)}
        for key, number in numbers.items():
            one = row[key] or {}
            cells = [*training_cost(name, key), share(one), numbers.get(against(one), ""), test(one)]
            rows.append([name if number == "1" else "", number, MODELS[key], *cells])
    if not rows:
        return ""
    return section(
        "More pairs, and two encoders as one",
        f"""How much do more pairs, sums of encoders and second stages raise R@1? From the first model of each set in
        the table to the best one on its test lists: {_rises(results)}.""",
        "Unless the next list states otherwise, models are trained in this way:",
        listed(
            """Bi-encoders start from the first pass of `shipped:minilm` ([one encoder for several
            corpora](#one-encoder-for-several-corpora)), on random batches of 64 pairs, for one pass (convai2-valid:
            two).""",
            """ConveRTs start from `shipped:convert`, on random batches of 256 pairs, for three passes (all pairs of
            self-dialogue: one).""",
            "One seed, bf16, one busy core. The column of training pairs counts a pair once for each pass.",
        ),
        "These models differ:",
        listed(
            """Bi-encoders with corrected frequencies (`negatives_weighting = "logq"`) and those of convai2-valid start
            from `shipped:minilm` itself.""",
            """medquad: models start from the second pass of `shipped:minilm`, which has 59.0 where the third has 55.9,
            with 64 + 128 tokens. Each pair may add one mined wrong answer to those of the batch, drawn from the ranks 2
            to 20 of the initial weights.""",
            """Late Cross-encoders correct the scores of the first stage. On medquad, they are trained once on the pairs
            that the Bi-encoder has not seen, with eight wrong answers of the Bi-encoder's twelve best. On star and
            self-dialogue, they are trained on pairs drawn from all, with the best eight of 300 random wrong answers, if
            the right one is among the best nine. On star, these are drawn from the distinct replies, and the Bi-encoder
            has seen all pairs. On self-dialogue, they are drawn as often as they were said, and the Bi-encoder has seen
            a seventh of the pairs.""",
            """sentence-transformers starts from the original MiniLM, with left truncation and polyrank's learning rate,
            which did better than its defaults in [a sixth of the pairs](#a-sixth-of-the-pairs). Its difference is
            therefore also one of starts: it is smaller from [the same
            start](#the-same-start-and-pairs-in-three-libraries).""",
            """Bi-encoders with corrected frequencies and sums of them, ConveRTs from random weights, counts and the
            models of medquad and convai2-valid are in fp32 on one core of an AMD EPYC (AVX2); the Bi-encoders from the
            third pass and that of both speakers' pairs are in bf16 on one with AVX-512. The other speaker of
            convai2-valid has no background.""",
            *_mutual(),
        ),
        "The weights of a sum come from dev lists:",
        listed(
            """sums of two encoders: 300 lists; of two Bi-encoders and a ConveRT: 1,994 on ubuntu-irc, 777 on
            convai2-valid""",
            "sums of Bi-encoders with corrected frequencies: 1,000 lists",
            """sums of four: 3,000 lists, by maximum likelihood, as `polyrank tune` does. All other weights come from
            an earlier search for the best MRR.""",
        ),
        """Evaluation: R@1 of all test examples with 95% intervals; on medquad, hits@1 of the first 1,000 test
        questions. Intervals are over dialogues for the models in fp32 (except on medquad) and for the ConveRT of all
        pairs of self-dialogue. The last columns are the row of the same set that a model is compared with, and the
        paired difference in R@1, then in MRR. Commands (`bash runs/best.sh` with these settings):""",
        listed(
            """`MODELS="bi convert sum sum-shipped bi-all convert-all sum-all logq logq-all logq-more scratch counts
            sum-logq sum-logq-all sum-logq-more bi-wide sum-wide bi-more uniform distilled poly-64 cross
            library"`""",
            """`SETS=star MODELS=late FIRST=logq-all LATE=6400` and `SETS=star FROM=logq-all MORE=24000
            MODELS="logq-more sum-four"`""",
            "`SETS=sgd AGAINST=logq-more MODELS=sum-four`",
            """`SETS=self-dialogue MODELS="logq late" BUDGET=46080 LATE=8000 DRAW=as_said`, `SETS=self-dialogue
            MODELS="convert sum-first"`, then `MODELS="logq-more convert-all sum-more sum-late" MORE=24000 EPOCHS=1`""",
            """`SETS=convai2-valid MODELS="bi bi-2 convert sum-shipped sum-seeds third third-2 sum-third"`""",
            """`SETS=convai2-valid START=runs/work/encoder/average MODELS="both-160 sum-160"`""",
            """`SETS=ubuntu-irc START=runs/work/encoder/pass1 BUDGET=100000000 MODELS="bi-2 bi-3 sum-three
            sum-general"`, whose last part dev lists choose among six""",
            """`SETS=medquad LIMIT=1000 MODELS="shipped mined unmined half half-late"`""",
            """`SETS=mutual MODELS="given given-2 given-3 sum-given"`, and `SETS=mutual MODELS=cross
            BACKBONE=runs/work/pretraining/post/run/model`""",
        ),
        table(
            ["set", "row", "model", "training pairs", "minutes", "R@1", "against row", "difference"], rows, (1, 3, 4, 6)
        ),
        """medquad: no Bi-encoder was trained on both halves, so part of the second stage's gain may be that of more
        pairs. star: the Bi-encoder with corrected frequencies, trained further on 24,000 pairs (64 minutes), does not
        rank better alone (78.0 instead of 77.8 on 1,000 dev lists).""",
        *weights(),
    )


def weights() -> list[str]:
    """The best weight of a second stage, as runs/second_weight.py measures it."""
    said, uniform, sgd = (read_if_there(f"second/weight/{kind}") for kind in ("as_said", "uniform", "sgd"))
    if not (said and uniform and sgd):
        return []
    return [
        f"""How must a late Cross-encoder's wrong answers be drawn? As they occur in use. On self-dialogue, the best
        weight of its scores is {said["weight"]:.2f} if wrong answers are drawn as often as they were said, and
        {uniform["weight"]:.2f} if they come from the distinct replies (`LATE=9600 DRAW=uniform`; {said["n"]} dev
        lists). Such a re-ranker gives frequent replies high scores, and in these lists they are not right more often.
        Command: `python runs/second_weight.py FIRST SECOND DATA/self-dialogue/dev.jsonl.gz --limit 400`.""",
        f"""On sgd, a second stage does not help, although the Bi-encoder has seen only a quarter of the pairs
        (`SETS=sgd MODELS=late LATE=8000 DRAW=as_said`). The second stage's best weight is {sgd["weight"]:.2f}. With
        weight 1, R@1 falls from {100 * sgd["R@1_first"]:.1f} to {100 * sgd["R@1_both"]:.1f}. These figures are of
        {sgd["n"]:,} dev lists (`--limit {sgd["n"]}`); the second stage was not evaluated on test data.""",
    ]


def corrected(name: str, kind: str = "") -> Result | None:
    """The Bi-encoder with corrected frequencies; "sum-": its sum with a ConveRT from random weights and counts."""
    return read_if_there(f"best/{name}/{kind}{CORRECTED.get(name)}")


def summed(name: str) -> Result | None:
    """The best sum on the test lists: of one to three Bi-encoders and a ConveRT, on star and sgd with counts."""
    kinds = ("sum-more", "sum-four", "sum-seeds", "sum-wide", "sum-third", "sum-three", "sum-general", "sum-160")
    found = [read_if_there(f"best/{name}/{kind}") for kind in kinds] + [read_if_there(f"halves/{name}/sum")]
    known = [one for one in found if one] or [one for one in [corrected(name, "sum-")] if one]
    return max(known, key=lambda one: float(one["metrics"]["R@1"]), default=None)


def _rises(results: dict[str, dict[str, Result | None]]) -> str:
    """R@1 of the first and of the best model of each set."""
    texts = []
    for name, row in results.items():
        figures = [float(one["metrics"]["R@1"]) for one in row.values() if one]
        if len(figures) == 1:
            texts.append(f"{name} {percent(figures[0])} (one model)")
        elif figures:
            texts.append(f"{name} {percent(figures[0])} to {percent(max(figures))}")
    return ", ".join(texts)


def _mutual() -> list[str]:
    """How models of the set mutual are trained and evaluated."""
    return [
        """mutual: every context has one right answer and three that people wrote as wrong ones. All models are trained
        on these lists of four (`method.kind = "listwise"`). The Bi-encoders start from `shipped:minilm`, in batches of
        16 contexts, for one pass over the training part, in fp32 on one core of an AMD EPYC (AVX2). The Cross-encoder
        starts from MiniLM after [an hour of masked words and next
        utterances](#post-training-on-dialogues-without-labels), for three passes, so it does not show which kind of
        model is better. The test answers are withheld, so R@1 is that of the dev part. No setting of the Bi-encoders
        was chosen on it.""",
    ]


def against(result: Result) -> str:
    """The model that a result is compared with, or nothing."""
    scores: str = result.get("against", {}).get("scores", "")
    return scores.rpartition("/")[2].removesuffix(".scores.jsonl")


def training_cost(name: str, key: str) -> tuple[str, str]:
    """Training pairs and minutes; sentence-transformers has both in its result."""
    if fit := read_if_there(f"best/{name}/{key}.fit"):
        return f"{fit['n_examples']:,}", f"{fit['seconds'] / 60:.0f}"
    one = read_if_there(f"best/{name}/{key}") or {}
    return (f"{one['budget']:,}", f"{one['train_seconds'] / 60:.0f}") if "budget" in one else ("", "")


def test(result: Result) -> str:
    """The paired test, if any."""
    if not (found := result.get("against")):
        return ""
    mrr = next((one for one in found.get("others", ()) if one["metric"] == "MRR"), None)
    return compared(found) + (f"; MRR {change(mrr['difference'])}, {p_value(mrr['p'])}" if mrr else "")
