"""``polyrank pipeline``: combines retriever, re-ranker, ensemble and threshold in one folder."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from polyrank.cli.console import console, notify, use_processor
from polyrank.cli.examples import load_examples
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import Device, Json, Limit, MovedModel, NRetrieved, Overwrite, Plot, Rerank, Speaker, Threads
from polyrank.cli.second_stage import suggest_second_stage
from polyrank.errors import ConfigError, UsageError

pipeline_app = command_group("pipeline", "Combine retriever, re-ranker and threshold.")

NO_ANSWER = 0.2


@add_command(
    pipeline_app,
    "create",
    "my-index -o support --rerank cross/model --ensemble auto --valid data/valid.jsonl",
    "my-index -o careful --precision 0.9 --valid data/valid.jsonl",
)
def pipeline_create(
    index: Annotated[Path, Argument(help="An index folder.")],
    output: Annotated[Path, Option("-o", "--output", help="The pipeline folder to make.")],
    retriever: Annotated[str, Option(help="dense (the index's model), bm25 or tfidf.")] = "dense",
    model: MovedModel = None,
    prior: Annotated[
        str,
        Option(
            metavar="WEIGHT",
            help="Add WEIGHT * log(1 + count) to the retriever's scores, by the candidates' field `count`; auto chooses"
            " on validation examples.",
        ),
    ] = "0",
    rerank: Rerank = None,
    n_retrieved: NRetrieved = None,
    ensemble: Annotated[
        str,
        Option(
            help="With --rerank: how to add the scores of both stages: none, raw, sigmoid, z-score, softmax,"
            " sigmoid-reranked, or a number as the weight of the re-ranker's; auto chooses on validation examples."
        ),
    ] = "none",
    valid: Annotated[Path | None, Option(help="Validation examples, for auto and --precision.")] = None,
    speaker: Speaker = None,
    limit: Limit = None,
    precision: Annotated[
        float | None, Option(min=0, max=1, help="Answer only if this share of the answers is expected to be right.")
    ] = None,
    no_answer: Annotated[
        float | None,
        Option(
            min=0,
            max=1,
            help=f"With --precision: share of the examples whose right answer is hidden. Default: {NO_ANSWER}.",
        ),
    ] = None,
    plot: Plot = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write a pipeline; with validation examples, choose its prior, ensemble and threshold on them."""
    from polyrank.answering.calibration import choose_settings, curve_of, lacking_text
    from polyrank.answering.pipeline import make_retriever, write_pipeline
    from polyrank.config.checked import from_dict
    from polyrank.config.pipeline import PipelineConfig
    from polyrank.evaluation import plot_coverage
    from polyrank.loading.answering import check_stages
    from polyrank.loading.folders import PIPELINE
    from polyrank.ranking.ensembles import read_ensemble
    from polyrank.storage.durable import check_output, check_replaceable

    use_processor(threads)
    check_replaceable(output, own_files=(PIPELINE.file,), replace=overwrite)
    check_output(plot, inputs=(index, output, valid), overwrite=overwrite)
    weight = _read_prior(prior)
    config = from_dict(
        PipelineConfig,
        {
            "index": str(index),
            "retriever": retriever,
            "model": model and str(model),
            "prior": 0.0 if weight == "auto" else weight,
            "reranker": rerank,
            **({} if n_retrieved is None else {"n_retrieved": n_retrieved}),
        },
    )
    scale = "auto" if ensemble == "auto" else read_ensemble(ensemble)
    _check_model(model, retriever)
    check_stages(index, rerank, scale, n_retrieved)
    tunes = precision is not None or "auto" in (scale, weight)
    if valid is None and tunes:
        raise ConfigError(
            "--precision, --prior auto and --ensemble auto need validation examples; give them with --valid"
        )
    for name, value in {"speaker": speaker, "limit": limit}.items():
        if valid is None and value is not None:
            raise ConfigError(
                f"--{name} {value} applies to validation examples; give them with --valid, or leave it out"
            )
    if precision is None and plot is not None:
        raise ConfigError("--plot draws the choice of a threshold; set one with --precision")
    if precision is None and no_answer is not None:
        raise ConfigError(
            f"--no-answer {no_answer:g} hides answers for the choice of a threshold; set one with --precision"
        )
    if valid is not None and not tunes:
        raise UsageError(
            f"--valid {valid} has no effect without --precision, --prior auto or --ensemble auto; give one of them, or"
            " leave it out"
        )
    if scale != "auto":
        config = replace(config, ensemble=scale)
    tuning = None
    if valid is None:
        make_retriever(config, device=device).close()  # report missing models now
    if valid is not None:
        examples = load_examples(valid, speaker)
        with console().status("trying the pipeline on the validation examples"):
            config, tuning = choose_settings(
                config,
                examples[:limit],
                prior="auto" if weight == "auto" else None,
                ensemble=scale,
                precision=precision,
                no_answer=NO_ANSWER if no_answer is None else no_answer,
                device=device,
            )
    write_pipeline(output, config, tuning, replace=overwrite)
    if tuning and "prior" in tuning:
        _report_prior(tuning["prior"])
    if tuning and "ensembles" in tuning:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in tuning["ensembles"].items())
        notify(f"mean reciprocal rank by ensemble: {figures}; chosen: {config.ensemble or 'the re-ranker alone'}")
    if tuning and "stages" in tuning:
        first, both, difference = (_with_interval(tuning["stages"][name]) for name in ("first", "both", "difference"))
        notify(f"the first stage alone {first}, both stages {both}, difference {difference}")
        if tuning["stages"]["difference"]["low"] <= 0:
            notify("the re-ranker does not measurably improve the ranking; leave out --rerank, or give more examples")
    if tuning and tuning["n_lacking"]:
        notify(lacking_text(tuning))
    if tuning and "chosen" in tuning:
        point = tuning["chosen"]
        answered = f"{point['coverage']:.1%} of {tuning['n_examples']:,} contexts"
        right = f"{point['precision']:.1%} of the answers right (95%: at least {point['low']:.1%})"
        notify(f"answers {answered}, {right}, by {config.measure} >= {config.threshold:.4g}")
    if plot is not None:
        plot_coverage({output.name: curve_of(tuning or {})}, plot)
        notify(f"wrote {plot}")
    if rerank is None and retriever == "dense":
        suggest_second_stage(index, "add --rerank {}")
    notify(f"{output}: try it with polyrank respond {output}")


