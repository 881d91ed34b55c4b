"""``polyrank mine``."""

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import load_examples, notify, track, use_processor
from polyrank.cli.options import Device, Json, Limit, Overwrite, SkipBad, Speaker, Threads, existing_model
from polyrank.devices.distributed import is_rank_zero, on_rank_zero, process_group
from polyrank.errors import DataError, UsageError


@process_group()
def mine(
    data: Annotated[Path, Argument(help="Examples with right answers, to mine negatives for.")],
    retriever: Annotated[str, Option("--from", help="bm25, tfidf, a model, a ranker or an index.")],
    output: Annotated[Path, Option("-o", "--output", help="JSON lines to write; .gz compresses.")],
    pool: Annotated[
        Path | None, Option(help="Candidates to choose from. Default: those of the index, or the data's responses.")
    ] = None,
    n: Annotated[int, Option("-n", min=1, help="Negatives per example.")] = 8,
    ranks: Annotated[
        str, Option(help="First and last rank to draw negatives from, right answers not counted.")
    ] = "1:50",
    rerank: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="A second stage, such as a Cross-encoder, which drops candidates that are probably right.",
            callback=existing_model,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        Option(help="With --rerank: drop candidates that score above the right answer's score minus this. Default: 0."),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the choice among the ranks.")] = 0,
    speaker: Speaker = None,
    limit: Limit = None,
    device: Device = "auto",
    threads: Threads = None,
    overwrite: Overwrite = False,
    skip_bad: SkipBad = False,
    json_: Json = False,
) -> None:
    """Mine hard negatives, that is wrong candidates that a retriever ranks high, and write lists to train on."""
    from polyrank.answering.opening import catalogue, open_replies
    from polyrank.data import read_pool, write_examples
    from polyrank.index import is_index
    from polyrank.loading import resolve_model
    from polyrank.negatives.hard import HardNegatives
    from polyrank.negatives.mine import from_pool, from_retriever, mine as run, with_texts
    from polyrank.scorers.lexical import corpus_of
    from polyrank.scorers.open import load, open_model
    from polyrank.storage.durable import check_output

    use_processor(threads)
    on_rank_zero(lambda: check_output(output, inputs=(data, pool), overwrite=overwrite))
    if margin is not None and rerank is None:
        raise UsageError(f"--margin {margin:g} applies to a re-ranker's scores; name it with --rerank, or leave it out")
    first, _, last = ranks.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise UsageError(f"--ranks {ranks!r} is not FIRST:LAST; write for example 1:50")
    settings = HardNegatives(n_negatives=n, first_rank=int(first), last_rank=int(last), seed=seed)
    folder = Path(retriever)
    answers = pool is None and is_index(folder)
    if not answers:
        existing_model(retriever)
    read = load_examples(data, speaker, skip_bad=skip_bad)
    candidates = None if pool is None else read_pool(pool)
    every = with_texts(read, catalogue(folder) if answers else candidates or ())
    examples = every[:limit]
    corpus = corpus_of(examples, candidates)
    with ExitStack() as opened:
        if answers:
            retrieve = from_retriever(opened.enter_context(open_replies(folder, device=device)))
        else:
            texts = (
                [c.text for c in candidates] if candidates is not None else [e.response for e in examples if e.response]
            )
            retrieve = from_pool(open_model(resolve_model(retriever).alone(), device=device, corpus=corpus), texts)
        reranker = None if rerank is None else load(rerank, device=device, corpus=corpus)
        mined = run(
            examples,
            retrieve,
            settings,
            reranker=reranker,
            margin=margin or 0.0,
            further=every[len(examples) :],
            progress=partial(track, "mining"),
        )
    if not mined.examples:
        raise DataError(
            f"{data}: no example has a right answer; if the data has ids of answers, give their texts with --pool"
        )
    if is_rank_zero():
        write_examples(output, mined.examples)
    counts = {"n_examples": len(mined.examples), "n_skipped": mined.n_skipped, "n_short": mined.n_short,
              "n_doubtful": mined.n_doubtful, "mean_negatives": mined.mean_negatives}  # fmt: skip
    notify(
        f"{output}: {len(mined.examples):,} examples with {mined.mean_negatives:.1f} negatives each;"
        f" {mined.n_skipped:,} without a right answer left out, {mined.n_short:,} with fewer than {n},"
        f" {mined.n_doubtful:,} texts dropped as probably right"
    )
    if json_:
        print(json.dumps(counts))
