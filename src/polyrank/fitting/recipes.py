"""The trainings that a fit tries: recipes that suit the size of the data, and how long they take on this machine."""

import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from typing import Any, Self

from polyrank.config.starter_recipe import Start, best_start, for_given_negatives, starter_recipe
from polyrank.evaluation import evaluate
from polyrank.fitting.data import FitData
from polyrank.records import Example
from polyrank.scorers.protocols import Scorer
from polyrank.training.data import n_given

MANY_REPEATS = 0.2  # from this share of repeated replies on, four passes with dropout rank better than two without
MAX_PASS = 60_000  # pairs of one pass; more than two passes over so many gain little in their time
MAX_VALID = 300  # lists that choose the best step of a training; ``tune`` uses all
N_TIMED = 6
Train = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], Scorer]  # of a recipe, reporting records
FEWEST_STEPS = 60  # a training of fewer updates is not worth its place in the ranker


@dataclass(frozen=True, slots=True)
class Planned:
    """A training that a fit tries.

    Args:
        name: in tables.
        folder: the name of its run folder.
        tables: its recipe, complete but for data and output.
        like: the folder of an earlier training that takes as long for an update; empty: none.
        is_kept: whether its model may become a term; otherwise it is only measured alone, for the learning curve.
    """

    name: str
    folder: str
    tables: Mapping[str, Any]
    like: str = ""
    is_kept: bool = True

    def recipe(self, data: FitData, output: Path, **changes: Any) -> dict[str, Any]:
        """The tables of its recipe.

        Args:
            data: to train on.
            output: the run folder.
            changes: keys of the table ``train``.
        """
        files = {name: str(data.files[name].resolve()) for name in ("train", "valid")}
        data_table = {**files, "speaker": data.speaker, "max_valid": MAX_VALID, **self.tables.get("data", {})}
        trained = {**self.tables["train"], "evaluate_per_epoch": 1, "early_stopping": 3, **changes}
        return {**self.tables, "data": data_table, "train": trained, "output": str(output.resolve())}

    @property
    def n_checks(self) -> int:
        """Validations: after each pass, and at the end of a shortened one."""
        return int(self.tables["train"]["epochs"]) + 1

    def n_steps(self, data: FitData) -> int:
        """Updates of all its passes."""
        n = min(len(data.pairs), self.tables.get("data", {}).get("max_train", len(data.pairs)))
        return int(self.tables["train"]["epochs"] * ceil(n / self.tables["train"]["batch_size"]))


def planned_trainings(data: FitData) -> list[Planned]:
    """The trainings in the order of their expected gain for their time, with starts that are installed.

    Data with repeated replies get four passes with dropout, other data two; large data fewer.
    """
    start = best_start()
    first = _tables(start, data)
    if start == "shipped:convert":
        return [Planned("ConveRT", "convert", first)]
    passes = max(1, min(4 if data.repeated > MANY_REPEATS else 2, floor(2 * MAX_PASS / len(data.pairs))))
    first["train"] |= {"epochs": passes, "dropout": 0.1 if passes > 2 else 0.0}
    found = [Planned("Bi-encoder", "bi", first), Planned("ConveRT", "convert", _tables("shipped:convert", data))]
    if start == "shipped:minilm":  # the same package has shipped:late
        late = tomllib.loads(starter_recipe("shipped:late"))
        negatives = late["train"]["negatives"]
        negatives["n"] = min(negatives["n"], len({pair.response for pair in data.pairs}) - 1)
        found.append(Planned("second stage", "late", late))
    again = {**first, "train": {**first["train"], "seeds": [2]}}
    found.append(Planned("Bi-encoder, another seed", "bi-2", again, like="bi"))
    for part in (4, 2):
        fewer = {**first, "data": {"max_train": max(1, len(data.pairs) // part)}}
        found.append(Planned(f"Bi-encoder of 1/{part} of the pairs", f"part-{part}", fewer, like="bi", is_kept=False))
    return [*found, Planned("Bi-encoder of all pairs", "bi", first, like="bi", is_kept=False)]


def _tables(start: Start, data: FitData) -> dict[str, Any]:
    recipe = starter_recipe(start)
    return tomllib.loads(for_given_negatives(recipe) if n_given(data.pairs) else recipe)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a training takes.

    Args:
        start: seconds until the first update.
        step: seconds of an update.
        check: seconds of a validation.
    """

    start: float
    step: float
    check: float

    @classmethod
    def measured(cls, planned: Planned, data: FitData, folder: Path, train: Train, clock: Callable[[], float]) -> Self:
        """Train for a few updates, into a folder that is removed again, and rank a few lists."""
        times: list[float] = []
        recipe, began = planned.recipe(data, folder, max_steps=N_TIMED), clock()
        del recipe["data"]["valid"]
        scorer, few = train(recipe, lambda record: times.append(clock())), data.lists[:N_TIMED]
        checked = clock()
        evaluate(scorer, few)
        check = (clock() - checked) * _n_texts(data.lists[:MAX_VALID]) / _n_texts(few)
        shutil.rmtree(folder)
        return cls(times[0] - began, (times[-1] - times[0]) / (len(times) - 1 or 1), check)

    def minutes(self, n_steps: int, n_checks: int) -> float:
        """The forecast of a training.

        >>> Pace(start=10.0, step=0.5, check=5.0).minutes(100, n_checks=12)
        2.0
        """
        return (self.start + self.step * n_steps + self.check * n_checks) / 60

    def affordable(self, minutes: float, n_checks: int) -> int:
        """Updates that fit into these minutes.

        >>> Pace(start=10.0, step=0.5, check=5.0).affordable(2.0, n_checks=12)
        100
        """
        return floor((60 * minutes - self.start - self.check * n_checks) / max(self.step, 1e-9))


def _n_texts(lists: Sequence[Example]) -> int:
    """Texts to encode for a ranking of lists: contexts and distinct candidates."""
    return len(lists) + len({text for example in lists for text in example.candidates})
