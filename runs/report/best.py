"""The best that two cores make of each corpus, from runs/best.sh: more pairs, two encoders as one, read answers."""

from report.figures import Result, change, compared, ms, p_value, read_if_there, section, share, table

SETS = {
    "star": "1 of 100",
    "sgd": "1 of 100",
    "ubuntu-irc": "1 of 100",
    "self-dialogue": "1 of 100",
    "convai2-valid": "1 of 20",
    "mutual": "1 of 4",
}
MODELS = {
    "bi": "Bi-encoder",
    "convert": "ConveRT",
    "sum-shipped": "that Bi-encoder and `shipped:convert` as one",
    "sum": "both as one",
    "bi-all": "Bi-encoder, all pairs",
    "convert-all": "ConveRT, all pairs",
    "sum-all": "both of all pairs as one",
    "bi-wide": "Bi-encoder in batches of 256",
    "sum-wide": "both Bi-encoders and ConveRT as one",
    "bi-2": "Bi-encoder, another seed",
    "bi-3": "Bi-encoder, a third seed",
    "joint": "both as one, trained on together",
    "bi-more": "the Bi-encoder, trained on",
    "uniform": "the Bi-encoder, trained further, by an earlier correction for frequencies",
    "uniform-3": "the same by another seed",
    "uniform-4": "the same by a third seed",
    "lists": "the Bi-encoder, trained on with lists of random wrong answers",
    "distilled": "the Bi-encoder, trained on with lists of 32 that both as one have scored",
    "poly-64": "a Poly-encoder of 64 codes from it, trained on as long",
    "sentence-transformers-matched": "sentence-transformers, from MiniLM",
    "cross": "Cross-encoder on the given wrong answers",
}


def best() -> str:
    """A table for each set would say the same words six times: rows are models of a set."""
    results = {name: {key: read_if_there(f"best/{name}/{key}") for key in MODELS} for name in SETS}
    rows = [
        [name if key == first_of(row) else "", MODELS[key], *learnt(name, key), share(one), test(one)]
        for name, row in results.items()
        for key, one in row.items()
        if one
    ]
    if not rows:
        return ""
    return section(
        "More pairs, and two encoders as one",
        """Bi-encoders go on from what the first pass of `shipped:minilm` made
        ([one encoder for several corpora](#one-encoder-for-several-corpora)), ConveRTs from `shipped:convert`, on
        random batches of 64 pairs (ConveRT: 256), one pass (convai2-valid two, ConveRT three), one seed, bf16, on one
        core beside other work. The Cross-encoder of mutual goes on with MiniLM after
        [an hour of masked words and next utterances](#post-training-on-dialogues-without-labels),
        three times over the training part, whose every context has one right answer and three that people wrote as
        wrong ones. sentence-transformers begins with MiniLM as it comes, with left
        truncation and our rate, by which it found more than by its defaults in
        [a sixth of the pairs](#a-sixth-of-the-pairs). R@1 of all test
        examples with 95% intervals; of mutual, whose test answers are withheld, of its dev part. Behind it the paired
        difference from the Bi-encoder of the set (of all pairs, from that of fewer; of their sum, from theirs; of the
        Poly-encoder, from the Bi-encoder that was trained on as long, on the same pairs), and that of MRR. A sum's
        weights come from 300 dev lists (of three parts, from 1,994).
        Made by `MODELS="bi convert sum
        sum-shipped bi-all convert-all sum-all bi-wide sum-wide joint bi-more uniform distilled poly-64 cross library"
        bash runs/best.sh`.""",
        table(["set", "model", "pairs read", "minutes", "R@1", "difference"], rows, (2, 3)),
        *as_one_index(),
    )


def as_one_index() -> list[str]:
    """What runs/sum_index.py says of a sum's search."""
    if not (found := read_if_there("sum-index")):
        return []
    times = ", ".join(
        f"{name} ({found['dimensions'][name]} dimensions) {ms(one)} ms" for name, one in found["ms"].items()
    )
    return [
        f"""A sum is searched as one index: of {found["n_contexts"]:,} contexts among {found["n_candidates"]:,}
        candidates, the ten best are those of two passes added up for {found["same_ten"]:,}. One context's ten best,
        search alone, one thread: {times}. Made by `python runs/sum_index.py DATA`."""
    ]


def first_of(row: dict[str, Result | None]) -> str:
    """Of the models, the first that there is."""
    return next(key for key, one in row.items() if one)


def learnt(name: str, key: str) -> tuple[str, str]:
    """From how many pairs, and for how many minutes; the usual library says both in its result."""
    if fit := read_if_there(f"best/{name}/{key}.fit"):
        return f"{fit['n_examples']:,}", f"{fit['seconds'] / 60:.0f}"
    one = read_if_there(f"best/{name}/{key}") or {}
    return (f"{one['budget']:,}", f"{one['train_seconds'] / 60:.0f}") if "budget" in one else ("", "")


def test(result: Result) -> str:
    """Its paired test, where there is one."""
    if not (against := result.get("against")):
        return ""
    mrr = next((one for one in against.get("others", ()) if one["metric"] == "MRR"), None)
    return compared(against) + (f"; MRR {change(mrr['difference'])}, {p_value(mrr['p'])}" if mrr else "")
