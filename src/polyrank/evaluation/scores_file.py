"""Scores files: per-example outcomes as JSON lines, from which every table can be made again without the model."""

import gzip
import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from polyrank.durable import write_file
from polyrank.errors import DataError
from polyrank.evaluation.protocols import Evaluation, Record
from polyrank.metrics import Group, Placement, place

FORMAT = 1


def write_scores(path: Path, evaluation: Evaluation, **about: str) -> None:
    """Write a header line and one line per example. Lists keep all scores exactly; pools keep the placement.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        evaluation: the outcomes.
        about: what the header should say: the scorer's name, the data.
    """
    lines: list[dict[str, Any]] = [{"format": FORMAT, "protocol": evaluation.protocol, **about}]
    for record in evaluation.records:
        line: dict[str, Any] = {"id": record.id, "turns": record.n_turns, "words": record.n_words}
        line["relevant"] = list(record.relevant)
        if record.scores is not None:
            line["scores"] = [float(score) for score in record.scores]  # the double's repr gives the float32 back
        else:
            line["n"] = record.placement.n_candidates
            line["groups"] = [astuple(group) for group in record.placement.groups]
        lines.append(line)
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    write_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_scores(path: Path) -> Evaluation:
    """Read a scores file.

    Raises:
        DataError: ``file:line: what is wrong``.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; write it again with evaluate --scores") from error
    if not text.strip():
        raise DataError(f"{path}: holds no rows; write it with evaluate --scores")
    number, records = 1, []  # number: the line that an error names
    try:
        header, *lines = text.splitlines()
        about = json.loads(header)
        if about["format"] > FORMAT:
            raise DataError(f"{path}: written in format {about['format']}, this reads up to {FORMAT}; upgrade polyrank")
        for number, line in enumerate(lines, 2):  # noqa: B007  # the except clause names it
            row = json.loads(line)
            relevant = tuple(row["relevant"])
            scores = np.array(row["scores"], np.float32) if "scores" in row else None
            groups = tuple(Group(*group) for group in row.get("groups", ()))
            placement = Placement(row["n"], groups) if scores is None else place(scores, relevant)
            records.append(Record(row["id"], row["turns"], row["words"], relevant, scores, placement))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{path}:{number}: not a line of a scores file ({error}); write it again") from error
    return Evaluation(tuple(records), about["protocol"])
