"""Two stages in a pool, mutual learning, and giving no answer."""

from collections.abc import Mapping

from report.figures import (
    Result,
    change,
    compared,
    last_valid_loss,
    machine,
    ms,
    percent,
    read,
    row,
    section,
    share,
    table,
)

FIGURES = ("hits@1", "hits@2", "hits@5", "hits@10", "hits@50", "MRR")
FORMS = {"alone": "", "cross": "Cross", "cross + z-score": "Cross + z-score"}
MUTUAL = {"reranker": "Cross, mutual", "reranker + z-score": "Cross, mutual + z-score", "alone": ""}


def _stages(name: str, retrievers: Mapping[str, str], forms: Mapping[str, str]) -> list[list[str]]:
    return [
        [
            retrievers[row["what"]],
            f"{row['n']}, {forms[row['form']]}" if row["n"] else "",
            *(percent(row[figure]) for figure in FIGURES),
            ms(row["ms"]),
        ]
        for row in read(name)["rows"]
        if row["what"] in retrievers
    ]


def _pool(rows: list[list[str]]) -> str:
    return table(["retriever", "re-ranked", *FIGURES, "ms"], rows, range(2, 9))


def medquad() -> str:
    name = "medquad/stages"
    first, cross, both = (
        row(name, what="bi", form=form, n=n) for form, n in (("alone", 0), ("cross", 10), ("cross + z-score", 10))
    )
    return section(
        "Two stages: medquad",
        f"""The first {first["n_examples"]} test questions among 15,805 answers; all three models from MiniLM on
        1,920 pairs, 128 + 48 tokens; milliseconds from text to order, with the second core busy, on
        {machine(name)}. Made by `OMP_NUM_THREADS=1 SETS=medquad bash runs/two_stage.sh`; [hits@1 and milliseconds
        against the length](../runs/results/medquad-stages.svg).""",
        _pool(_stages(name, {"bm25": "BM25", "bi": "Bi", "poly-64": "Poly-64"}, FORMS)),
        f"""Reordering the Bi-encoder's ten best, the Cross-encoder alone ranks the right one first in
        {percent(cross["hits@1"])}%, less than the Bi-encoder ({percent(first["hits@1"])}%), but
        the sum of their z-scores reaches {percent(both["hits@1"])}%, {change(both["hits@1"] - first["hits@1"])} points.
        With {first["n_examples"]} questions, a point is one question, and each figure has a 95% interval of 9 to 10
        points to either side; the answers to single questions were not stored, so no difference was tested.""",
    )


def forms() -> str:
    """Forms and trainings of a re-ranker on equal time."""
    titles = {
        "late": "late: two joined layers, mean",
        "late-first": "the first output instead of the mean",
        "late-learnt": "a mean with trained weights instead",
        "late-1": "one joined layer",
        "cross-3": "Cross-encoder of every second layer",
        "cross": "Cross-encoder",
        "alone": "late, trained to rank alone",
        "random": "alone, 31 random wrong answers",
        "margin": "alone, distilled by score differences",
        "kl": "alone, distilled by probabilities",
    }
    first, fits = row("forms/dev", form="alone", n=0), {form: read(f"forms/fit.{form}") for form in titles}
    networks = {one["form"].partition(" ")[0] for one in read("forms/time")["rows"] if one["n"]}
    rows = []
    for form, title in titles.items():
        scale = "z-score" if form in ("alone", "random", "margin", "kl") else "raw"
        own, fit, cells = row("forms/dev", form=f"{form} + {scale}", n=10), fits[form], ["", ""]
        if form in networks:
            timed = [row("forms/time", form=f"{form} {kind} + raw", n=10)["ms"] for kind in ("fp32", "int8")]
            cells = [ms(one - row("forms/time", form="alone", n=0)["ms"]) for one in timed]
        over = "" if form == "late" else _interval(own["over_first"])
        steps = [f"{fit['n_steps']}", f"{fit['seconds'] / 60:.0f}"]
        rows.append([title, *steps, percent(own["hits@1"]), _interval(own["gain"]), over, *cells])
    head = ["second stage", "steps", "minutes", "hits@1", "over the first stage", "over late", "ms added", "in int8"]
    return section(
        "Forms of a second stage",
        f"""Which form and which training of a re-ranker is worth its time: all start from the same Bi-encoder, and
        train on the same 6,481 questions of medquad, which it was not trained on, in batches of 16 lists, on one
        thread for about equally long (two trainings ran at a time, so the minutes of equal work differ). A list is the
        answer and eight wrong ones of the Bi-encoder's twelve best. The first {first["n_examples"]} development
        questions among 15,805 answers, the ten best re-ranked; the Bi-encoder alone has {percent(first["hits@1"])}.
        Both stages' scores are added, as z-scores if the re-ranker was trained to rank alone. In parentheses 95%
        intervals of the paired difference. Milliseconds are those that re-ranking adds, on {machine("forms/time")};
        late forms encoded the answers before. Made by `SETS=medquad MODELS=half bash runs/best.sh` and `LIMIT=420
        bash runs/forms.sh`; [hits@1 against milliseconds](../runs/results/forms.svg).""",
        table(head, rows, range(1, 8)),
    )


