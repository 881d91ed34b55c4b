"""docs/results.md, and the tables between markers of README.md, docs and models, from what the runs printed.

python runs/tables.py [--check]

A table stands between <!-- NAME --> and <!-- /NAME -->, with the names of report.front.BLOCKS, in any of these files.
With --check nothing is written, and files that are not as they would be written are named.
"""

import re
import sys
from pathlib import Path

from report.best import best
from report.convert import ablations, convert
from report.crashes import crashes, faults, interrupts
from report.figures import described, machine, table
from report.front import BLOCKS
from report.general import general
from report.pretraining import from_scratch, post_training
from report.prior import prior
from report.quality import a_sixth, frozen_codes, intents, response_selection, starting, two_encoders
from report.ranking import ranking
from report.speed import answers, million, peers, registers, scoring
from report.stages import abstention, medquad, mutual_learning, ubuntu

ROOT = Path(__file__).parents[1]
SECTIONS = (
    response_selection,
    a_sixth,
    frozen_codes,
    starting,
    two_encoders,
    general,
    prior,
    post_training,
    from_scratch,
    best,
    ranking,
    convert,
    ablations,
    intents,
    medquad,
    ubuntu,
    mutual_learning,
    abstention,
    scoring,
    registers,
    million,
    answers,
    peers,
    crashes,
    interrupts,
    faults,
)
INTRODUCTION = """<!-- written by runs/tables.py -->

# Results

Everything here was computed on two cores of server CPUs, within budgets that are far from what the models can reach:
quality in fp32 on the second machine, unless said otherwise. What the commands printed is in
[runs/results](../runs/results); this page is written from it by `python runs/tables.py`, and no number of a result is
typed. What lost is here too.

95% intervals and p values take the test examples as independent. Those of one dialogue are alike, so `polyrank
evaluate` now resamples dialogues; the figures here are older, and their intervals somewhat too narrow."""
MACHINES = ("bench/amx/scoring", "bench/avx512/scoring")


def results() -> str:
    """The page of all results."""
    sections = [text for write in SECTIONS if (text := write())]
    titles = [section.partition("\n")[0].removeprefix("## ") for section in sections]
    machines = table(
        ["machine", "processor", "instructions", "cores", "GB", "libraries"],
        [[machine(name).partition(",")[0], *described(name)] for name in MACHINES],
    )
    contents = "\n".join(f"- [{title}](#{_anchor(title)})" for title in titles)
    return "\n\n".join([INTRODUCTION, machines, contents, *sections]) + "\n"


def with_tables(text: str) -> str:
    """A page with each of its tables as it is now."""
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
    """Every page with results as it should be."""
    cards = sorted((ROOT / "models/polyrank_models").glob("*/README.md"))
    others = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *cards]
    whole = ROOT / "docs/results.md"
    return {path: with_tables(path.read_text("utf-8")) for path in others if path != whole} | {whole: results()}


def _anchor(title: str) -> str:
    """As GitHub links to a title."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def main() -> int:
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)} is {'not as it would be written' if '--check' in sys.argv else 'written'}")
        if "--check" not in sys.argv:
            path.write_text(text, "utf-8")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
