"""Writes docs/results.md, and the tables between markers in README.md, docs and models, from runs/results.

python runs/tables.py [--check]

A table is between <!-- NAME --> and <!-- /NAME -->, where NAME is a key of report.front.BLOCKS. --check writes nothing
and lists the files that are out of date. Rows of a shipped model that has changed since, or of two models with one
name, are errors.
"""

import re
import sys
from pathlib import Path

from report.base import base_size
from report.best import best
from report.convert import ablations, convert
from report.crashes import crashes, faults, kills
from report.figures import described, machine, table
from report.fit import fitted
from report.frequencies import weighting_from_scratch
from report.front import BLOCKS
from report.general import general
from report.halves import halves
from report.intervals import wider
from report.long import long_documents
from report.models import mixed
from report.mutual import mutual_learning
from report.pretraining import from_scratch, post_training
from report.quality import a_sixth, frozen_codes, intents, response_selection, two_encoders
from report.ranking import ranking
from report.relevance import relevance
from report.same_start import same_start
from report.second import second_stage
from report.speed import answers, million, peers, registers, scoring
from report.stages import abstention, forms, medquad, ubuntu
from report.tune import one_ranker

ROOT = Path(__file__).parents[1]
SECTIONS = (
    response_selection,
    a_sixth,
    base_size,
    frozen_codes,
    two_encoders,
    general,
    one_ranker,
    fitted,
    second_stage,
    weighting_from_scratch,
    post_training,
    from_scratch,
    best,
    halves,
    same_start,
    ranking,
    convert,
    ablations,
    intents,
    medquad,
    forms,
    ubuntu,
    mutual_learning,
    abstention,
    relevance,
    long_documents,
    scoring,
    registers,
    million,
    answers,
    peers,
    crashes,
    kills,
    faults,
)
INTRODUCTION = """<!-- written by runs/tables.py -->

# Results

All results come from two cores of server CPUs, within budgets far below what the models can use. Quality is measured in
fp32 on the second machine below (AVX-512), unless a section states otherwise. [runs/results](../runs/results) holds the
output of the commands. `python runs/tables.py` writes this page from it, so no result is typed by hand. Negative
results are included. Each section states the question and the main result, then how it was measured, then limitations.

- "58.8 (55.8-61.8)" is a result and its 95% interval. After a semicolon, "-0.6, p = 0.28" is a paired difference in
  points and its p value; "[-1.4, 0.1]" is the difference's 95% interval.
- "R@1 of 100" ranks the right reply among 100 candidates. "128 + 48 tokens" are the most tokens of a context and of a
  candidate. "One seed" means that a result does not show how much trainings differ; so does a p value between two
  models, unless the section states several seeds.
- Intervals and p values treat test examples as independent, unless a section states that they are over dialogues.
  Examples of one dialogue are similar, so intervals over examples can be too narrow. `polyrank evaluate` now resamples
  dialogues, but most results here are older. They do not hold the rank of each example, so only running the models
  again would correct the intervals.
- The table below compares both kinds of intervals for the R@1 of two models and for their difference (`python
  runs/intervals.py DATA`). Of the older tests, those with p above 0.005 may be chance.
- p values are not adjusted for the number of tests: of tests without a true difference, one in twenty
  falls below 0.05."""
MACHINES = ("bench/amx/scoring", "bench/avx512/scoring")


def results() -> str:
    """The text of docs/results.md."""
    sections = [text for write in SECTIONS if (text := write())]
    titles = [section.partition("\n")[0].removeprefix("## ") for section in sections]
    machines = table(
        ["machine", "processor", "instructions", "cores", "GB", "libraries"],
        [[machine(name).partition(",")[0], *described(name)] for name in MACHINES],
    )
    contents = "\n".join(f"- [{title}](#{_anchor(title)})" for title in titles)
    return "\n\n".join([INTRODUCTION, wider(), machines, contents, *sections]) + "\n"


def with_tables(text: str) -> str:
    """A page with each of its tables up to date."""
    for name, write in BLOCKS.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, opened, rest = text.partition(start)
        if opened:
            _, closed, after = rest.partition(end)
            if not closed:
                raise ValueError(f"{start.strip()} is never closed; write {end} below its table")
            text = f"{before}{start}{write()}\n{end}{after}"
    return text


def pages() -> dict[Path, str]:
    """The up-to-date text of every page with results."""
    cards = sorted((ROOT / "models/polyrank_models").glob("*/README.md"))
    others = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *cards]
    whole = ROOT / "docs/results.md"
    return {path: with_tables(path.read_text("utf-8")) for path in others if path != whole} | {whole: results()}


def _anchor(title: str) -> str:
    """The anchor that GitHub gives a title."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def main() -> int:
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)} is {'out of date' if '--check' in sys.argv else 'written'}")
        if "--check" not in sys.argv:
            path.write_text(text, "utf-8")
    faults = mixed()
    print(*faults, sep="\n", end="\n" * bool(faults))
    return int(bool(faults) or (bool(stale) and "--check" in sys.argv))


if __name__ == "__main__":
    sys.exit(main())
