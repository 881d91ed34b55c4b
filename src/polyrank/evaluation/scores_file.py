"""Scores files: per-example results as JSON lines, from which every table can be made without the model."""

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from polyrank._version import __version__
from polyrank.data import fields
from polyrank.data.json_list import whole_text
from polyrank.data.values import Row
from polyrank.errors import DataError, UsageError
from polyrank.evaluation.protocols import Evaluation, Record
from polyrank.loading.data import plain_name
from polyrank.ranking.metrics import Group, Placement, placement_of
from polyrank.storage.document import check_format
from polyrank.storage.durable import write_file

FORMAT = 1


def scores_files(path: Path | None, models: Sequence[str]) -> list[Path | None]:
    """The scores file of each model: the given file, or files named after the models in the given folder.

    Raises:
        UsageError: the path is a file, and there are several models.
    """
    if path is None or len(models) == 1:
        return [path] * len(models)
    if path.suffix in (".jsonl", ".gz") or path.is_file():
        raise UsageError(f"{path} is one file for the scores of {len(models)} models; name a folder")
    stems = [re.sub(r"[^\w.-]+", "-", name.removesuffix("/model")).strip("-.") for name in models]
    if len({*stems} - {""}) < len(stems):
        raise UsageError(f"the scores files of {', '.join(models)} would have the same name, or none; run each alone")
    return [path / f"{stem}.jsonl" for stem in stems]


def write_scores(path: Path, evaluation: Evaluation, **about: str) -> None:
    """Write a header line and one line per example. Lists keep all scores exactly; pools keep the placement.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        evaluation: the results.
        about: further fields of the header, such as the scorer's name and the data.
    """
    header = {"format": FORMAT, "written_by": __version__, "protocol": evaluation.protocol, **about}
    lines: list[dict[str, Any]] = [header]
    for record in evaluation.records:
        line: dict[str, Any] = {"id": record.id, "turns": record.n_turns, "relevant": list(record.relevant)}
        if record.scores is not None:
            line["scores"] = [float(score) for score in record.scores]  # the double's repr is exact for the float32
        else:
            line["n"] = record.placement.n_candidates
            line["groups"] = [
                astuple(group)[: 4 if record.placement.grades else 3] for group in record.placement.groups
            ]
            if record.placement.grades:
                line["grades"] = record.placement.grades
        lines.append(line)
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    write_file(path, gzip.compress(data, mtime=0) if plain_name(path) != path.name else data)


def read_scores(path: Path) -> Evaluation:
    """Read a scores file.

    Raises:
        DataError: ``file:line: what is wrong``.
        ArtifactError: a later version wrote it.
    """
    return read_scores_and_header(path)[0]


def read_scores_and_header(path: Path) -> tuple[Evaluation, dict[str, Any]]:
    """As ``read_scores``, with the header."""
    text = whole_text(path)
    if not text.strip():
        raise DataError(f"{path}: has no rows; write it with polyrank evaluate --scores")
    number, records = 1, []  # number: the line that an error names
    try:
        header, *lines = text.splitlines()
        about = json.loads(header)
        check_format(path, about, FORMAT, "write it again")
        if about["protocol"] not in ("lists", "pool"):
            raise ValueError(f"protocol {about['protocol']!r} is neither lists nor pool")
        for number, line in enumerate(lines, 2):  # noqa: B007  # the except clause names it
            records.append(_record(json.loads(line)))
    except KeyError as error:
        raise DataError(f"{path}:{number}: not a line of a scores file (no {error}); write it again") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}:{number}: not a line of a scores file ({error}); write it again") from error
    return Evaluation(tuple(records), about["protocol"]), about


def _record(row: Row) -> Record:
    if not all(type(score) in (int, float) for score in row.get("scores", ())):
        raise ValueError("a score is not a number")
    scores = np.array(row["scores"], np.float32) if "scores" in row else None
    n = _whole(row["n"], 1) if scores is None else len(scores)
    relevant = fields.indices(row, "relevant")
    if not all(0 <= index < n for index in relevant):
        raise ValueError(f"a relevant position is outside the {n} candidates")
    if scores is None:
        placement = _placement(n, row["groups"], [_whole(grade, 1) for grade in row.get("grades", ())], len(relevant))
    else:
        placement = placement_of(scores, relevant)
    return Record(fields.text(row, "id"), _whole(row["turns"]), relevant, scores, placement)


def _whole(value: object, low: int = 0) -> int:
    if type(value) is not int or value < low:
        raise ValueError(f"{str(value)[:40]!r} is not a whole number of at least {low}")
    return value


def _placement(n: int, rows: list[list[int]], grades: list[int], n_relevant: int) -> Placement:
    """A placement from its groups, best score first; each group begins after the one before it ends."""
    groups, n_placed = [], 0
    for n_above, n_tied, n_right, *gain in rows:
        sizes = _whole(n_above, n_placed), _whole(n_tied, 1), _whole(n_right, 1)
        group = Group(*sizes, _whole(gain[0], n_right) if grades else None)
        n_placed = n_above + n_tied
        if n_right > n_tied or n_placed > n:
            raise ValueError(f"{n} candidates cannot have the group {group}")
        groups.append(group)
    placement = Placement(n, tuple(groups), tuple(grades))
    if placement.n_relevant != n_relevant:
        raise ValueError(f"{placement.n_relevant} of {n_relevant} right candidates have a rank")
    return placement
