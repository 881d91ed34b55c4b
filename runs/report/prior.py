"""How often a reply occurs, added to an encoder's scores, as runs/prior.sh measures it."""

from report.figures import compared, listed, read_if_there, section, share, table

SETS = ("star", "sgd", "ubuntu-irc", "self-dialogue")
SCORERS = {
    "counts": "counts alone, `log(1 + count)`",
    "encoder": "`shipped:minilm`",
    "sum": "**both, summed**",
}


def prior() -> str:
    """A table of sets and scorers, with the weights and how often replies repeat."""
    results = {name: {key: read_if_there(f"prior/{name}/{key}") for key in SCORERS} for name in SETS}
    there = [name for name in SETS if results[name]["sum"]]
    rows = []
    for key, title in SCORERS.items():
        texts = []
        for name in there:
            result = results[name][key]
            text = share(result)
            if result and key == "sum":
                text += f"; {compared(result['against'])}"
            texts.append(text)
        rows.append([title, *texts])
    by_dialogue = [name for name in there if "n_dialogues" in (results[name]["sum"] or {})]
    changes = {name: compared(one["against"]) for name in there if (one := results[name]["sum"])}
    documents = [read_if_there(f"prior/{name}/weights") or {} for name in there]
    rows.append(["weight of the counts", *(f"{document['parts'][1]['weight']:g}" for document in documents)])
    return section(
        "A prior over replies",
        f"""Does it help to add each reply's frequency to an encoder's scores, without any training? The paired
        difference in R@1 is {"; ".join(f"{name}: {change}" for name, change in changes.items())}. star's agents
        mostly accepted suggested replies, so a frequent reply is often right there.""",
        listed(
            """Models: `polyrank popularity` counts the replies of a set's training dialogues, and `polyrank sum` adds
            `log(1 + count)`, times a weight, to the scores of `shipped:minilm`. The weight is chosen on 500 development
            lists. The encoder was trained on the training parts of star, ubuntu-irc and self-dialogue, not on sgd.""",
            f"""Evaluation: R@1 of 100 with 95% intervals; all test examples are evaluated once. After a semicolon: the
            paired difference from the encoder alone. Intervals and tests are over dialogues on
            {" and ".join(by_dialogue)}, over examples elsewhere.""",
            """Machine and command: bf16 on two cores of an AMD EPYC (AVX-512 with bf16); `bash runs/prior.sh`.""",
        ),
        table(["scorer", *there], rows),
    )
