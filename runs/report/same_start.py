"""Libraries from the same initial encoder and pairs, as runs/same_start.sh measures them."""

from report.figures import compared, listed, percent, read_if_there, section, share, table

SETS = ("star", "sgd", "ubuntu-irc")
MODELS = {
    "bi": "polyrank",
    "bi-logq": 'polyrank, `negatives_weighting = "logq"`',
    "sentence-transformers-matched": "sentence-transformers, MultipleNegativesRankingLoss",
    "sentence-transformers-distinct": "sentence-transformers, the same loss, no text twice in a batch",
    "sentence-transformers-guided": "sentence-transformers, GISTEmbedLoss guided by the initial encoder",
    "pylate-colbert": "PyLate's ColBERT, contrastive loss over the batch, all token vectors of both sides",
}


def same_start() -> str:
    """R@1 of each library's model, and the difference from polyrank's."""
    rows, there = [], [name for name in SETS if read_if_there(f"same/{name}/bi")]
    for model, title in MODELS.items():
        texts = []
        for name in there:
            result = read_if_there(f"same/{name}/{model}")
            test = (result or {}).get("against")
            texts.append(share(result) + (f"; {compared(test)}" if test else ""))
        rows.append([title, *texts])
    if not there:
        return ""
    found = {model: read_if_there(f"same/star/{model}") for model in MODELS}
    tests = {model: compared(one["against"]) for model, one in found.items() if one and "against" in one}
    return section(
        "The same start and pairs in three libraries",
        f"""Do polyrank, sentence-transformers and PyLate train equally good models from the same encoder and pairs? On
        star, polyrank's Bi-encoder has an R@1 of {percent((found["bi"] or {})["metrics"]["R@1"])}. Compared with it,
        sentence-transformers' MultipleNegativesRankingLoss is {tests["sentence-transformers-matched"]}, PyLate's
        ColBERT {tests["pylate-colbert"]}, and polyrank's `"logq"` {tests["bi-logq"]}.""",
        listed(
            "Start: `shipped:minilm`, exported for the other libraries. It was trained on star's training part too.",
            """Training: one pass over the same 3,840 pairs in the same 60 batches of 64. Without repeated texts, there
            are 50 other batches, which leave some pairs out.""",
            """Settings: learning rate, warm-up, truncation on the left and dropout (none) are those of polyrank's
            recipe. Nothing was tuned for the other libraries.""",
            """sentence-transformers: its losses are of cosines times 20.""",
            """PyLate: ColBERT adds a projection to 128 dimensions, which starts at random. It keeps a vector of each
            token, where the other models keep one vector of each text.""",
            """Evaluation: R@1 of all test examples with 95% intervals over dialogues. After a semicolon: the paired
            difference from the first row.""",
            """Machine: fp32 on one busy core of an AMD EPYC (AVX2).""",
            """Commands: `THREADS=1 bash runs/same_start.sh` and `THREADS=1 MODELS=colbert PYLATE=python-with-pylate
            bash runs/same_start.sh`.""",
        ),
        table(["model", *(f"{name} (1 of 100)" for name in there)], rows),
    )
