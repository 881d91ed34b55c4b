"""Two stages in a pool, and giving no answer."""

from collections.abc import Mapping

from report.figures import (
    change,
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
