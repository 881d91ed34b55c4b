"""`polyrank tune` on sets that no model was trained for, as runs/tune.sh measures it."""

from report.figures import Result, listed, read_if_there, section, share, table

SETS = {
    "star": "1 of 100",
    "sgd": "1 of 100",
    "convai2-valid": "1 of 20",
    "ubuntu-irc": "1 of 100",
    "self-dialogue": "1 of 100",
    "mutual": "1 of 4",
    "meld": "1 of 100",
    "coffee": "1 of 100",
    "support": "1 of 100",
}


def one_ranker() -> str:
    """A row for each set: the encoder alone, the chains of single commands, and what tune chooses."""
    rows = []
    for name, task in SETS.items():
        tests = {kind: _rows(f"tune/{name}/{kind}") for kind in ("searched", "best")}
        if not (first := tests["searched"] or tests["best"]):
            continue
        chains = read_if_there(f"tune/{name}/chains")
        best = max(chains, key=lambda one: one["metrics"]["R@1"]) if chains else None
        cells = [share(first[0]), share(best)]
        for kind, results in tests.items():
            tried = (read_if_there(f"tune/{name}/{kind}-fit") or {"terms": []})["terms"]
            terms = _short([each["name"] for each in tried if each["weights"]])
            n = results[0]["n_examples"] if results else 0
            part = f" (of {n:,} lists)" if results and n < first[0]["n_examples"] else ""
            cells.append(
                f"{share(results[1])}{part}: {terms}" if terms and len(results) > 1 else "alone" if results else ""
            )
        rows.append([f"{name} ({task})", *cells])
    if not rows:
        return ""
    return section(
        "One ranker",
        """Does one fit replace the commands that corrected an encoder one after the other? Where terms help, `polyrank
        tune` reaches what the better order of those commands reached, and more with a re-ranker. Where they do not
        help, it stays with the encoder, or within chance of it.""",
        listed(
            """Models: `shipped:minilm`, nothing trained. `polyrank tune` tries counts and hubs of the training
            dialogues, words, and `shipped:late`; "searched" is without that re-ranker (`--without cross`). Terms and
            weights are chosen on 1,000 dev lists (mutual: training lists). meld, coffee and support are outside
            corpora: half of their dialogues are for the choice, the others for the test; they have no
            training part, so no counts. star and ubuntu-irc were in the encoder's training data.""",
            """The chains are the commands that `tune` replaced, in both orders that their documentation recommended:
            counts, sum, hubs, words; and hubs, counts, sum, words. Each was fitted on 500 dev lists (words: 2,000). The
            better one is shown; of ubuntu-irc, only the first was measured.""",
            """Evaluation: R@1 of all test lists with 95% intervals over dialogues; mutual: of its dev part.""",
            """Machine and command: the precision that `auto` chooses, on a busy core of an AMD EPYC (AVX-512, bf16);
            `CORPORA=folder THREADS=1 bash runs/tune.sh`; [data](../runs/results/tune.jsonl).""",
        ),
        table(["R@1, %", "`shipped:minilm`", "better chain", "`tune`, searched", "`tune`, with `shipped:late`"], rows),
    )


def tuned(name: str) -> Result | None:
    """The ranker without a re-ranker that tune chose for a set: the same terms were tried on all of them."""
    results = _rows(f"tune/{name}/searched")
    return results[-1] if results else None


def _rows(name: str) -> list[Result]:
    """The models of an evaluation; one model is not a list."""
    result = read_if_there(name) or []
    return result if isinstance(result, list) else [result]


def _short(terms: list[str]) -> str:
    """The terms after the encoder.

    >>> _short(["shipped:minilm", "counts", "hubs of shipped:minilm", "shipped:late"])
    'counts, hubs, late'
    """
    names = [name.removeprefix("shipped:").split(" of ")[0] for name in terms if name != "shipped:minilm"]
    return ", ".join(names)
