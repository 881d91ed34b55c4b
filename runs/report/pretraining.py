"""Pre-training on dialogues without labels: MiniLM continued, a small BERT from scratch, and models from them."""

from statistics import fmean

import record

from report.best import corrected
from report.figures import (
    BACKBONE,
    Result,
    change,
    compared,
    listed,
    p_value,
    percent,
    read,
    read_if_there,
    section,
    share,
    table,
)

LAST = 100  # steps whose mean accuracy is reported
POST = {
    "plain": f"{BACKBONE}, original",
    "post": "post-trained on the dialogues: masked words, next utterance",
    "contrastive": "**post-trained in batches: first pass of `shipped:minilm`**",
    "sum": "the row above, summed with `shipped:convert`; compared with the row above",
    "unsorted": f"{BACKBONE}, original, random batches",
    "queue": "the row above, with the 512 latest candidates as negatives; compared with the row above",
}
SCRATCH = {
    "bi": "Bi-encoder, first output",
    "bi-mean": "Bi-encoder, mean of outputs",
    "poly-16": "Poly-encoder, 16 codes",
    "poly-64": "Poly-encoder, 64 codes",
    "cross": "Cross-encoder, 5 candidates each",
}


def post_training() -> str:
    """Equal fine-tuning, from MiniLM and from MiniLM pre-trained further on the dialogues."""
    if not (results := _results("post", POST, ("star", "sgd", "ubuntu-irc"))):
        return ""
    lower, higher, random = (
        ", ".join(
            f"{change(row[key]['against']['difference'])} on {name}" for name, row in results.items() if key in row
        )
        for key in ("post", "contrastive", "unsorted")
    )
    return section(
        "Post-training on dialogues without labels",
        f"""Does MiniLM rank better if it is first trained on dialogues without labels? It depends on the task.
        Continuing its pre-training (masked words, next utterance) changes R@1 by {lower}. Training it to pick the next
        turn among those of its batch changes R@1 by {higher}. Random batches instead of sorted ones change R@1 by
        {random}, which is why the default changed.""",
        "Bi-encoders of each corpus start from one of three models:",
        listed(
            "the original MiniLM",
            f"""MiniLM with continued pre-training on the training dialogues of star, sgd and ubuntu-irc:
            {_pretraining("post")}""",
            """the first pass of [`shipped:minilm`](#one-encoder-for-several-corpora), which was trained in batches on
            the dialogues of star, ubuntu-irc and self-dialogue, and is one network for both sides""",
        ),
        f"""They are trained in the same way on the same {_pairs("post", results)} pairs (one pass, batches of 64, one
        seed, bf16). Unless a row states otherwise, batches are sorted by length (`length_window = 50`, formerly the
        default), so that in-batch negatives have contexts of similar length. The table shows R@1 of all test examples
        with 95% intervals. After a semicolon: the paired difference from the first row, then that of MRR. Command:
        `STAGES=post bash runs/pretraining.sh`.""",
        _table(results, POST),
    )


def starts() -> str:
    """R@1 by what a Bi-encoder starts from."""
    sets = ("star", "sgd", "ubuntu-irc")
    few = _pairs("post", _results("post", POST, sets))
    titles = {
        "pretraining/post/{}/plain": f'`backbone = "embedded"`, MiniLM, {few} pairs in batches sorted by length',
        "pretraining/post/{}/unsorted": "the same in random batches, as by default",
        "pretraining/post/{}/contrastive": f"from `shipped:minilm` after its first pass, {few} pairs in sorted batches",
        "best/{}/bi": "the same in random batches, with six times as many pairs (ubuntu-irc: ten)",
        "best/{}/sum": "the sum of that encoder and a ConveRT trained on the same pairs",
    }
    results = {title: [read_if_there(name.format(one)) for one in sets] for name, title in titles.items()}
    results |= {
        "from `shipped:minilm`, [frequencies corrected](training.md#replies-that-repeat)"
        " (star: 43,107 pairs; sgd: 78,662)": [corrected(one) for one in sets],
        "the sum of two such encoders, a ConveRT trained from random weights on all pairs, and reply counts": [
            read_if_there(f"best/{one}/sum-four") for one in sets
        ],
    }
    rows = [[title, *(percent(one["metrics"]["R@1"]) if one else "" for one in row)] for title, row in results.items()]
    return table(["R@1 of 100, %", *sets], rows, range(1, 1 + len(sets)))


