"""The report of a fit: a page of one file, the same as Markdown, and everything as JSON."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt

from polyrank.answering.explain import explain
from polyrank.evaluation.plots import new_figure, save
from polyrank.evaluation.protocols import Evaluation, rankable
from polyrank.ranking.metrics import hit_at
from polyrank.records import Example
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms import term_kind
from polyrank.storage.durable import write_file
from polyrank.wording import percent

N_ANSWERS = 10
HEADINGS = ("step", "MRR of validation, %", "gain", "result", "CPU minutes", "ms per answer")
Label = Callable[[str], str]
MARKUP = re.compile(r"[\\`*_\[\]<&|~]")  # in texts of users


@dataclass(frozen=True, slots=True)
class Line:
    """A step and its effect, ready for JSON; figures are of validation lists, with 95% intervals over dialogues.

    Args:
        step: the name of the step.
        metrics: "MRR" and "R@1" of the ranker with it, or of a baseline alone; empty if it has none.
        gain: of the MRR over the ranker before; empty for a start.
        kept: whether it is a part of the ranker; None: it was only measured.
        minutes: processor minutes of the step.
        milliseconds: of an answer with it; None: not measured.
        note: why.
    """

    step: str
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gain: Mapping[str, float] = field(default_factory=dict)
    kept: bool | None = None
    minutes: float = 0.0
    milliseconds: float | None = None
    note: str = ""

    def cells(self) -> list[str]:
        """Under ``HEADINGS``, for a terminal and for the report."""
        kept = {True: "kept", False: "not kept", None: ""}[self.kept]
        ms = "" if self.milliseconds is None else f"{self.milliseconds:.1f}"
        result = ": ".join(filter(None, (kept, self.note)))
        spent = f"{self.minutes:.1f}" if self.minutes else ""
        return [self.step, percent(self.metrics.get("MRR", {})), percent(self.gain, signed=True), result, spent, ms]


def _cell(text: str) -> str:
    """A text of a user in a line of Markdown, in which it means only itself."""
    return MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.filters["cell"] = _cell


def report_text(figures: Mapping[str, Any], *, plot: bool = False) -> str:
    """The report as Markdown; texts of users are escaped.

    Args:
        figures: ready for JSON; see ``polyrank.fitting.fit``.
        plot: whether report.svg is there.
    """
    steps = [Line(**line).cells() for line in figures["lines"]]
    kinds = {row["kind"]: term_kind(row["kind"]).__doc__ for row in figures["terms"]}
    meanings = {kind: re.split("[:\n]", doc or "", maxsplit=1)[0].lower() for kind, doc in kinds.items()}
    shown = {"steps": [HEADINGS, *steps], "meanings": meanings, "plot": plot}
    return TEMPLATES.get_template("report.md.jinja").render(figures, **shown, figure=figure_of, percent=percent)


def result_of(text: str) -> str:
    """The first part of a report, without its heading: the result in a few sentences, and the terms.

    >>> result_of("# A fit\\n\\n## Result\\n\\nOne.\\n\\n- **a**: b\\n\\n| c |\\n\\n## Steps\\n")
    'One.\\n\\n- a: b'
    """
    return re.sub(r"\*\*|\\", "", text.split("\n\n## Result\n\n")[1].partition("\n\n|")[0])


def write_report(folder: Path, figures: Mapping[str, Any]) -> None:
    """Write report.json, report.md, report.html and its plot."""
    plot = _plot(figures, folder / "report.svg")
    text = report_text(figures, plot=bool(plot))
    body = re.sub('<img src="report.svg"[^>]*>', lambda _: plot, MarkdownIt("js-default").render(text))
    title = f"polyrank fit {figures['settings']['data']}"
    page = TEMPLATES.get_template("report.html.jinja").render(title=title, body=body)
    values = json.dumps(figures, ensure_ascii=False, indent=1, sort_keys=True)
    for ending, content in (("html", page), ("md", text), ("json", values)):
        write_file(folder / f"report.{ending}", content.encode())


def answers_of(ranker: Ranker, tests: Sequence[Example], evaluation: Evaluation, label: Label) -> list[dict[str, Any]]:
    """Ten right and ten wrong answers of the first test lists, each with its reasons.

    Args:
        ranker: that answered.
        tests: the lists.
        evaluation: of the ranker on them.
        label: the label of a term's name.
    """
    chosen: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for example, record in zip(rankable(tests), evaluation.records, strict=True):  # ids may repeat
        right = bool(record.relevant) and hit_at(record.placement, 1) == 1
        if record.scores is None or not record.relevant or len(chosen[right]) == N_ANSWERS:
            continue
        best = example.candidates[int(record.scores.argmax())]
        answer = {"context": list(example.context), "said": example.response, "answer": best, "right": right}
        chosen[right].append(answer | {"reasons": _reasons(explain(ranker, example.query, best, max_words=0), label)})
    return [*chosen[True], *chosen[False]]


def _reasons(why: Explanation, label: Label) -> str:
    """The terms of a score, and the words that contribute most."""
    parts = {label(name.partition(" ")[2]): (part.weight or 1.0) * part.score for name, part in why.parts.items()}
    tokens = [token for turn in why.turns for token in turn.tokens if token.share > 0 and len(token.text.strip()) > 2]
    words = dict.fromkeys(token.text.strip() for token in sorted(tokens, key=lambda token: -token.share))
    terms = ", ".join(f"{name} {value:+.1f}" for name, value in (parts or {"score": why.score}).items())
    return "; ".join(filter(None, (terms, f"words: {', '.join([*words][:4])}" if words else "")))


def ranked_last(lists: Sequence[Example], reciprocal_ranks: Sequence[float]) -> list[Example]:
    """The lists whose right reply came last, or nearly always, in several partitions: its label may be wrong.

    >>> lists = [Example((turn,), tuple(map(str, range(20))), (0,)) for turn in ("a", "b", "c")]
    >>> [one.context for one in ranked_last(lists, [1 / 19, 1 / 20, 1 / 20])]
    [('b',), ('c',)]
    """
    ranked = zip(lists, reciprocal_ranks, strict=True)
    return [one for one, reciprocal in ranked if reciprocal < 1 / (len(one.candidates) - 0.5)]


def figure_of(summary: Mapping[str, Any], name: str) -> dict[str, float]:
    """A metric with its interval, from ``polyrank.summarise``; empty if the lists are too short for it."""
    if name not in summary["metrics"]:
        return {}
    low, high = summary["intervals"][name]
    return {"mean": summary["metrics"][name], "low": low, "high": high}


def commands_of(
    folder: Path, files: Mapping[str, Path], models: Sequence[str], settings: Mapping[str, Any]
) -> list[str]:
    """The commands that make the ranker and the index again.

    Args:
        folder: of the fit.
        files: the parts of the data.
        models: names of the models of the ranker; those of trainings have their recipes next to them.
        settings: ``ms`` and ``precision`` of the fit.
    """
    runs = [Path(name).parent / "recipe.json" for name in models if Path(name).is_dir()]
    ms = [] if settings["ms"] is None else ["--ms", f"{settings['ms']:g}"]
    tune = ["tune", *models, "--valid", files["valid"], "--dialogues", files["train"], "-o", "best", *ms]
    lines = [["train", recipe] for recipe in runs]
    lines += [[*tune, "--precision", f"{settings['precision']:g}"], ["evaluate", "best", files["test"]]]
    lines.append(["index", "build", "best", folder / "replies.jsonl", "-o", "my-index"])
    return [shlex.join(["polyrank", *map(str, line)]) for line in lines]


def _plot(figures: Mapping[str, Any], path: Path) -> str:
    """R@1 against milliseconds, with labels where no faster step is as good, as SVG; empty without matplotlib."""
    if find_spec("matplotlib") is None:
        return ""
    axes = (figure := new_figure(7, 3.6)).subplots()
    lines = [line for line in [figures["chosen"], *figures["lines"]] if line["milliseconds"] and line["metrics"]]
    chosen, *others = ((line["milliseconds"], 100 * line["metrics"]["R@1"]["mean"], line["step"]) for line in lines)
    axes.plot(*chosen[:2], "*", markersize=18, color="#D55E00", label="chosen")
    best = 0.0
    for ms, r1, step in sorted(others):
        axes.plot(ms, r1, "o", color="#0072B2")
        if r1 > best:  # labels of all would cover each other
            axes.annotate(step, (ms, r1), xytext=(0, 7), textcoords="offset points", ha="center", fontsize="small")
        best = max(best, r1)
    axes.set(xlabel="milliseconds per answer", ylabel="R@1 of validation, %")
    axes.margins(0.25)
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")
    save(figure, path)
    text = path.read_text("utf-8")
    return text[text.index("<svg") :]
