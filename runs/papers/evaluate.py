"""Evaluates a model by the protocols of the papers that ``polyrank evaluate`` does not have; prints one JSON object.

python runs/papers/evaluate.py MODEL DATA [--groups 100] [--probe immediate] [--last-turns 1] [--breakdown tokens]
python runs/papers/evaluate.py FIRST DATA --rerank SECOND --n-retrieved 10 --combine raw
python runs/papers/evaluate.py ENCODER DATA --map FILE.npz     # of response_map.py
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from combining import COMBINE
from groups import group_candidates
from response_map import MapEncoder
from two_stage import TwoStageScorer

from polyrank import Encoder, Example, Scorer, evaluate_models, load, read_task, resolve_contestants
from polyrank.data import choose_speaker, draw_candidates, read_examples, read_pool
from polyrank.errors import UsageError
from polyrank.evaluation import Evaluation, breakdown
from polyrank.evaluation.scores_file import scores_files
from polyrank.loading.runs import Contestant
from polyrank.models import Convert
from polyrank.models.convert.network import Probe
from polyrank.scorers.open import load_stage
from polyrank.scorers.two_stage import SHORTLIST


def main() -> None:
    """Read the options, evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--pool", help="one pool for all examples; `responses`: all responses of the data")
    parser.add_argument("--groups", type=int, help="rank each response among those of a random group of N examples")
    parser.add_argument("--candidates", type=int, help="length of drawn lists")
    parser.add_argument("--candidates-from", type=Path, help="texts to draw wrong candidates from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--last-turns", type=int, help="show the model only the last N turns of each context")
    parser.add_argument("--probe", choices=("immediate", "earlier", "both"), help="one encoding of a ConveRT")
    parser.add_argument("--breakdown", choices=("tokens",), help="R@1 by the context's length")
    parser.add_argument("--rerank", help="a second stage")
    parser.add_argument("--n-retrieved", type=int, default=SHORTLIST)
    parser.add_argument("--combine", choices=COMBINE, default="none", help="how both stages' scores become one")
    parser.add_argument("--map", type=Path, help="a map of response vectors, of response_map.py")
    parser.add_argument("--metric", help="R@1,R@5,MRR; the first is tested")
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    data = options.data
    examples = read_examples(data, speaker=choose_speaker(data, None)).examples
    if options.groups:
        examples = group_candidates(examples, options.groups, seed=options.seed, what=str(data))
    if options.candidates:
        others = read_pool(options.candidates_from) if options.candidates_from else ()
        examples = draw_candidates(
            examples,
            options.candidates,
            seed=options.seed,
            limit=options.limit,
            others=[candidate.text for candidate in others],
        )
    if options.last_turns:
        examples = last_turns(examples, options.last_turns)
    contestants = resolve_contestants([options.model])
    models: list[Contestant | Scorer] = [*contestants]
    if options.rerank or options.map or options.probe:
        models = [changed(options, contestant) for contestant in contestants]
    result = evaluate_models(
        models,
        read_task(examples, pool=options.pool, limit=options.limit),
        metrics=options.metric.split(",") if options.metric else None,
        against=options.against,
        by_turns=True,
        scores=scores_files(options.scores, [contestant.member.name for contestant in contestants]),
    )
    row = result.rows[0]
    if options.breakdown:
        scorer = models[0] if isinstance(models[0], Scorer) else load(contestants[0].member.name)
        row["by_tokens"] = by_tokens(result.models[0].evaluations, scorer, examples)
    print(json.dumps(row))


def by_tokens(evaluations: Sequence[Evaluation], scorer: Scorer, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """R@1 by the number of tokens of the context that the scorer reads: (0, 50], (50, 100], (100, 360].

    Source: Tao et al. (2021), Figure 4.
    """
    if not scorer.networks:
        raise UsageError(f"{scorer.name} is lexical and reads no tokens; leave --breakdown out")
    texts = scorer.networks[0].texts
    lengths = {example.id: len(texts.context_ids(example.query)) for example in examples}
    assert len(lengths) == len(examples), "two examples have one id"
    return breakdown(evaluations, length=lambda record: lengths[record.id], edges=(1, 51, 101))


def last_turns(examples: Sequence[Example], n: int) -> list[Example]:
    """Examples with only the last ``n`` turns of their contexts; background stays.

    With 1, the ablation without earlier turns of ConveRT (2020), section 4.

    >>> last_turns([Example(("hi", "hello", "my wifi is down"), ("a", "b"), (0,))], 1)[0].context
    ('my wifi is down',)
    """
    assert n > 0, f"{n} turns; give 1 or more"
    return [replace(example, context=example.context[-n:]) for example in examples]


def probe(scorer: Scorer, encoding: Probe) -> None:
    """Make a multi-context ConveRT rank by one of its encodings of a context.

    Args:
        scorer: of the ConveRT; changed in place.
        encoding: "immediate", of the last turn; "earlier", of the turns before it; or "both", the default.

    Source: Henderson et al., ConveRT (2020), section 4 and footnote 9.
    """
    model = getattr(scorer, "model", None)
    if not isinstance(model, Convert) or not model.multi_context:
        raise UsageError(f"{scorer.name} is not a multi-context ConveRT, so it cannot be probed; leave --probe out")
    model.probe = encoding


def changed(options: argparse.Namespace, contestant: Contestant) -> Scorer:
    """A model with its second stage, its map, or one of its encodings."""
    first = load(contestant.member.name)
    if options.probe:
        probe(first, options.probe)
        return first
    if options.map:
        assert isinstance(first, Encoder), f"{options.model} has no vectors to map"
        mapped = MapEncoder(first, np.load(options.map)["matrix"])
        mapped.name = first.name
        return mapped
    second = load_stage(options.rerank)
    both = TwoStageScorer(first, second, n_retrieved=options.n_retrieved, combine=COMBINE[options.combine])
    both.name = first.name
    return both


if __name__ == "__main__":
    main()