def from_scratch() -> str:
    """The papers' models from a network that was not made for means."""
    if not (results := _results("scratch", SCRATCH, ("star", "ubuntu-irc"))):
        return ""

    def below(key: str) -> str:
        return " and ".join(change(row[key]["against"]["difference"]) for row in results.values() if key in row)

    return section(
        "A small BERT from scratch",
        f"""Does the papers' order of Bi-, Poly- and Cross-encoder appear from a network that was not trained for means?
        No: the Bi-encoder by the first output, with which pre-training predicted next utterances, is the best on
        {" and ".join(results)}. Compared with it, 64 codes are {below("poly-64")} points (significant on both),
        means of outputs {below("bi-mean")}, and the Cross-encoder {below("cross")}.""",
        f"""The network has four layers of 256 and 16,000 subwords. It is pre-trained on the training dialogues of four
        corpora: {_pretraining("scratch")}. The papers' models then start from it, each trained on the same
        {_pairs("scratch", results)} pairs (one pass, one seed, bf16). The Cross-encoder is trained with four random
        candidates. The table shows R@1 of all test examples with 95% intervals. After a semicolon: the paired
        difference from the Bi-encoder by the first output, then that of MRR. Command: `STAGES=scratch BUDGET=10240 bash
        runs/pretraining.sh`.""",
        _table(results, SCRATCH),
    )


def _results(stage: str, models: dict[str, str], sets: tuple[str, ...]) -> dict[str, dict[str, Result]]:
    there = {name: {key: read_if_there(f"pretraining/{stage}/{name}/{key}") for key in models} for name in sets}
    found = {name: {key: one for key, one in row.items() if one} for name, row in there.items()}
    return {name: row for name, row in found.items() if row}


def _pretraining(stage: str) -> str:
    result = read(f"pretraining/{stage}/pretrained")
    steps = [line for line in record.read(f"pretraining/{stage}/metrics") if "masked_lm_accuracy" in line]
    clocks = [line["seconds"] for line in steps]  # of each process that resumed
    hours = sum(now for now, then in zip(clocks, [*clocks[1:], 0.0], strict=True) if then < now) / 3600
    words, pairs = (
        percent(fmean(line[f"{name}_accuracy"] for line in steps[-LAST:])) for name in ("masked_lm", "next_utterance")
    )
    return (
        f"{result['n_steps']:,} steps, {result['n_tokens'] / 1e6:.1f}M tokens, {hours:.1f} hours on one busy"
        f" core; in the last {LAST} steps {words}% of the masked words and {pairs}% of the pairs are predicted"
    )


def _pairs(stage: str, results: dict[str, dict[str, Result]]) -> str:
    fits = [read_if_there(f"pretraining/{stage}/{name}/{key}.fit") for name, row in results.items() for key in row]
    return " and ".join(f"{n:,}" for n in sorted({fit["n_examples"] for fit in fits if fit}))


def _table(results: dict[str, dict[str, Result]], models: dict[str, str]) -> str:
    head = [f"{name} (1 of 100, {_n(row)} examples)" for name, row in results.items()]
    return table(
        ["", *head], [[title, *(_cell(row.get(key)) for row in results.values())] for key, title in models.items()]
    )


def _n(row: dict[str, Result]) -> str:
    return f"{max(one['n_examples'] for one in row.values()):,}"


def _cell(result: Result | None) -> str:
    text = share(result)
    if result and (test := result.get("against")):
        mrr = next((one for one in test["others"] if one["metric"] == "MRR"), None)
        text += f"; {compared(test)}"
        if mrr:
            text += f"; MRR {change(mrr['difference'])}, {p_value(mrr['p'])}"
    return text
