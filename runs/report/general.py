"""The general encoder that runs/encoder.sh trains, on sets from its training data and on others."""

import json
from pathlib import Path

from report.figures import (
    BACKBONE,
    Result,
    change,
    compared,
    gain,
    listed,
    percent,
    read,
    read_if_there,
    section,
    share,
    table,
)

MODEL = Path(__file__).parents[2] / "models/polyrank_models/minilm"

READ = ("star", "ubuntu-irc", "self-dialogue")
UNREAD = ("sgd", "convai2-valid", "medquad", "mutual")
SIZES = {"convai2-valid": "1 of 20", "medquad": "of 15,805", "mutual": "1 of 4"}
SCORERS = {
    "bm25": "BM25",
    "untuned": f"{BACKBONE}, untuned",
    "convert": "ConveRT, `shipped:convert`",
    "encoder": f"**{BACKBONE}, `shipped:minilm`**",
    "sum": "**both shipped ones, summed**",
}


def read_sets() -> str:
    """R@1 on sets from its training data."""
    return _figures(READ)


def unread_sets() -> str:
    """R@1 on other sets."""
    return _figures(UNREAD)


def _figures(names: tuple[str, ...]) -> str:
    results = {name: {key: read_if_there(f"general/{name}/{key}") for key in SCORERS} for name in names}
    rows = [[title, *(_one(results[name][key], key) for name in names)] for key, title in SCORERS.items()]
    return table(["scorer", *(f"{name} ({SIZES.get(name, '1 of 100')})" for name in names)], rows)


def _one(result: Result | None, key: str) -> str:
    text = share(result)
    if result and key in ("encoder", "sum") and (test := result.get("against")):
        text += f"; {compared(test)}"
    return text


def general() -> str:
    """The encoder, its mixtures of weights, and its results on both kinds of sets."""
    results = {name: read_if_there(f"general/{name}/encoder") for name in (*READ, *UNREAD)}
    there = [result for result in results.values() if result]
    sums = {name: read_if_there(f"general/{name}/sum") for name in READ}
    training, cosine, third = (read(f"general/{name}") for name in ("training", "cosine", "third-training"))
    kept = json.loads((MODEL / "config.json").read_text("utf-8"))["metadata"]["share"]
    logs = read("general/ubuntu-irc/encoder")["against"]["n_dialogues"]
    gains = "; ".join(f"{name} {gain(one['against'])}" for name, one in sums.items() if one)
    over = {name: change(result["against"]["difference"]) for name, result in results.items() if result}
    return section(
        "One encoder for several corpora",
        f"""Does one encoder that was trained on several corpora also rank well on others? Compared with untuned MiniLM,
        `shipped:minilm` changes R@1 by {", ".join(f"{over[name]} on {name}" for name in READ)}, which are in its
        training data, and by {", ".join(f"{over[name]} on {name}" for name in UNREAD)}, which are not. On medquad,
        whose answers are articles, the difference is {gain(read("general/medquad/encoder")["against"])}; untuned MiniLM
        was trained for questions and passages. Adding the shipped ConveRT changes R@1 further on the training
        corpora: {gains}.""",
        "`shipped:minilm` is one network for both sides. It was made in five steps:",
        listed(
            f"""First pass: MiniLM is trained on 160,000 pairs of star, ubuntu-irc and self-dialogue in one pass (1,250
            steps of 128 sorted by length, 96 + 32 tokens, no dropout, one seed, bf16, {training["seconds"] / 3600:.1f}
            hours on one busy core, [validation](../runs/results/general-curves.svg)). The best step was chosen on 50
            dev lists of each of five sets, sgd and convai2-valid among them.""",
            f"""Second pass: {cosine["n_examples"]:,} of these pairs in random batches, with vectors of one length
            ({cosine["seconds"] / 60:.0f} minutes).""",
            """First average: half of the trained weights and half of MiniLM's ([Wortsman et
            al.](https://arxiv.org/abs/2109.01903)).""",
            f"""Third pass, from that average: about twice over 260,000 pairs of the same corpora, with 128 + 64 tokens
            and corrected frequencies, on an NVIDIA H100 that was busy with other trainings. It stopped after
            {third["seconds"] / 60:.0f} minutes, {third["n_steps"]:,} of {third["planned_steps"]:,} steps of 128; the
            same dev lists chose the version of step {third["best_step"]:,}.""",
            f"""Second average: {kept:.0%} of the weights of the third pass and the rest the first average's. In other
            sections, trainings and sums from `shipped:minilm` start from the first
            average.""",
        ),
        """The shares of both averages have the best mean R@1 on lists of other sets: the first 300 dev lists of sgd and
        convai2-valid, 600 of mutual's training lists, and 500 dev questions of medquad among a fifth of the answers. A
        larger share of the third pass ranks replies better, also on sets outside the training data, and articles
        worse. The first average, then the second:""",
        _mixtures("mixtures"),
        _mixtures("third"),
        f"""The package `models/` contains the encoder in 16 bits. The following tables show R@1 of
        {there[0]["n_examples"]:,} test examples with 95% intervals over dialogues, the ConveRT in fp32 and the
        others in bf16 (over examples: mutual, {_n(results["mutual"])} of its dev part, and medquad,
        hits@1 in the pool). After a semicolon: the paired difference of the encoder from untuned MiniLM, and of the sum
        from the encoder, over dialogues (the lists of ubuntu-irc come from {logs} logs, too few for a
        test). The sum's weights come from 300 dev lists of the set. Command: `bash runs/encoder.sh`. First the sets in
        the training data:""",
        read_sets(),
        "Then sets on which neither the encoder nor the ConveRT was trained:",
        unread_sets(),
    )


def _mixtures(kind: str) -> str:
    """R@1 by the share of the trained weights."""
    names = ("sgd", "convai2-valid", "medquad", "mutual", "mean")
    rows = [[f"{row['share']:.0%}", *(percent(row[name]) for name in names)] for row in read(f"general/{kind}")["rows"]]
    return table(["trained weights", *names], rows, range(6))


def _n(result: Result | None) -> str:
    return f"{result['n_examples']:,} examples" if result else "none"