def _check_model(model: Path | None, retriever: str) -> None:
    if model is not None and retriever != "dense":
        raise ConfigError(f"--model {model} does not apply to {retriever}; leave it out")


def _read_prior(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--prior {text!r} is not a number; give 0 or more, or auto") from error


def _report_prior(seen: dict[str, Any]) -> None:
    """Which weight was chosen, or why none."""
    if "gain" not in seen:
        notify(f"prior 0, because only {seen['n_examples']} validation examples have a right answer in the index")
        return
    figures = ", ".join(f"{weight} {value:.4f}" for weight, value in seen["weights"].items())
    notify(f"mean reciprocal rank by weight of the prior, first stage: {figures}")
    gain = f"gain on examples that did not choose it {_with_interval(seen['gain'])}"
    r1 = f"R@1 {seen['without']['R@1']:.4f} without, {seen['with']['R@1']:.4f} with"
    if seen["gain"]["low"] > 0:
        notify(f"prior {seen['best']:g} * log(1 + count): {r1}; {gain}")
    else:
        notify(f"prior 0, because counts do not measurably improve the ranking; {gain}")


def _with_interval(figure: dict[str, float]) -> str:
    return f"{figure['mean']:.4f} (95%: {figure['low']:.4f} to {figure['high']:.4f})"


@add_command(pipeline_app, "test", "support data/test.jsonl")
def pipeline_test(
    pipeline: Annotated[Path, Argument(help="A pipeline folder with a threshold.")],
    data: Annotated[Path, Argument(help="Examples that the threshold was not chosen on.")],
    model: MovedModel = None,
    speaker: Speaker = None,
    limit: Limit = None,
    no_answer: Annotated[
        float, Option(min=0, max=1, help="Share of the examples whose right answer is hidden.")
    ] = NO_ANSWER,
    plot: Plot = None,
    overwrite: Overwrite = False,
    json_: Json = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure how often a pipeline answers, and how often its answers are right."""
    from polyrank.answering.calibration import try_threshold
    from polyrank.evaluation import plot_coverage
    from polyrank.loading.answering import read_pipeline
    from polyrank.storage.durable import check_output

    use_processor(threads)
    check_output(plot, inputs=(pipeline, data), overwrite=overwrite)
    config, _ = read_pipeline(pipeline)
    _check_model(model, config.retriever)
    if model is not None:
        config = replace(config, model=str(model))
    examples = load_examples(data, speaker)
    with console().status("answering"):
        figures, curve = try_threshold(config, examples[:limit], no_answer=no_answer, device=device)
    if plot is not None:
        plot_coverage({pipeline.name: curve}, plot)
        notify(f"wrote {plot}")
    if json_:
        print(json.dumps(figures))
        return
    print(
        f"{figures['n_examples']:,} contexts, {figures['no_answer']:.1%} of them without their answer: answers"
        f" {figures['coverage']:.1%}, {figures['precision']:.1%} of the answers right (95%: at least"
        f" {figures['low']:.1%}); of those without, {figures['answered_without']:.1%} get one"
    )


@add_command(pipeline_app, "info", "support")
def pipeline_info(pipeline: Annotated[Path, Argument(help="A pipeline folder.")]) -> None:
    """Print the settings of a pipeline and the record of their calibration as JSON."""
    from polyrank.loading.answering import read_pipeline

    config, tuning = read_pipeline(pipeline)
    print(json.dumps({"pipeline": asdict(config), "seen": tuning}))