def _interval(found: Mapping[str, float]) -> str:
    return f"{change(found['mean'])} ({percent(found['low'])} to {percent(found['high'])})"


def ubuntu() -> str:
    early = row("ubuntu-irc/stages", what="bi", form="alone", n=0)
    alone, mutual = "mutual/ubuntu-irc/stages", "mutual/ubuntu-irc/stages-mutual"
    first = row(alone, what="index", form="alone", n=0)
    cross = row(alone, what="index", form="cross", n=10)
    return section(
        "Two stages: ubuntu-irc",
        f"""One right answer among 51,113 turns of chat: the first {first["n_examples"]:,} test cases, with the
        models of the next section; milliseconds with the second core busy, on {machine(alone)}. Made by
        `bash runs/mutual.sh`. (The models of 1,920 pairs find {percent(early["hits@10"])}% of the first
        {early["n_examples"]} answers among their ten best: [figures](../runs/results/ubuntu-irc.jsonl).)""",
        _pool(
            _stages(alone, {"bm25": "BM25", "index": "Bi"}, FORMS)
            + _stages(mutual, {"index-mutual": "Bi, mutual"}, MUTUAL)
        ),
        f"""Here re-ranking by the Cross-encoder alone lowers hits@1 from {percent(first["hits@1"])}% to
        {percent(cross["hits@1"])}%. The sums and mutual learning are slightly best, in a pool
        where every model is nearly always wrong.""",
    )


