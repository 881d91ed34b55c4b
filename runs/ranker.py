"""Makes a ranker of named terms, without a choice among them: the sums and second stages of the tables.

    python runs/ranker.py FOLDER ENCODER... [--counts DIALOGUES [--speaker NAME]] [--valid LISTS [--limit N]]
    python runs/ranker.py FOLDER ENCODER... --weights 1,1,1
    python runs/ranker.py FOLDER ENCODER --rerank MODEL [--weight 0.5] [--n-retrieved 25]

The weights of the encoders and of reply counts are those of --weights, or the most likely ones of the right answers of
the first N lists; 1 for a single encoder. Terms whose weight is 0 are left out. The re-ranker's score is added with
--weight. `polyrank tune` chooses instead.
"""

import argparse
from pathlib import Path

import numpy as np

from polyrank import Ranker, read_examples
from polyrank.ranking.weights import fit_weights
from polyrank.scorers.open import load_encoder, load_stage
from polyrank.scorers.terms.counts import Counts, count_replies
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Term


def main() -> None:
    """Make the terms, fit the weights and save the ranker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("encoders", nargs="+")
    parser.add_argument("--counts", type=Path, help="dialogues or pairs whose replies are counted")
    parser.add_argument("--speaker", help="of the replies that are counted")
    parser.add_argument("--valid", type=Path)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--weights", help="of all terms but the re-ranker")
    parser.add_argument("--rerank")
    parser.add_argument("--weight", type=float, default=1.0)
    parser.add_argument("--n-retrieved", type=int, default=25)
    options = parser.parse_args()
    terms: list[Term] = [EncoderTerm(load_encoder(name)) for name in options.encoders]
    if options.counts:
        terms.append(Counts.of(count_replies(read_examples(options.counts, speaker=options.speaker).examples)))
    if options.valid:
        weights = fitted(terms, options.valid, options.limit)
    else:
        weights = [float(value) for value in (options.weights or "1").split(",")]
    chosen = [(term, [weight]) for term, weight in zip(terms, weights, strict=True) if weight]
    if options.rerank:
        chosen.append((CrossTerm(load_stage(options.rerank)), [options.weight]))
    ranker = Ranker(chosen, n_retrieved=options.n_retrieved)
    ranker.save(options.folder, replace=options.folder.exists())
    print(f"{options.folder}: {ranker}")


def fitted(terms: list[Term], valid: Path, limit: int) -> list[float]:
    """The most likely weights, in units of the first one above 0."""
    lists = [one for one in read_examples(valid).examples if one.relevant][:limit]
    queries, candidates = [one.query for one in lists], [one.candidates for one in lists]
    columns = [term.score(queries, candidates) for term in terms]
    features = [np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True)]
    weights = fit_weights(features, [one.relevant for one in lists])
    unit = next(filter(None, weights), 1.0)
    return [weight / unit for weight in weights]


if __name__ == "__main__":
    main()
