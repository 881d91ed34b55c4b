"""The main job on the shipped sample, end to end: train, evaluate, index, answer.

The sample is a support desk of a fictional internet provider, written for the purpose and small.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from polyrank.config import DataConfig, PolyConfig, Recipe, TextPolicy, TrainConfig
from polyrank.data import read_examples, read_pool
from polyrank.errors import UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.index import open_index
from polyrank.inference import load_scorer
from polyrank.records import Context, Ranked
from polyrank.retrieval import Retriever, build_index
from polyrank.scorers import load_encoder, open_scorer
from polyrank.training import train

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
    """What the quickstart found.

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
    overwrite: bool = False,
    epochs: int = 2,
    report: Callable[[int, dict[str, Any]], None] = lambda seed, record: None,
    say: Callable[[str], None] = lambda text: None,
) -> Quickstart:
    """Fine-tune a Poly-encoder from the embedded backbone on the sample, compare it, index the replies, answer.

    Args:
        output: folder for run and index.
        overwrite: replace an earlier quickstart there.
        epochs: of training.
        report: takes training records.
        say: takes lines for the user.
    """
    if output.exists() and any(output.iterdir()) and not overwrite:
        raise UsageError(f"{output} already exists; pass --overwrite or choose another --output")
    say(
        "The sample: a support desk of a fictional internet provider, written for this package. It is small; its"
        " figures show that things work, not how good a model is on your data."
    )
    with as_file(files("polyrank") / "sample") as sample:
        recipe = Recipe(
            model=PolyConfig(n_codes=16, shared_towers=True),
            text=POLICY,
            data=DataConfig(
                train=str(sample / "train.jsonl"), valid=str(sample / "valid.jsonl"), speaker="agent", kind="dialogues"
            ),
            train=TrainConfig(
                epochs=epochs, batch_size=32, lr=2e-4, new_lr=2e-3, warmup_steps=10, schedule="linear", dropout=0.0
            ),
            output=str(output / "run"),
        )
        model = train(recipe, overwrite=overwrite, report=report, say=say)[0].model
        test = read_examples(sample / "test.jsonl").examples
        replies = read_pool(sample / "replies.jsonl")
    say(f"ranking the catalogue of {len(replies)} replies for {len(test)} held-out contexts")
    scorers = {
        "BM25": open_scorer("bm25", pool=replies),
        "untuned backbone": open_scorer("untuned:embedded", policy=POLICY),
        "tuned Poly-encoder": load_scorer(model),
    }
    summaries = [{"name": name, **summarise(evaluate(scorer, test, pool=replies))} for name, scorer in scorers.items()]
    index = output / "index"
    encoder = load_encoder(model)
    build_index(index, encoder, replies, model=str(model.resolve()), overwrite=overwrite)
    retriever = Retriever(encoder, open_index(index))
    ranked = retriever.respond([Context(turns) for turns in QUESTIONS], k=3)
    answers = [Answer(turns, found) for turns, found in zip(QUESTIONS, ranked, strict=True)]
    return Quickstart(summaries, answers, NEXT_STEPS.format(index=index, model=model))


NEXT_STEPS = """\
Chat with it:      polyrank respond {index}
On your own data:  conversations.jsonl, one per line: {{"turns": [{{"speaker": "agent", "text": "..."}}, ...]}}
                   replies.txt, one reply per line; then a recipe.toml:

    output = "my-run"
    [model]
    kind = "poly"
    [data]
    train = "conversations.jsonl"
    speaker = "agent"

  polyrank train recipe.toml
  polyrank index build my-run/model replies.txt -o my-index
  polyrank respond my-index "hello" "hi, how can I help?" "my wifi is down"
"""
