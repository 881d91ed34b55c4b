"""A model of BERT-base's size in MiniLM's place."""

from typing import Any

import record

from report.figures import change, compared, gain, listed, read, read_if_there, section, share, table

ROWS = (  # a set, its pairs, the rows of MiniLM and of this model, and the best of MiniLM's trainings with its pairs
    ("star", "15,360", "small/star/bi", "base/star", "best/star/logq-all", "43,107"),
    ("star", "43,107", "best/star/logq-all", "base/all/star", "best/star/logq-all", "43,107"),
    ("convai2-valid", "5,470", "small/convai2-valid/bi", "base/convai2-valid", "best/convai2-valid/bi", "10,940"),
)
CODES = {
    "poly-64": "Poly-encoder, 64 codes that start near its Bi-encoder",
    "poly-64-uniform": "Poly-encoder, 64 codes that start and learn as published",
}


def base_size() -> str:
    before, summed = read("base-short/convai2-valid/poly-64"), _last("base-short/convai2-valid/ranker")
    codes = [(title, one) for key, title in CODES.items() if (one := read_if_there(f"base/convai2-valid/{key}"))]
    star, convai2 = _last("base/star/sizes"), _last("base/convai2-valid/sizes")
    return section(
        "A model of BERT-base's size",
        f"""How much better does all-mpnet-base-v2 rank, a model of BERT-base's size (110 million weights, MiniLM has
        22)? After the same pairs, R@1 rises by {change(star["against"]["difference"])} points on star and
        {change(convai2["against"]["difference"])} on convai2-valid. With all pairs of star, it has
        {share(read("base/all/star/bi"))}, and a MiniLM that starts from `shipped:minilm`
        {share(read("best/star/logq-all"))}. Codes do not help: the Poly-encoder of 64 codes is
        {gain(codes[0][1]["against"])} from its Bi-encoder.""",
        table(
            [
                "set",
                "pairs",
                "MiniLM",
                "this model",
                "with what `polyrank tune` adds",
                "MiniLM, the best of its trainings",
            ],
            (_row(*row) for row in ROWS),
        ),
        listed(
            """Training: one pass over the same pairs in batches of 64, from the published weights, with 128 + 48
            tokens, learning rate 5e-5 (MiniLM: 2e-4) and one seed, in bf16 on two cores of an AMD EPYC with bf16
            instructions. On star, frequencies are corrected, and batches are random; on convai2-valid, dropout is
            0.1, and batches are sorted by length. MiniLM's best training starts from `shipped:minilm`, which was
            trained on star, too; so does that of all pairs of star, which has no paired difference.""",
            """Evaluation: R@1 of the first 3,000 test lists of star and of all 1,554 of convai2-valid, with 95%
            intervals over dialogues. After a semicolon: the paired difference from the column before.""",
            "`polyrank tune` chooses on dev lists among words, hubs, reply counts and both shipped encoders.",
            """Commands: `NAME=base LIMIT=3000 BUDGET=15360 MODELS=bi SETS=star TUNE=star SETTINGS="train.lr=5e-5
            train.method.negatives_weighting=logq train.length_window=1" bash runs/base.sh` (all pairs: `NAME=base/all`,
            `BUDGET=43107`) and `NAME=base LIMIT=1554 DROPOUT=0.1 MODELS="bi poly-64 poly-64-uniform" SETS=convai2-valid
            TUNE=convai2-valid bash runs/base.sh`; MiniLM with `NAME=small`, `bash runs/real.sh` and without
            `train.lr` and `TUNE`; then for each set
            `polyrank compare runs/work/{small,base}/SET/bi.scores.jsonl --json`""",
        ),
        "The same pairs, order and steps of convai2-valid for each model; codes near zero have a rate of 5e-3:",
        table(
            ["model of BERT-base's size", "R@1 of 20", "difference from the Bi-encoder"],
            [
                ["Bi-encoder", share(read("base/convai2-valid/bi")), ""],
                *([title, share(one), gain(one["against"])] for title, one in codes),
            ],
        ),
        f"""With a sixth of the pairs, the Bi-encoder has {share(read("base-short/convai2-valid/bi"))} (MiniLM
        {share(read("short/convai2-valid/bi"))}), the Poly-encoder of 64 codes {share(before)}, a difference of
        {gain(before["against"])}, and what `polyrank tune` adds to the Bi-encoder {gain(summed["against"])}.
        Untuned, the model has {share(read("base/convai2-valid/untuned"))} (MiniLM
        {share(read("convai2-valid/untuned"))}). These are of 1,000 lists. Command: `NAME=base-short BUDGET=1920
        DROPOUT=0.1 MODELS="untuned bi poly-64" SETS=convai2-valid TUNE=convai2-valid bash runs/base.sh`.""",
    )


def _row(name: str, pairs: str, small: str, place: str, best: str, best_pairs: str) -> list[str]:
    tuned, sizes = _last(f"{place}/ranker"), read_if_there(f"{place}/sizes")
    return [
        f"{name} (1 of {20 if name == 'convai2-valid' else 100})",
        pairs,
        share(read(small)),
        share(read(f"{place}/bi")) + (f"; {compared(sizes[-1]['against'])}" if sizes else ""),
        f"{share(tuned)}; {compared(tuned['against'])}",
        f"{share(read(best))}, {best_pairs} pairs",
    ]


def _last(name: str) -> Any:
    """The last JSON line of a run of several models."""
    return record.read(name)[-1]
