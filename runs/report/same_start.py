"""Libraries from the same initial encoder and pairs, as runs/same_start.sh measures them."""

from report.figures import compared, read_if_there, section, share, table

SETS = ("star", "sgd", "ubuntu-irc")
MODELS = {
    "bi": "polyrank",
    "bi-logq": 'polyrank, `negatives_weighting = "logq"`',
    "sentence-transformers-matched": "sentence-transformers, MultipleNegativesRankingLoss",
    "sentence-transformers-distinct": "the same, no text twice in a batch",
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
    return section(
        "The same start and pairs in three libraries",
        """All start from `shipped:minilm`, exported for the others, which was trained on star's training part too. They
        are trained for one pass on the same 3,840 pairs in the same 60 batches of 64 (without repeated texts: 50 other
        batches, which leave some pairs out), with the learning rate, warm-up, truncation on the left and dropout (none)
        of polyrank's recipe; nothing was tuned for the other libraries. R@1 of all test examples with 95% intervals;
        after a semicolon the paired difference from polyrank's first row. Losses of sentence-transformers are of
        cosines times 20. PyLate adds a projection to 128 dimensions, which starts at random; it keeps a vector of each
        token, where the others keep one of each text. In fp32 on one busy core of an AMD EPYC (AVX2). Made by
        `THREADS=1 bash runs/same_start.sh` and `THREADS=1 MODELS=colbert PYLATE=python-with-pylate bash
        runs/same_start.sh`:""",
        table(["model", *(f"{name} (1 of 100)" for name in there)], rows),
    )
