"""The general second stage that runs/second_stage.sh trains, on sets from its training data and on others."""

from polyrank.ranking.statistics import paired_t
from report.figures import (
    Result,
    change,
    compared,
    gain,
    listed,
    p_value,
    percent,
    read,
    read_if_there,
    section,
    share,
    table,
)
from report.general import READ, SIZES, UNREAD

KINDS = {
    "first": "one stage",
    "chosen": "these numbers",
    "on_others": "those of other sets",
    "words": "words alone",
    "late": "`shipped:late` alone",
}
STORED = "second/{}/{}"
OUTSIDE = {
    "topical-chat": "[Topical-Chat](https://github.com/alexa/Topical-Chat): chats about articles",
    "meld": "[MELD](https://github.com/declare-lab/MELD): scenes of a television series",
    "coffee": "[Taskmaster-4](https://github.com/google-research-datasets/Taskmaster): the assistant of a coffee bar",
    "questions": "[DSTC9 track 1](https://github.com/alexa/alexa-with-dstc9-track1-dataset): answers of hotels",
    "tickets": "[Dialogue challenge](https://github.com/xiul-msr/e2e_dialog_challenge): agents who sell cinema tickets",
    "taxis": "Dialogue challenge: agents who order taxis",
    "films": "[CMU_DoG](https://github.com/festvox/datasets-CMU_DoG): chats about films",
    "support": "[ESConv](https://github.com/thu-coai/Emotional-Support-Conversation): supporters of people in need",
    "counsel": "[Counsel Chat](https://github.com/nbertagnolli/counsel-chat): answers of therapists",
    "covid": "[COVID-QA](https://github.com/deepset-ai/COVID-QA): answers of public health offices",
}


def _both() -> dict[str, tuple[Result, Result]]:
    """The results without and with the second stage."""
    found = {name: [read_if_there(STORED.format(name, one)) for one in ("one", "two")] for name in (*UNREAD, *READ)}
    return {name: (one, two) for name, (one, two) in found.items() if one and two}


def second_table() -> str:
    """R@1 of each set in one and two stages."""
    rows = []
    for name, (one, two) in _both().items():
        title, trained_on = f"{name} ({SIZES.get(name, '1 of 100')})", "yes" if name in READ else "no"
        rows.append([title, trained_on, share(one), share(two), compared(two["against"])])
    return table(["R@1, %", "in the training data", "`shipped:minilm`", "re-ranked", "difference"], rows)


def second_stage() -> str:
    """The second stage, its parts and its numbers."""
    found, fit, chosen = _both(), read("second/fit"), read("second/numbers")
    numbers = chosen["numbers"]

    def gains(names: tuple[str, ...]) -> str:
        return "; ".join(f"{name} {gain(found[name][1]['against'])}" for name in names if name in found)

    examples = {one["n_examples"] for one, _ in found.values()}
    kinds = [kind for kind in KINDS if all(kind in row for row in chosen["sets"].values())]
    rows = [[name, *(percent(row[kind]) for kind in kinds)] for name, row in chosen["sets"].items()]
    return section(
        "A general second stage",
        f"""Does a second stage that was trained on some corpora also help on others? On some. `shipped:rerank` re-ranks
        the 25 best of `shipped:minilm`. On sets outside the training data of both, whose development lists chose its
        five numbers, it changes R@1 by: {gains(UNREAD)}; on sets in it: {gains(READ)}.{_mean_outside()} It consists of
        a late Cross-encoder, `shipped:late`, and of a comparison of words, which helps most where persons have facts or
        answers are articles.""",
        second_table(),
        listed(
            f"""`shipped:late` has two joined layers; all other weights are those of `shipped:minilm`. It corrects that
            encoder's scores and was trained on {fit["n_examples"]:,} rows in {fit["n_steps"]:,} updates of 32 lists
            ({fit["seconds"] / 60:.1f} minutes on an NVIDIA H200, next to three other trainings; one seed). The rows
            come from the training parts of star, ubuntu-irc and self-dialogue. Most are replies. The others, from
            self-dialogue, imitate tasks of which no corpus is in the training data: replies with facts about the
            speaker, which are the speaker's other turns, and passages of several turns with a question.""",
            f"""Score: g + {numbers["weight"]} s + {numbers["match"]} match {numbers["earlier"]:+} earlier
            {numbers["overlap"]:+} overlap {numbers["echo"]:+} echo. The numbers are the same for all sets. Up to 500
            development lists of each of the seven sets choose them by maximum likelihood, each set with the same weight
            (mutual: training lists; medquad: questions among all answers).""",
            f"""Evaluation: the first {max(examples):,} test examples, once (mutual: {min(examples):,} of its dev part),
            with 95% intervals and paired tests, over dialogues where examples have some.""",
            *_sample(),
            *_outside(),
            """Also tried on development lists: three joined layers, and training on the errors of encoders that had
            not seen the corpus. Neither was better on average.""",
            """Machine and command: bf16 on two cores of an AMD EPYC (AVX-512 with bf16); `bash runs/second_stage.sh`;
            [data](../runs/results/second.jsonl).""",
        ),
        """R@1 of the development lists: `shipped:minilm`; with these numbers; with numbers that the other six sets
        choose; with the comparison of words alone, and with the Cross-encoder alone, each with its own numbers:""",
        table(["R@1, %", *(KINDS[kind] for kind in kinds)], rows, range(1, 1 + len(kinds))),
        *_outside_table(),
    )