def mutual_learning() -> str:
    sets = ("star", "ubuntu-irc")
    names = {
        "bi-many": "Bi-encoder, 1,000 examples",
        "bi": "Bi-encoder",
        "cross": "Cross-encoder",
        "ensemble": "both, summed",
    }
    rows = [[title, *(cell for name in sets for cell in _pair(name, key))] for key, title in names.items()]
    many = {name: [read(f"mutual/{name}/{key}") for key in ("bi-many", "bi-mutual-many")] for name in sets}
    mrr = [cell for name in sets for cell in (share(result, "MRR") for result in many[name])]
    loss = {
        key: last_valid_loss(f"mutual/{key}")
        for key in ("star/bi", "star/bi-mutual", "ubuntu-irc/bi", "ubuntu-irc/bi-mutual")
    }
    gaps = [read(f"mutual/{name}/ensemble")["tests"]["cross against bi"] for name in ("star-640", "star")]
    few = [
        read(f"mutual/star-640/{name}")
        for name in ("bi-many", "bi-mutual-many", "bi-heavy", "cross-heavy", "bi-distilled")
    ]
    return section(
        "Mutual learning",
        """The rows of the paper's Table 1 with other networks. MiniLM (6 layers of 384, trained for similarity)
        replaces
        BERT; the Bi-encoder uses the mean of outputs and the Cross-encoder a linear head on the first output, where
        the paper has projections of the first output and a tanh head; and 64 + 32 tokens replace 300 + 72. One seed,
        bf16 on one core with AMX. Both networks are first trained separately on
        4,000 contexts with 8 candidates each, then once more on the same: alone, or
        together (T = 3, alpha = 1, as in the paper). R@1 among 100 of the first 300 test examples, and of 1,000 for
        the Bi-encoders; after the semicolon the paired difference from the same network trained alone. Made by
        `BUDGET=4000 NEGATIVES=7 VALID=60 LIMIT=300 bash runs/mutual.sh`; validation by epoch:
        [star](../runs/results/mutual-star-curves-mutual.svg),
        [ubuntu-irc](../runs/results/mutual-ubuntu-irc-curves-mutual.svg).""",
        table(
            ["", *(f"{name}, {how}" for name in sets for how in ("alone", "mutual"))],
            [rows[0], ["its MRR", *mrr], *rows[1:]],
        ),
        f"""The Bi-encoder's differences have the paper's sign, but none is significant, and the Cross-encoder's are
        nearly 0: these results do not show that mutual learning improves R@1. It does lower the loss on held-out
        lists: after a second pass over the same lists
        the Bi-encoder's loss is {loss["star/bi"]:.2f} on star and {loss["ubuntu-irc/bi"]:.2f} on ubuntu-irc when
        trained alone, and {loss["star/bi-mutual"]:.2f} and {loss["ubuntu-irc/bi-mutual"]:.2f} with the
        Cross-encoder's softer targets in addition to the labels.""",
        f"""The gain depends on the Cross-encoder. With a sixth of the contexts (640), it was {compared(gaps[0])},
        compared with the Bi-encoder on star ({compared(gaps[1])} with 4,000), and the Bi-encoder gained nothing
        measurable:
        {percent(few[1]["metrics"]["R@1"])} instead of {percent(few[0]["metrics"]["R@1"])} of {few[1]["n_examples"]:,}
        examples ({compared(few[1]["against"])}), although its loss fell to
        {last_valid_loss("mutual/star-640/bi-mutual"):.2f} from {last_valid_loss("mutual/star-640/bi"):.2f}. With nine
        times the weight on the KL (`TAG=heavy EXTRA="--set train.method.alpha=9"`) both were
        lower, not significantly ({compared(few[2]["against"])} and {compared(few[3]["against"])}); with a ConveRT tuned
        on star as a frozen teacher the Bi-encoder had {percent(few[4]["metrics"]["R@1"])} of {few[4]["n_examples"]}
        examples ({compared(few[4]["against"])}). [Data](../runs/results/mutual.jsonl).""",
    )


def _pair(name: str, key: str) -> tuple[str, str]:
    """A network trained alone, and with the other."""
    mutual_key = "bi-mutual-many" if key == "bi-many" else f"{key}-mutual"
    alone, mutual = read(f"mutual/{name}/{key}"), read(f"mutual/{name}/{mutual_key}")
    return share(alone), share(mutual) + _tested(mutual)


def _tested(result: Result) -> str:
    return f"; {compared(result['against'])}" if "against" in result else ""


def abstention() -> str:
    result = read("medquad/abstention")
    return section(
        "No good answer",
        f"""A threshold on the Bi-encoder's softmax, chosen on medquad's development questions for 60% right
        answers; for a fifth of them, the 15,805 answers lack the right one. Tested on {result["n_examples"]:,}
        questions, {percent(result["no_answer"])}% without an answer. Made by `bash runs/abstention.sh`; [the
        curve](../runs/results/medquad-abstention.svg).""",
        table(
            ["answered", "right among the answered", "lower end of 95%", "answered among those without an answer"],
            [[f"{percent(result[key])}%" for key in ("coverage", "precision", "low", "answered_without")]],
            range(4),
        ),
    )
