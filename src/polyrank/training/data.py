"""The examples of a recipe: to learn from, to choose the best step by, and to be measured on at the end."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyrank.config.recipe import DataConfig
from polyrank.data import choose_speaker, draw_candidates, read_examples
from polyrank.data.candidate_lists import have_lists
from polyrank.data.in_memory import rows_of
from polyrank.data.mapped_examples import StoredExamples, open_stored
from polyrank.data.speakers import speakers_of
from polyrank.devices import processes
from polyrank.errors import ConfigError, DataError
from polyrank.loading.data import resolve_data
from polyrank.records import Example


def load_data(
    data: DataConfig,
    examples: Iterable[Any] | None = None,
    valid: Iterable[Any] | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> tuple[Sequence[Example], list[Example]]:
    """Training examples (those with a right answer) and validation lists, from files or from memory."""
    stored = data.cache is not None and examples is None
    learnt: Sequence[Example] = _stored(data, notify) if stored else _read(data, "train", examples, notify)
    if data.max_train is not None and data.max_train < len(learnt):
        # a subset that does not depend on the training seed, so that every model and seed learns from the same
        chosen = np.random.Generator(np.random.PCG64(20200113)).permutation(len(learnt))[: data.max_train]
        chosen.sort()
        learnt = learnt.choose(chosen) if isinstance(learnt, StoredExamples) else [learnt[i] for i in chosen.tolist()]
        notify(f"using a random subset of {len(learnt):,}")
    if data.valid is None and valid is None:
        return learnt, []
    return learnt, read_lists(data, "valid", valid, notify)[: data.max_valid]


def read_lists(
    data: DataConfig,
    part: Literal["valid", "test"],
    given: Iterable[Any] | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Example]:
    """Candidate lists to choose or to be judged by; those of dialogues and pairs are drawn."""
    lists, name = _read(data, part, given, notify), getattr(data, part) or part
    if not have_lists(lists):  # drawn from all of them, and with one seed, so that every run is judged by the same
        lists = draw_candidates(lists, data.valid_candidates, what=name)
    lists = [example for example in lists if len(example.candidates) > 1]
    notify(f"{name}: {len(lists):,} examples of {len(lists[0].candidates)} candidates")
    return lists


def _stored(data: DataConfig, notify: Callable[[str], None]) -> StoredExamples:
    """The training examples, on disk."""
    if data.train is None or data.cache is None:
        raise ConfigError("data.cache keeps the examples of a file on disk, and data.train names none; name one")
    source, speaker = Path(data.train), data.speaker
    first = resolve_data(source)[0].path
    if data.kind in (None, "dialogues"):
        speaker = choose_speaker(first, speaker, option="data.speaker", notify=notify)
    opened = partial(
        open_stored, source, Path(data.cache), kind=data.kind, speaker=speaker, skip_bad=data.skip_bad, notify=notify
    )
    if processes.count() > 1:
        processes.by_first(lambda: len(opened()))  # which makes the folder
    return opened()


def n_given(examples: Sequence[Example]) -> int:
    """How many come with wrong candidates."""
    if isinstance(examples, StoredExamples):
        return examples.n_given
    return sum(len(example.candidates) > len(example.relevant) for example in examples)


def _read(
    data: DataConfig,
    part: Literal["train", "valid", "test"],
    given: Iterable[Any] | None,
    notify: Callable[[str], None],
) -> list[Example]:
    """The examples of a part that have a right answer."""
    kind, speaker = data.kind if part == "train" else None, data.speaker
    source: str | list[Any] | None = getattr(data, part) if given is None else list(rows_of(given))
    if source is None:
        raise ConfigError(f"there is nothing to learn from; name a file in data.{part}, or give examples")
    name = source if isinstance(source, str) else part
    if part != "train" and speakers_of(source) is None:  # which the speaker of the training part says nothing of
        speaker = None
    elif kind in (None, "dialogues"):
        speaker = choose_speaker(source, speaker, name=name, option="data.speaker", notify=notify)
    loaded = read_examples(source, kind=kind, speaker=speaker, skip_bad=data.skip_bad)
    notify(f"{name}: {loaded.report}")
    if examples := [example for example in loaded.examples if example.relevant]:
        return examples
    raise DataError(f"{name}: no example has the text of a right answer; there is nothing to learn from or judge by")
