"""The main job on the shipped sample, end to end: train, evaluate, index, answer.

The sample is a support desk of a fictional internet provider, written for the purpose and small.
"""

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal

from polyrank.config.models import PolyConfig, TextPolicy, model_to_dict
from polyrank.config.names import model_folder
from polyrank.config.recipe import DataConfig, Recipe, recipe_from_dict
from polyrank.config.training import LinearSchedule, TrainConfig
from polyrank.data import read_examples, read_pool
from polyrank.errors import MissingExtraError, UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.index import open_index
from polyrank.index.writer import OURS
from polyrank.models import find_backbone
from polyrank.models.artifacts import load_model
from polyrank.records import Context, Ranked
from polyrank.retrieval.build import build_index
from polyrank.retrieval.retrievers import Retriever
from polyrank.scorers.open import corpus_of, load, load_encoder
from polyrank.scorers.protocols import Scorer
from polyrank.storage.durable import check_replaceable
from polyrank.training import train

Start = Literal["embedded", "shipped:convert"]
POLICY = TextPolicy(max_context_tokens=96, max_candidate_tokens=48)
QUESTIONS = (
    ("hi, internet keeps dropping every evening", "Sorry to hear that. Is it wifi only, or wired too?", "both i think"),
    ("my bill is way higher than last month??",),
    ("im moving house in june, can i keep my plan",),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """Replies to one context."""

    context: tuple[str, ...]
    ranked: list[Ranked]


@dataclass(frozen=True, slots=True)
class Quickstart:
    """What the quickstart measured and answered.

    Args:
        summaries: one per scorer, on the held-out part.
        answers: to three new contexts.
        next_steps: what to type next.
    """

    summaries: list[dict[str, Any]]
    answers: list[Answer]
    next_steps: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"summaries": self.summaries, "answers": [asdict(answer) for answer in self.answers]}


def quickstart(
    output: Path,
    *,
    start: Start | None = None,
    overwrite: bool = False,
    max_steps: int | None = None,
    report: Callable[[int, dict[str, Any]], None] = lambda seed, record: None,
    say: Callable[[str], None] = lambda text: None,
) -> Quickstart:
    """Fine-tune on the sample, compare with what that started from, index the replies, answer.

    Args:
        output: folder for run and index.
        start: the embedded backbone makes a Poly-encoder; the shipped ConveRT stays one. None: the first, if installed.
        overwrite: replace an earlier quickstart there.
        max_steps: of training; None: as many as 2 epochs have, or for the ConveRT, whose steps are cheap, 10.
        report: takes training records.
        say: takes lines for the user.
    """
    if output.exists() and any(output.iterdir()) and not overwrite:
        raise UsageError(f"{output} already exists; pass --overwrite or choose another --output")
    index = output / "index"
    check_replaceable(index, ours=OURS, replace=overwrite)
    say(
        "The sample: a support desk of a fictional internet provider, written for this package. It is small; its"
        " figures show that things work, not how good a model is on your data."
    )
    start = start or _best_start(say)
    with as_file(files("polyrank") / "sample") as sample:
        data = DataConfig(
            train=str(sample / "train.jsonl"), valid=str(sample / "valid.jsonl"), speaker="agent", kind="dialogues"
        )
        recipe = (_poly if start == "embedded" else _convert)(data, str(output / "run"), max_steps)
        model = train(recipe, overwrite=overwrite, report=report, say=say)[0].model
        test = read_examples(sample / "test.jsonl").examples
        replies = read_pool(sample / "replies.jsonl")
    say(f"ranking the catalogue of {len(replies)} replies for {len(test)} held-out contexts")
    scorers: dict[str, Scorer] = {"BM25": load("bm25", corpus=corpus_of(pool=replies))}
    if start == "embedded":
        scorers["untuned backbone"] = load(
            "untuned:embedded",
            max_context_tokens=POLICY.max_context_tokens,
            max_candidate_tokens=POLICY.max_candidate_tokens,
        )
    else:
        scorers["ConveRT as shipped"] = load(start)
    scorers["tuned Poly-encoder" if start == "embedded" else "tuned ConveRT"] = load(model)
    summaries = [{"name": name, **summarise(evaluate(scorer, test, pool=replies))} for name, scorer in scorers.items()]
    encoder = load_encoder(model)
    build_index(index, encoder, replies, model=str(model.resolve()), overwrite=overwrite)
    retriever = Retriever(encoder, open_index(index))
    ranked = retriever.respond([Context(turns) for turns in QUESTIONS], k=3)
    answers = [Answer(turns, best) for turns, best in zip(QUESTIONS, ranked, strict=True)]
    return Quickstart(summaries, answers, NEXT_STEPS.format(index=index, model=model, tables=TABLES[start]))


def _best_start(say: Callable[[str], None]) -> Start:
    try:
        find_backbone("embedded")
    except MissingExtraError as error:
        say(f"{error}; until then the ConveRT that comes with polyrank, small and weaker, takes its place")
        return "shipped:convert"
    return "embedded"


def _poly(data: DataConfig, output: str, max_steps: int | None) -> Recipe:
    return Recipe(
        model=PolyConfig(n_codes=16, shared_towers=True),
        text=POLICY,
        data=data,
        train=TrainConfig(
            epochs=2,
            max_steps=max_steps,
            batch_size=32,
            lr=2e-4,
            new_lr=2e-3,
            schedule=LinearSchedule(warmup_steps=10),
            dropout=0.0,
        ),
        output=output,
    )


def _convert(data: DataConfig, output: str, max_steps: int | None) -> Recipe:
    shipped = load_model(model_folder("shipped:convert"))
    settings = tomllib.loads(TABLES["shipped:convert"])["train"]
    return recipe_from_dict(
        {
            "model": model_to_dict(shipped.config),
            "text": asdict(shipped.texts.policy),
            "data": asdict(data),
            "train": {**settings, "max_steps": max_steps},
            "output": output,
        }
    )


TABLES: dict[Start, str] = {
    "embedded": """\
    [model]
    kind = "poly\"""",
    "shipped:convert": """\
    [model]
    kind = "convert"
    [train]
    init_from = "shipped:convert"
    lr = 2e-3
    schedule.final_lr = 2e-6
    batch_size = 64
    epochs = 10""",
}
NEXT_STEPS = """\
Chat with it:      polyrank respond {index}
On your own data:  conversations.jsonl, one per line: {{"turns": [{{"speaker": "agent", "text": "..."}}, ...]}}
                   replies.txt, one reply per line; then a recipe.toml:

    output = "my-run"
{tables}
    [data]
    train = "conversations.jsonl"
    speaker = "agent"

  polyrank train recipe.toml
  polyrank index build my-run/model replies.txt -o my-index
  polyrank respond my-index "hello" "hi, how can I help?" "my wifi is down"
"""
