"""The report of a fit: a page of one file, the same as Markdown, and everything as JSON."""

import html
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from markdown_it import MarkdownIt

from polyrank.answering.explain import explain
from polyrank.evaluation.plots import new_figure, save
from polyrank.evaluation.protocols import Evaluation
from polyrank.ranking.metrics import hit_at
from polyrank.records import Example
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms import term_kind
from polyrank.storage.durable import write_file
from polyrank.wording import percent

N_ANSWERS = 10
MEASURES = {
    "R@1": "R@1: the given reply is first",
    "R@5": "R@5: among the first 5",
    "R@10": "R@10: among the first 10",
    "MRR": "MRR: the mean of 1 / its rank",
}
HEADINGS = ("step", "MRR of validation, %", "gain", "result", "CPU minutes", "ms per answer")
MARKUP = re.compile(r"[\\`*_\[\]<&|~]")  # in texts of users
Label = Callable[[str], str]


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


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: a title, paragraphs and tables, in the order in which they are shown."""

    title: str
    paragraphs: Sequence[str] = ()
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    commands: Sequence[str] = ()

    def markdown(self) -> str:
        """As Markdown.

        >>> print(Section("Data", ["2 pairs."], ["part", "pairs"], [["*train*", "1|2"]]).markdown())
        ## Data
        <BLANKLINE>
        2 pairs.
        <BLANKLINE>
        | part | pairs |
        | --- | --- |
        | \\*train\\* | 1\\|2 |
        """
        blocks = [f"## {self.title}", *self.paragraphs]
        if self.rows:
            lines = [self.headings, ["---"] * len(self.headings), *self.rows]
            cells = ([MARKUP.sub(r"\\\g<0>", " ".join(cell.split())) for cell in line] for line in lines)
            blocks.append("\n".join(f"| {' | '.join(line)} |" for line in cells))
        if self.commands:
            blocks.append("\n".join(("```sh", *self.commands, "```")))
        return "\n\n".join(blocks)

    def html(self) -> str:
        """As a part of a page; HTML in texts is escaped."""
        return str(MarkdownIt("js-default").render(self.markdown()))


def write_report(folder: Path, figures: Mapping[str, Any]) -> None:
    """Write report.json, report.md, report.html and its plot.

    Args:
        folder: of the fit.
        figures: ready for JSON; see ``polyrank.fitting.fit``.
    """
    answers = [_answers(figures, right) for right in (True, False)]
    sections = [summary(figures), _steps(figures), _data(figures), *answers, _by_hand(figures)]
    title = f"polyrank fit {figures['settings']['data']}"
    text = "\n\n".join([f"# {title}", *(section.markdown() for section in sections)])
    first, *others = (section.html() for section in sections)
    body = "\n".join([first, _plot(figures, folder / "report.svg"), *others])
    template = Template(Path(__file__).with_suffix(".html").read_text("utf-8"))
    page = template.substitute(title=html.escape(title), body=body)
    values = json.dumps(figures, ensure_ascii=False, indent=1, sort_keys=True)
    for ending, content in (("html", page), ("md", f"{text}\n"), ("json", values)):
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
    example_of = {example.id: example for example in tests}
    for record in evaluation.answerable:
        right = hit_at(record.placement, 1) == 1
        if record.scores is None or len(chosen[right]) == N_ANSWERS:
            continue
        example = example_of[record.id]
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


def figure_of(summary: Mapping[str, Any], name: str) -> dict[str, float]:
    """A metric with its interval, from ``polyrank.summarise``; empty if the lists are too short for it."""
    if name not in summary["metrics"]:
        return {}
    low, high = summary["intervals"][name]
    return {"mean": summary["metrics"][name], "low": low, "high": high}


def summary(figures: Mapping[str, Any]) -> Section:
    """The result in a few sentences, and its figures next to those of BM25."""
    test, threshold = figures["test"], figures["threshold"]
    ranker, bm25 = test["ranker"], test["BM25"]
    number = " to ".join(map(str, n)) if isinstance(n := ranker["n_candidates"], list) else n
    first, other = (percent(figure_of(one, "R@1")).replace(" ", "% ", 1) for one in (ranker, bm25))
    text = [
        f"The ranker puts the reply that was given first in {first} of {ranker['n_examples']:,} test contexts, each"
        f" with {number} candidates; BM25, a search by words, in {other}. No choice used the test.",
        f"No threshold was set: {threshold.get('problem')}.",
        f"An answer takes {figures['chosen']['milliseconds']:.1f} ms on this machine. Its score is a weighted sum of:",
        "\n".join(parts_of(figures["terms"])),
    ]
    if chosen := threshold.get("chosen"):
        text[1] = (
            f"With its threshold it answers {100 * chosen['coverage']:.0f}% of validation contexts, searched in all"
            f" replies of the lists, and {100 * chosen['precision']:.0f}% of these answers are right."
        )
    shown = [name for name in MEASURES if name in ranker["metrics"]]
    rows = [[MEASURES[name], *(percent(figure_of(one, name)) for one in (ranker, bm25))] for name in shown]
    return Section("Result", text, ["measure, %", "ranker", "BM25"], rows)


def parts_of(terms: Sequence[Mapping[str, Any]]) -> list[str]:
    """The terms of a ranker, those of a kind together, with what the kind means."""
    names: dict[str, list[str]] = {}
    for row in (row for row in terms if row["weights"]):
        names.setdefault(row["kind"], []).append(row["name"])
    meanings = {kind: re.split("[:\n]", term_kind(kind).__doc__ or "", maxsplit=1)[0].lower() for kind in names}
    return [f"- **{', '.join(these)}**: {meanings[kind]}" for kind, these in names.items()]


def _steps(figures: Mapping[str, Any]) -> Section:
    text = [
        "Each step is judged on validation lists; the gain is that of the ranker with it over the ranker before, with a"
        " 95% interval over conversations. A model is kept if the interval excludes 0, in MRR or in likelihood; terms"
        " without training are kept as `polyrank tune` chooses them.",
        f"Used: {figures['settings']['used']:.1f} of {figures['settings']['minutes']:g} minutes.",
    ]
    untried = [
        f"{name} ({'not estimated' if minutes is None else f'about {minutes:.1f} minutes'})"
        for name, minutes in figures["untried"].items()
    ]
    if untried:
        text[-1] += f" Not tried: {', '.join(untried)}."
    return Section("Steps", text, HEADINGS, [Line(**line).cells() for line in figures["lines"]])


def _data(figures: Mapping[str, Any]) -> Section:
    facts = figures["data"]
    languages = ", ".join(f"{code} {100 * share:.0f}%" for code, share in facts["languages"].items())
    text = [
        f"{facts['replies']:,} replies in the catalogue. {100 * facts['repeated']:.0f}% of the training pairs have a"
        f" reply that was given more than once. Languages of contexts: {languages}.",
        *filter(None, [facts["warning"]]),
    ]
    rows = [[part, f"{facts['conversations'][part]:,}", f"{n:,}"] for part, n in facts["pairs"].items()]
    rows += [["suspect label: the reply ranks last", *texts] for texts in facts["suspects"][:5]]
    return Section("Data", text, ["part", "conversations", "pairs"], rows)


def _answers(figures: Mapping[str, Any], right: bool) -> Section:
    chosen = [one for one in figures["test"]["answers"] if one["right"] is right]
    rows = [[" / ".join(one["context"][-2:]), one["answer"], one["said"], one["reasons"]] for one in chosen]
    title = f"{'Right' if right else 'Wrong'} answers of the test"
    return Section(title, [] if rows else ["None."], ["context", "answer", "said", "reasons"], rows)


def _by_hand(figures: Mapping[str, Any]) -> Section:
    machine = figures["machine"]
    about = f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}, {machine['system']}"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return Section("The same by hand", [f"{about}; {versions}."], commands=figures["commands"])


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
    """R@1 against milliseconds, with labels where no faster step is as good, as SVG; a sentence without matplotlib."""
    if find_spec("matplotlib") is None:
        return "<p>Install polyrank[plots] for a plot of R@1 against milliseconds.</p>"
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
    return f"<figure>{text[text.index('<svg') :]}</figure>"
