"""Documents of 500 words compared with their replies alone, as runs/long.py measures them."""

from report.figures import listed, percent, read_if_there, section, table

MODELS = ("convert", "rerank")
SETS = ("star", "sgd", "self-dialogue")
COLUMNS = {
    "alone": "alone",
    "documents": "as a paragraph of a document",
    "running": "in its running text",
    "truncated": "document, truncated",
}


def long_documents() -> str:
    """R@1 of replies, and of documents that contain them."""
    found = {(model, name): read_if_there(f"long/{model}/{name}") for model in MODELS for name in SETS}
    measured = {key: one for key, one in found.items() if one}
    if not measured:
        return ""
    rows = [
        [f"`shipped:{model}`", name, *(percent(one[column]) for column in COLUMNS)]
        for (model, name), one in measured.items()
    ]
    most = max(one["alone"] - one["documents"] for one in measured.values())
    return section(
        "Long documents",
        f"""Does a reply count in a document of 500 words as much as alone? Read in chunks, a document with the reply as
        a paragraph loses at most {100 * most:.1f} points of R@1; truncated, it loses nearly all.""",
        listed(
            f"""Evaluation: R@1 of 20, in %, on {next(iter(measured.values()))["n_lists"]} test lists of each set. Every
            candidate is inside 500 words about bananas, at a random place.""",
            """Limitation: in running text, sentences of wrong replies also count alone, which costs several points.""",
            "Command: `python runs/long.py --lists 100`; [data](../runs/results/long.jsonl).",
        ),
        table(["model", "set", *COLUMNS.values()], rows),
    )