def _outside_results() -> dict[str, tuple[Result, Result]]:
    """The results without and with the second stage, on corpora that chose nothing."""
    found = {name: [read_if_there(f"outside/{name}/{one}") for one in ("one", "two")] for name in OUTSIDE}
    return {name: (one, two) for name, (one, two) in found.items() if one and two}


def _mean_outside() -> str:
    """The mean gain over the corpora that chose nothing, tested over corpora."""
    if not (found := _outside_results()):
        return ""
    test = paired_t([two["metrics"]["R@1"] - one["metrics"]["R@1"] for one, two in found.values()])
    return (
        f" On {len(found)} corpora that chose nothing, the mean change is {change(test['difference'])} points"
        f" ({p_value(test['p'])}, a t-test over corpora)."
    )


def _outside() -> list[str]:
    """The gains of the last table."""
    if not (found := _outside_results()):
        return []
    gains = "; ".join(f"{name} {gain(two['against'])}" for name, (_, two) in found.items())
    others = {name: {test["metric"]: test for test in two["against"]["others"]} for name, (_, two) in found.items()}
    at_5 = {name: tests["R@5"] for name, tests in others.items() if tests["R@5"]["p_adjusted"] < 0.05}
    return [
        f"""On {len(found)} public corpora that nothing was trained or chosen on (at most {
            max(one["n_examples"] for one, _ in found.values()):,} random examples each, evaluated once, the encoder in
        8 bits, on AVX2 cores; the last table): {gains}. R@5 changes beyond chance on: {
            "; ".join(f"{name} {gain(test)}" for name, test in at_5.items())
        }. Command: `CORPORA=FOLDER bash runs/outside.sh`;
        [data](../runs/results/outside.jsonl)."""
    ]


def _size(n_candidates: int | list[int]) -> str:
    """Candidates of a list, or the least and the most."""
    return f"{n_candidates:,}" if isinstance(n_candidates, int) else "-".join(map(str, n_candidates))


def _outside_table() -> list[str]:
    """R@1 of the corpora that chose nothing."""
    rows = [
        [OUTSIDE[name], _size(one["n_candidates"]), share(one), share(two), compared(two["against"])]
        for name, (one, two) in _outside_results().items()
    ]
    if not rows:
        return []
    return [
        "Corpora that nothing was trained or chosen on:",
        table(["R@1, %", "candidates", "`shipped:minilm`", "re-ranked", "difference"], rows, (1,)),
    ]


def _sample() -> list[str]:
    """On the sample that the package includes, which chose nothing."""
    if (two := read_if_there(STORED.format("sample", "two"))) is None:
        return []
    test = two["against"]
    lower = next(one for one in test["others"] if one["metric"] == "R@5")
    return [
        f"""On the package's sample, which chose nothing ({two["n_examples"]} contexts of a support desk among its
        {two["n_candidates"]} replies): R@1 {gain(test)}; R@5 {gain(lower)}."""
    ]
