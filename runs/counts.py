"""Ranks lists by how often each reply was said in a corpus' training dialogues, without reading the context.

    python runs/counts.py TEST --counts DIALOGUES [--speaker NAME] [--limit N] [--scores FILE]

prints the figures as `polyrank evaluate --json` does.
"""

import argparse
import json
from pathlib import Path

from polyrank import Ranker, evaluate_models, read_examples, read_task
from polyrank.scorers.terms.counts import Counts, count_replies


def main() -> None:
    """Count, evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", type=Path)
    parser.add_argument("--counts", type=Path, required=True)
    parser.add_argument("--speaker")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--scores", type=Path)
    options = parser.parse_args()
    counts = Counts.of(count_replies(read_examples(options.counts, speaker=options.speaker).examples))
    ranker = Ranker([(counts, [1.0])])
    ranker.name = "counts"
    task = read_task(options.test, limit=options.limit)
    print(json.dumps(evaluate_models([ranker], task, scores=[options.scores]).rows[0]))


if __name__ == "__main__":
    main()
