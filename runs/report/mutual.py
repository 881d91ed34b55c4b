"""Mutual learning: over three seeds from the shipped encoder, and an earlier run from MiniLM."""

from report.figures import (
    Result,
    change,
    compared,
    gain,
    last_valid_loss,
    listed,
    p_value,
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
    tests = {name: found["retriever"]["tests"]["R@1"] for name, found in there.items()}
    rows = [["the first Bi-encoder", *(share(found["first"]) for found in there.values())]]
    for network, title in NETWORKS.items():
        results = [found[network] for found in there.values()]
        rows.append([f"{title}, apart", *(share(one["apart"]) for one in results)])
        for name, metric in ((f"{title}, together", "R@1"), ("its MRR", "MRR")):
            rows.append([name, *(f"{share(one['together'], metric)}; {gain(one['tests'][metric])}" for one in results)])
    seeds = "; ".join(f"{name} {_by_seed(found)}" for name, found in there.items())
    return section(
        "Mutual learning",
        f"""Do two networks rank better if each also learns from the other's predictions (T = 3, alpha = 1)? Compared
        with training apart, R@1 of the Bi-encoder changes on {
            ", on ".join(f"{name} by {gain(one)}" for name, one in tests.items())
        }.""",
        listed(
            """Start: the networks are a Bi-encoder and a late Cross-encoder, which joins its two upper layers. Both
            start from `shipped:minilm`, which was trained on the training parts of star and ubuntu-irc, but not of
            sgd.""",
            """Training: both networks first train apart on 3,200 lists, then on as many again, apart or together: the
            same lists of a reply and seven others, drawn as often as they were said, in the same order. No setting was
            tuned, and the last step is evaluated.""",
            """Evaluation: R@1 of 100 on all test lists, means of three seeds of the second training, with 95% intervals
            over dialogues if ids name them. After a semicolon: the paired difference from training apart.""",
            """Settings: 64 + 32 tokens, fp32, one thread of an AMD EPYC (AVX2).""",
            """Command: `bash runs/mutual_seeds.sh`.""",
        ),
        table(["", *there], rows),
        f"""The Bi-encoder's differences by seed, with the p of a t-test over seeds: {seeds}. On sgd and ubuntu-irc, the
        intervals exclude a gain of 1 point. The re-ranker alone is far worse than the Bi-encoder, so it is not a better
        teacher. Whether softer targets alone help as much was not tested. All these Bi-encoders are far below those
        trained in batches ([more pairs](#more-pairs-and-two-encoders-as-one)).""",
        *_earlier(),
    )


def _by_seed(found: Result) -> str:
    apart, together = (found["retriever"][how]["by_seed"] for how in ("apart", "together"))
    differences = ", ".join(change(b["R@1"] - a["R@1"]) for a, b in zip(apart, together, strict=True))
    return f"{differences} ({p_value(found['retriever']['tests']['R@1']['over_seeds']['p'])})"


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
        """An earlier run had one seed, and MiniLM as the start of a Bi-encoder and a full Cross-encoder. Together, the
        Bi-encoder's R@1 is higher than apart, but not significantly:""",
        listed(
            """Training: both networks first trained apart on 4,000 contexts with 8 candidates each, then once more on
            the same, apart or together, with 64 + 32 tokens, bf16 on one core with AMX. Where the paper has projections
            and a tanh head, the Bi-encoder uses the mean of outputs and the Cross-encoder a linear head on the first
            output.""",
            f"""Bi-encoder, R@1 of the first 1,000 test examples, together instead of apart: {instead(many["star"])} on
            star and {instead(many["ubuntu-irc"])} on ubuntu-irc.""",
            f"Cross-encoder, R@1 of 300 examples: changed by {cross[0]} on star and {cross[1]} on ubuntu-irc.",
            f"""Loss of the Bi-encoder on held-out lists of star: {loss[1]:.2f} instead of {loss[0]:.2f}. Mutual
            learning makes scores less extreme.""",
            """Command: `BUDGET=4000 NEGATIVES=7 VALID=60 LIMIT=300 bash runs/mutual.sh`; validation by epoch:
            [star](../runs/results/mutual-star-curves-mutual.svg),
            [ubuntu-irc](../runs/results/mutual-ubuntu-irc-curves-mutual.svg).""",
        ),
        "The earlier run on star with a sixth of the contexts (640; [data](../runs/results/mutual.jsonl)):",
        listed(
            f"""The Cross-encoder was further behind the Bi-encoder ({compared(gaps[0])}; with 4,000 contexts
            {compared(gaps[1])}).""",
            f"The Bi-encoder gained nothing measurable from mutual learning: {instead(few[:2])}.",
            f"""With nine times the weight on the KL (`TAG=heavy EXTRA="--set train.method.alpha=9"`), Bi-encoder and
            Cross-encoder were lower, not significantly ({compared(few[2]["against"])} and
            {compared(few[3]["against"])}).""",
            f"""With a ConveRT tuned on star as a frozen teacher, the Bi-encoder had an R@1 of
            {percent(few[4]["metrics"]["R@1"])} on {few[4]["n_examples"]} examples ({compared(few[4]["against"])}).""",
        ),
    ]
