"""Milliseconds to rank 100 candidates with each kind of model, and its R@1."""

from report.figures import Result, described, listed, ms, percent, read, read_if_there, section, share, table

# a scorer that runs/picture.py times, and the file with R@1 of a trained one on the same test lists
QUALITY = {
    "BM25": "star/bm25",
    "MiniLM, untuned": "star/untuned",
    "sentence-transformers": "star/sentence-transformers-matched",
    "Bi-encoder": "star/bi",
    "Poly-encoder, 64 codes": "star/poly-64",
    "ConveRT, shipped": "convert/permissive-star",
    "Bi-encoder + ConveRT": "encoders/star/ensemble-start",
    "Cross-encoder, 64 + 32 tokens": "mutual/star/cross",
}


def points() -> list[tuple[Result, Result | None]]:
    """The timed scorers, each with its quality if it was measured."""
    rows = read("picture")["rows"]
    return [(row, read(QUALITY[row["form"]]) if row["form"] in QUALITY else None) for row in rows]


def ranking() -> str:
    measured = read_if_there("picture")
    if measured is None:
        return ""
    *processor, libraries = described("picture")
    took = {row["form"]: row["ms"] for row in measured["rows"]}
    best = max((one for _, one in points() if one), key=lambda one: float(one["metrics"]["R@1"]))
    cells = [
        [
            row["form"],
            ms(row["ms"]),
            ms(row["wall_ms"]),
            str(row["n"]),
            share(quality),
            f"{quality['n_examples']:,}" if quality else "",
        ]
        for row, quality in points()
    ]
    return section(
        "Ranking 100 candidates: milliseconds and R@1",
        f"""How long does each kind of model take to rank 100 candidates, and how well does it rank? The sum of the
        Bi-encoder and ConveRT has the highest R@1, {percent(best["metrics"]["R@1"])}, and takes
        {ms(took["Bi-encoder + ConveRT"])} ms. A Cross-encoder takes {ms(took["Cross-encoder"])} ms.""",
        listed(
            """Times: processor time in milliseconds from a context's text to the scores of its 100 candidates on star,
            medians over contexts; also the wall-clock time on a shared machine. Candidates are encoded in advance, as
            in an index. Networks are untrained, which does not affect times.""",
            f"""Settings: one process, one thread, fp32, all taking turns; 128 + 48 tokens unless stated.
            {processor[0]} ({processor[1]}), {processor[2]} cores, initial load {measured["load"]:.1f}; {libraries},
            sentence-transformers {measured["sentence-transformers"]}.""",
            """R@1: that of the trained models on the same test lists, where measured. Models are those of [response
            selection](#response-selection) and [two encoders](#two-encoders-at-once), and the Cross-encoder trained
            alone on 4,000 lists of 8 in [mutual learning](#mutual-learning), in bf16.""",
            """Commands: `python runs/picture.py measure`; [the picture](picture.svg) by `python runs/picture.py
            draw`.""",
        ),
        table(["scorer", "ms", "wall clock", "contexts timed", "R@1", "of examples"], cells, (1, 2, 3, 5)),
    )
