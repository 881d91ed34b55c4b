"""The whole workflow on the shipped sample: train, tune, evaluate, index, answer.

The sample is small and was written for this package: the support desk of a fictional internet provider.
"""

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyrank.answering.answers import Answer
from polyrank.answering.build import build_index
from polyrank.answering.opening import open_replies
from polyrank.config.names import SAMPLE
from polyrank.config.recipe import DataConfig
from polyrank.config.starter_recipe import RECIPES, Start, best_start
from polyrank.data import read_examples, read_pool
from polyrank.errors import MissingExtraError, UsageError
from polyrank.evaluation import Evaluation, evaluate, plot_comparison, summarise
from polyrank.evaluation.layout import SHOWN
from polyrank.index import check_target
from polyrank.loading.recipes import load_recipe
from polyrank.scorers.lexical import corpus_of
from polyrank.scorers.open import load
from polyrank.scorers.protocols import Scorer
from polyrank.training import train
from polyrank.tuning import tune

QUESTIONS = (
    ("hi, internet keeps dropping every evening", "Sorry to hear that. Is it wifi only, or wired too?", "both i think"),
    ("my bill is way higher than last month??",),
    ("im moving house in june, can i keep my plan",),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quickstart:
    """The results of the quickstart.

    Args:
        summaries: one per scorer, on the held-out part.
        answers: to ``QUESTIONS``.
        next_steps: commands to continue with.
    """

    summaries: list[dict[str, Any]]
    answers: list[Answer]
    next_steps: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        answers = zip(QUESTIONS, self.answers, strict=True)
        replies = [{"context": turns, "ranked": [asdict(one) for one in answer.ranked]} for turns, answer in answers]
        return {"summaries": self.summaries, "answers": replies}


def quickstart(
    output: Path,
    *,
    start: Start | None = None,
    overwrite: bool = False,
    max_steps: int | None = None,
    report: Callable[[int, dict[str, Any]], None] = lambda seed, record: None,
    notify: Callable[[str], None] = lambda text: None,
) -> Quickstart:
    """Fine-tune a model on the sample, tune a ranker, compare both with their start, index the replies, and answer.

    Args:
        output: folder for run, ranker and index.
        start: a shipped encoder, or the embedded backbone. None: the best that is installed.
        overwrite: replace an earlier quickstart there.
        max_steps: of training; None: 2 epochs, or 10 for the ConveRT, whose steps are cheap.
        report: called with each training record.
        notify: called with each message for the user.
    """
    if output.exists() and any(output.iterdir()) and not overwrite:
        raise UsageError(f"{output} already exists; set `overwrite`, or choose another `output`")
    index = output / "index"
    check_target(index, overwrite=overwrite)
    notify(
        "The sample is a support desk of a fictional internet provider, written for this package. It is small: its"
        " figures show that polyrank works, not how good a model is on your data."
    )
    inferred, start = start is None, start or best_start()
    if inferred and start == "shipped:convert":
        missing = MissingExtraError("the embedded backbone", "embedded")
        notify(f"{missing}; until then polyrank uses its shipped ConveRT, which is smaller and weaker")
    data = DataConfig(
        train=str(SAMPLE / "train.jsonl"), valid=str(SAMPLE / "valid.jsonl"), speaker="agent", kind="dialogues"
    )
    recipe = load_recipe(
        {**tomllib.loads(RECIPES[start]), "data": asdict(data), "output": str(output / "run")},
        [f"train.max_steps={max_steps or 'none'}"],
    )
    model = train(recipe, overwrite=overwrite, report=report, notify=notify)[0].model
    valid, test = (read_examples(SAMPLE / f"{part}.jsonl").examples for part in ("valid", "test"))
    notify("tuning a ranker: the model, how often replies were said, and other terms, on the validation lists")
    dialogues = read_examples(SAMPLE / "train.jsonl", speaker="agent").examples
    tuning = tune([model.resolve()], valid, dialogues=dialogues)
    best = output / "best"
    tuning.ranker.save(best, replace=overwrite)
    replies = read_pool(SAMPLE / "replies.jsonl")
    notify(f"ranking the catalogue of {len(replies)} replies for {len(test)} held-out contexts")
    scorers: dict[str, Scorer] = {"BM25": load("bm25", corpus=corpus_of(pool=replies))}
    if start == "embedded":
        scorers["untuned backbone"] = load("untuned:embedded", max_context_tokens=128, max_candidate_tokens=48)
    else:
        scorers[f"{start}, untuned"] = load(start)
    scorers["trained ConveRT" if start == "shipped:convert" else "trained Bi-encoder"] = load(model)
    if tuning.is_better:
        scorers[f"tuned: {len(tuning.ranker.terms)} terms"] = tuning.ranker
    evaluations = {name: evaluate(scorer, test, pool=replies) for name, scorer in scorers.items()}
    summaries = [{"name": name, **summarise(evaluation)} for name, evaluation in evaluations.items()]
    picture = _picture(summaries, evaluations, output / "quickstart.svg")
    build_index(index, best, replies, overwrite=overwrite)
    with open_replies(index) as catalogue:
        answers = catalogue.answer_all(QUESTIONS, k=3)
    more = WITHOUT_TRAINING if start == "shipped:minilm" else ""
    return Quickstart(summaries, answers, NEXT_STEPS.format(index=index, picture=picture) + more)


def _picture(summaries: list[dict[str, Any]], evaluations: dict[str, Evaluation], path: Path) -> str:
    """The path of the plot, or how to install the library that draws it."""
    try:
        plot_comparison(summaries, evaluations, path, metrics=SHOWN)
    except MissingExtraError as error:
        return str(error)
    return str(path)


NEXT_STEPS = """\
Plot of the table: {picture}
Chat with it:      polyrank respond {index}
From Python:       polyrank.open("{index}").answer("my wifi is down")
On your own data:  chats as exported (CSV, Excel, Slack, WhatsApp, ...):

  polyrank import chats export.csv -o chats.jsonl
  polyrank split chats.jsonl -o data
  polyrank train data/recipe.toml
  polyrank import replies data/train.jsonl --from-dialogues -o replies.jsonl
  polyrank tune data/run/model --valid data/valid.jsonl --dialogues data/train.jsonl -o best
  polyrank index build best replies.jsonl -o my-index
"""

WITHOUT_TRAINING = """
Without training:

  polyrank index build shipped:rerank replies.jsonl -o untrained
"""
