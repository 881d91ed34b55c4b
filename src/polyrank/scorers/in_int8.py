"""Compares a model's rankings in int8 with those in fp32, and records the result in its folder.

Precision "auto" uses int8 only if the record allows it. The record is in the metadata of config.json and holds the
model's fingerprint, so it does not apply to other weights.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from polyrank.config.models import MODEL
from polyrank.models.artifacts import load_model, read_config
from polyrank.records import Example
from polyrank.scorers.exported.agreement import Agreement, agreement, sample_lists
from polyrank.scorers.load import IN_INT8, make_scorer
from polyrank.storage.document import seal
from polyrank.storage.durable import write_file


def check_int8(path: Path, examples: Sequence[Example] = (), *, record: bool = True) -> Agreement:
    """Compare a model's rankings in int8 with those in fp32, on the CPU.

    Args:
        path: the model folder.
        examples: lists to rank; empty: the validation lists of the shipped sample.
        record: whether to write the result into the model folder.

    Returns:
        The comparison; its ``kept`` decides whether "auto" may use int8.

    Raises:
        ArtifactError: the model is damaged.
        UsageError: int8 is not possible on this machine.
        DataError: no example has two candidates to rank.
    """
    artifact = load_model(path)
    rounded = make_scorer(
        copy.deepcopy(artifact.model), artifact.texts, device="cpu", precision="int8", frozen=True
    )  # the reference below is the unchanged network
    exact = make_scorer(artifact.model, artifact.texts, device="cpu", precision="fp32")
    alike = agreement(exact, rounded, examples or sample_lists())
    if record:
        document = read_config(path)
        values = {"fingerprint": artifact.fingerprint, "kept": alike.kept, **asdict(alike)}
        whole = seal({**document, "metadata": {**document["metadata"], IN_INT8: values}}, MODEL)
        write_file(path / MODEL.file, whole)
    return alike


def read_record(path: Path) -> Agreement | None:
    """The recorded comparison of a model folder; None if its weights were not compared.

    Raises:
        ArtifactError: the model is damaged.
    """
    document = read_config(path)
    values = {"fingerprint": "", **document["metadata"].get(IN_INT8, {})}
    if values.pop("fingerprint") != document["fingerprint"]:
        return None
    return Agreement(**{key: value for key, value in values.items() if key != "kept"})
