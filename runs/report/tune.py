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
        if not (tests := read_if_there(f"tune/{name}/test")):
            continue
        listed_tests: list[Result] = tests if isinstance(tests, list) else [tests]
        alone, *others = listed_tests
        of = {one["name"].rpartition("/")[2]: one for one in others}
        chains = read_if_there(f"tune/{name}/chains")
        best = max(chains, key=lambda one: one["metrics"]["R@1"]) if chains else None
        cells = [share(alone), "" if best is None else share(best)]
        for kind, fit in (("searched", "fit-searched"), ("best", "fit")):
            tried = (read_if_there(f"tune/{name}/{fit}") or {"terms": []})["terms"]
            terms = [each["name"] for each in tried if each["weights"]]
            cells.append(f"{share(of[kind])}: {_short(terms)}" if kind in of else "alone")
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
            dialogues, words, and `shipped:late`; "searched" is without that re-ranker (`--without cross`). Terms and weights
            are chosen on 1,000 dev lists (mutual: training lists). meld, coffee and support are outside corpora: half of
            their dialogues are for the choice, the others for the test; they have no training part, so no counts. star
            and ubuntu-irc were in the encoder's training data.""",
            """The chains are the commands that `tune` replaced, in both orders that their documentation recommended:
            counts, sum, hubs, words; and hubs, counts, sum, words. Each was fitted on 500 dev lists (words: 2,000). The
            better one is shown.""",
            """Evaluation: R@1 of all test lists with 95% intervals over dialogues; mutual: of its dev part.""",
            """Machine and command: the precision that `auto` chooses, on a busy core of an AMD EPYC (AVX-512, bf16);
            `CORPORA=folder THREADS=1 bash runs/tune.sh`; [data](../runs/results/tune.jsonl).""",
        ),
        table(["R@1, %", "`shipped:minilm`", "better chain", "`tune`, searched", "`tune`, with `shipped:late`"], rows),
    )


def _short(terms: list[str]) -> str:
    """The terms after the encoder.

    >>> _short(["shipped:minilm", "counts", "hubs of shipped:minilm", "shipped:late"])
    'counts, hubs, late'
    """
    names = [name.removeprefix("shipped:").split(" of ")[0] for name in terms if name != "shipped:minilm"]
    return ", ".join(names)
