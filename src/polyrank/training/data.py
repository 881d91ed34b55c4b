"""The examples of a recipe, for training, validation and the final test."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyrank.config.recipe import DataConfig
from polyrank.data import choose_speaker, draw_candidates, read_examples
from polyrank.data.candidate_lists import have_lists
from polyrank.data.mapped_examples import StoredExamples, choose, open_stored
from polyrank.data.speakers import speakers_of
from polyrank.data.values import rows_of
from polyrank.devices import distributed
from polyrank.errors import ConfigError, DataError
from polyrank.evaluation.protocols import rankable
from polyrank.loading.data import resolve_data
from polyrank.records import Example
from polyrank.wording import counted


def load_data(
    data: DataConfig,
    examples: Iterable[Any] | None = None,
    valid: Iterable[Any] | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> tuple[Sequence[Example], list[Example]]:
    """Training examples (those with a right answer) and validation lists, from files or from memory."""
    stored = data.cache is not None and examples is None
    train: Sequence[Example] = _stored(data, notify) if stored else _read(data, "train", examples, notify)
    if data.max_train is not None and data.max_train < len(train):
        # the subset does not depend on the training seed, so every model and seed is trained on the same examples
        chosen = np.random.Generator(np.random.PCG64(20200113)).permutation(len(train))[: data.max_train]
        chosen.sort()
        train = choose(train, chosen)
        notify(f"using a random subset of {len(train):,}")
    if data.valid is None and valid is None:
        return train, []
    return train, read_lists(data, "valid", valid, notify)[: data.max_valid]


def read_lists(
    data: DataConfig,
    part: Literal["valid", "test"],
    given: Iterable[Any] | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Example]:
    """The candidate lists for validation or test; for dialogues and pairs they are drawn."""
    lists, name = _read(data, part, given, notify), (given is None and getattr(data, part)) or part
    if not have_lists(lists):  # drawn from all examples and with a fixed seed, so every run has the same lists
        lists = draw_candidates(lists, data.valid_candidates, what=name)
    try:
        kept = rankable(lists)
    except DataError as error:
        raise DataError(
            f"{name}: no list has a right and a wrong candidate; give other lists as data.{part}"
        ) from error
    left_out = f", without {n:,} that have no wrong candidate" if (n := len(lists) - len(kept)) else ""
    sizes = sorted({len(one.candidates) for one in kept})
    size = " to ".join(map(str, sizes[:: max(1, len(sizes) - 1)]))
    notify(f"{name}: {counted(len(kept), 'example')} of {size} candidates{left_out}")
    return kept


def _stored(data: DataConfig, notify: Callable[[str], None]) -> StoredExamples:
    """The training examples in the folder ``data.cache``."""
    if data.train is None or data.cache is None:
        raise ConfigError("data.cache stores the examples of a file, and data.train names none; set data.train")
    source, speaker = Path(data.train), data.speaker
    first = resolve_data(source)[0].path
    if data.kind in (None, "dialogues"):
        speaker = choose_speaker(first, speaker, option="data.speaker", notify=notify)
    opened = partial(
        open_stored, source, Path(data.cache), kind=data.kind, speaker=speaker, skip_bad=data.skip_bad, notify=notify
    )
    return distributed.rank_zero_first(opened)


def examples_digest(examples: Sequence[Example]) -> str:
    """Equal for equal examples in the same order.

    >>> examples_digest([Example(("hi",), ("hello",), (0,))])[:8]
    '123cdce1'
    """
    if isinstance(examples, StoredExamples):
        return examples.key
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        values = [example.context, example.candidates, example.relevant, example.background]
        digest.update(json.dumps(values).encode())
    return digest.hexdigest()


def n_given(examples: Sequence[Example]) -> int:
    """How many examples come with wrong candidates."""
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
        raise ConfigError(f"data.{part} is not set; name a file, or pass examples")
    name = source if isinstance(source, str) else part
    if part == "train" and isinstance(source, str):
        _check_one_file(Path(source))
    if part != "train" and speakers_of(source) is None:  # data.speaker names a speaker of the training part only
        speaker = None
    elif kind in (None, "dialogues"):
        speaker = choose_speaker(source, speaker, name=name, option="data.speaker", notify=notify)
    loaded = read_examples(source, kind=kind, speaker=speaker, skip_bad=data.skip_bad)
    notify(f"{name}: {loaded.report}")
    if examples := [example for example in loaded.examples if example.relevant]:
        return examples
    raise DataError(f"{name}: no example has the text of a right answer; give examples with a response")


def _check_one_file(source: Path) -> None:
    """Refuse a folder or a pattern, whose examples only ``data.cache`` can hold.

    Raises:
        ConfigError: the source is not a single file.
    """
    is_pattern = not source.exists() and any(sign in source.name for sign in "*?[")
    if source.is_dir() or is_pattern:
        raise ConfigError(
            f'data.train = "{source}" is a {"pattern" if is_pattern else "folder"}, whose examples are stored on disk;'
            ' set data.cache, for example to "cache"'
        )
