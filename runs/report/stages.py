"""Two stages in a pool, and giving no answer."""

from collections.abc import Mapping

from report.figures import (
    change,
    listed,
    machine,
    ms,
    percent,
    read,
    row,
    section,
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
        f"""Does re-ranking by a Cross-encoder help on medquad? After the Bi-encoder, it does only if both scores are
        added. Reordering the Bi-encoder's ten best, the Cross-encoder alone ranks the right answer first in
        {percent(cross["hits@1"])}%, less than the Bi-encoder ({percent(first["hits@1"])}%). The sum of their z-scores
        reaches {percent(both["hits@1"])}%, {change(both["hits@1"] - first["hits@1"])} points.""",
        f"""The first {first["n_examples"]} test questions are ranked among 15,805 answers. All three models are trained
        from MiniLM on 1,920 pairs, with 128 + 48 tokens. Milliseconds are from text to order, with the second core
        busy, on {machine(name)}. Command: `OMP_NUM_THREADS=1 SETS=medquad bash runs/two_stage.sh`; [hits@1 and
        milliseconds against the length](../runs/results/medquad-stages.svg).""",
        _pool(_stages(name, {"bm25": "BM25", "bi": "Bi", "poly-64": "Poly-64"}, FORMS)),
        f"""With {first["n_examples"]} questions, a point is one question, and each result has a 95% interval of 9 to 10
        points to either side. The answers to single questions were not stored, so no difference was tested.""",
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
    gains = {form: _interval(row("forms/dev", form=f"{form} + raw", n=10)["gain"]) for form in ("late", "cross")}
    head = ["second stage", "steps", "minutes", "hits@1", "over the first stage", "over late", "ms added", "in int8"]
    return section(
        "Forms of a second stage",
        f"""Which form and which training of a re-ranker is worth its time? After about equally long training, a late
        Cross-encoder with two joined layers changes hits@1 by {gains["late"]} points, and a full Cross-encoder by
        {gains["cross"]}. No other form or training has a higher hits@1 than the late one.""",
        listed(
            """Training: all re-rankers start from the same Bi-encoder. They train on lists of the same 6,481 questions
            of medquad, which the Bi-encoder was not trained on, in batches of 16 lists, on one thread for about equally
            long. Two trainings ran at a time, so the minutes of equal work differ.""",
            "A list is the answer and eight wrong ones of the Bi-encoder's twelve best, unless a row states otherwise.",
            f"""Evaluation: the first {first["n_examples"]} development questions among 15,805 answers, the ten best
            re-ranked. The Bi-encoder alone has {percent(first["hits@1"])}. Both stages' scores are added, as z-scores
            if the re-ranker was trained to rank alone. In parentheses: 95% intervals of the paired difference.""",
            f"""Milliseconds are those that re-ranking adds, on {machine("forms/time")}. Late forms encoded the answers
            before.""",
            """Commands: `SETS=medquad MODELS=half bash runs/best.sh` and `LIMIT=420 bash runs/forms.sh`; [hits@1
            against milliseconds](../runs/results/forms.svg).""",
        ),
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
        f"""Does re-ranking help in a pool of chat, where every model is nearly always wrong? Hardly: reordering the
        Bi-encoder's ten best, the Cross-encoder alone lowers hits@1 from {percent(first["hits@1"])}% to
        {percent(cross["hits@1"])}%. The sums and mutual learning are slightly best.""",
        f"""Each of the first {first["n_examples"]:,} test cases has one right answer among 51,113 turns. The models are
        those of the earlier run in [mutual learning](#mutual-learning). Milliseconds are measured with the second core
        busy, on {machine(alone)}. Command: `bash runs/mutual.sh`. The models of 1,920 pairs find
        {percent(early["hits@10"])}% of the first {early["n_examples"]} answers among their ten best
        ([data](../runs/results/ubuntu-irc.jsonl)).""",
        _pool(
            _stages(alone, {"bm25": "BM25", "index": "Bi"}, FORMS)
            + _stages(mutual, {"index-mutual": "Bi, mutual"}, MUTUAL)
        ),
    )


def abstention() -> str:
    result = read("medquad/abstention")
    return section(
        "No good answer",
        f"""Does a threshold for 60% right answers keep its precision on test data? Of the answers given,
        {percent(result["precision"])}% are right. {percent(result["answered_without"])}% of the questions without a
        right answer still get one.""",
        f"""The threshold on the Bi-encoder's softmax is chosen on medquad's development questions. For a fifth of them,
        the 15,805 answers lack the right one. It is tested on {result["n_examples"]:,} questions,
        {percent(result["no_answer"])}% without an answer. Command: `bash runs/abstention.sh`; [the
        curve](../runs/results/medquad-abstention.svg).""",
        table(
            ["answered", "right among the answered", "lower end of 95%", "answered among those without an answer"],
            [[f"{percent(result[key])}%" for key in ("coverage", "precision", "low", "answered_without")]],
            range(4),
        ),
    )
