"""``polyrank intents``: a classifier on the vectors of a frozen encoder."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from polyrank.cli.console import check_plot_path, notify, print_table, stdin_lines, use_processor
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import Device, Json, Overwrite, Threads, existing_model
from polyrank.cli.progress import WorkDisplay, numbers
from polyrank.errors import DataError

intents_app = command_group("intents", "Classify utterances with a small network on an encoder's vectors.")


@add_command(
    intents_app, "train", "banking77 -o intents", "intents.csv -o intents --encoder shipped:convert --hold-out 0.1"
)
def intents_train(
    data: Annotated[
        Path, Argument(help="A CSV or JSON-lines file (text, intent), or a folder of banking77, clinc150, hwu64.")
    ],
    output: Annotated[Path, Option("-o", "--output", help="The classifier's folder to make.")],
    encoder: Annotated[
        str,
        Option(
            help="A model folder, untuned:BACKBONE, shipped:convert; or a sum, whose vectors are concatenated.",
            callback=existing_model,
        ),
    ] = "untuned:embedded",
    dev: Annotated[Path | None, Option(help="Development file. Default: a tenth of the training part.")] = None,
    test: Annotated[Path | None, Option(help="Test file.")] = None,
    hold_out: Annotated[
        float | None,
        Option(metavar="SHARE", help="Split one file: this share for dev and the same for test; 0.1: 80/10/10."),
    ] = None,
    few_shot: Annotated[int | None, Option(min=1, help="Train on N utterances per intent.")] = None,
    layer: Annotated[str, Option(help="The encoder's output to use: auto, final, or r (of a ConveRT).")] = "auto",
    seeds: Annotated[str, Option(help="One training per seed; the best on dev is kept.")] = "1",
    hidden: Annotated[str, Option(help="Hidden sizes to try.")] = "512",
    dropout: Annotated[str, Option(help="Dropouts to try.")] = "0.3,0.6",
    lr: Annotated[str, Option(help="Learning rates to try.")] = "0.02,0.06,0.2",
    max_epochs: Annotated[int, Option(min=1, help="Maximum number of epochs.")] = 200,
    out_of_scope: Annotated[str, Option(help="The intent that marks out-of-scope utterances.")] = "oos",
    aim: Annotated[
        str, Option(help="Objective of the threshold: balanced, accuracy, or f1 (of out of scope).")
    ] = "balanced",
    precision: Annotated[
        float | None, Option(min=0, max=1, help="Without out-of-scope data: share of answers that must be right.")
    ] = None,
    cache: Annotated[Path | None, Option(help="Folder in which runs share encodings.")] = None,
    plot: Annotated[
        Path | None, Option(help="Draw the confusion matrix (.png, .svg, .pdf).", callback=check_plot_path)
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Train a two-layer network on frozen encodings; the development part selects its sizes."""
    import dataclasses

    from polyrank.loading.folders import INTENTS
    from polyrank.storage.durable import check_output, check_replaceable
    from polyrank.tuning import intents
    from polyrank.tuning.intents.train_intents import check_share

    use_processor(threads)
    grid = intents.Grid(
        hidden_dim=tuple(numbers(hidden, int, "--hidden")),
        dropout=tuple(numbers(dropout, float, "--dropout")),
        lr=tuple(numbers(lr, float, "--lr")),
    )
    if hold_out is not None:
        check_share(hold_out)
    trained, wanted = numbers(seeds, _seed, "--seeds"), intents.read_aim(aim)
    check_replaceable(output, own_files=INTENTS.files, replace=overwrite)
    check_output(plot, inputs=(data, output, dev, test), overwrite=overwrite)
    splits = intents.read_intents(data, out_of_scope=out_of_scope)
    if dev is not None:
        splits = dataclasses.replace(splits, dev=intents.read_utterances(dev, out_of_scope=out_of_scope))
    if test is not None:
        splits = dataclasses.replace(splits, test=intents.read_utterances(test, out_of_scope=out_of_scope))
    if hold_out is not None:
        splits = intents.held_out(splits, hold_out)
    notify(f"{data}: {splits}")
    with WorkDisplay() as display:
        result = intents.train_intents(
            splits,
            intents.open_encoder(encoder, device=device),
            encoder_name=encoder,
            layer=layer,
            grid=grid,
            n_few_shot=few_shot,
            seeds=trained,
            aim=wanted,
            precision=precision,
            max_epochs=max_epochs,
            cache=cache,
            report=display.report,
        )
    intents.save_intents(output, result.classifier, replace=overwrite)
    if plot is not None:
        intents.plot_confusion(result.matrix, result.classifier.intents, plot)
        notify(f"wrote {plot}")
    if json_:
        print(json.dumps({"data": data.name, **result.figures}))
    else:
        _show(result.figures)
    if result.unreached:
        raise DataError(f"{output} rejects nothing: {result.unreached}")
    if not json_:
        notify(f"{output}: try it with polyrank intents predict {output}")


def _seed(text: str) -> int:
    if (seed := int(text)) < 0:
        raise ValueError("a seed must not be negative")
    return seed


def _show(figures: dict[str, Any]) -> None:
    part, chosen = figures["judged_on"], figures["chosen"]
    low, high = (100 * end for end in figures["interval"])
    spread = "" if figures["accuracy_std"] is None else f" ± {100 * figures['accuracy_std']:.1f}"
    rows = []
    for row in figures["per_intent"][:15]:
        shares = [f"{100 * row[name]:.1f}" for name in ("precision", "recall", "f1")]
        rows.append((row["intent"], *shares, str(row["support"])))
    title = f"{part}: the weakest of {figures['n_intents']} intents"
    print_table(("intent", "precision", "recall", "F1", "n"), rows, title=title)
    for row in figures["most_confused"][:5]:
        print(f"{row['intent']} classified as {row['taken_for']}: {row['count']}")
    n = figures["n_test"] if part == "test" else figures["n_dev"]
    print(
        f"{part} accuracy {100 * figures['accuracy']:.1f}%{spread} (95%: {low:.1f}-{high:.1f}) on {n:,} in scope;"
        f" {figures['n_train']:,} train, {figures['n_dev']:,} dev; H {chosen['hidden_dim']},"
        f" dropout {chosen['dropout']}, lr {chosen['lr']}"
    )
    if (outside := figures["out_of_scope"]) is not None:
        print(
            f"rejecting by {outside['measure']} < {outside['threshold']:.4g}: in scope"
            f" {100 * outside['in_scope_accuracy']:.1f}%, out of scope recall {100 * outside['recall']:.1f}%, precision"
            f" {100 * outside['precision']:.1f}%, F1 {100 * outside['f1']:.1f}% ({outside['n_out_of_scope']:,})"
        )


@add_command(intents_app, "predict", 'intents "where is my card"')
def intents_predict(
    classifier: Annotated[Path, Argument(metavar="FOLDER", help="A classifier's folder.")],
    text: Annotated[list[str] | None, Argument(help="Utterances. Default: the lines of stdin.")] = None,
    k: Annotated[int, Option("-k", min=1, help="Number of intents to list.")] = 3,
    encoder: Annotated[str | None, Option(help="The encoder, if it has moved.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Predict the intent of each utterance; prints lines in a terminal, JSON in a pipe."""
    from polyrank.tuning.intents import load_intents

    use_processor(threads)
    loaded = load_intents(classifier, encoder=encoder, device=device)

    def answer(utterance: str) -> None:
        prediction = loaded.predict([utterance], k)[0]
        if sys.stdout.isatty():
            best = ", ".join(f"{name} {100 * share:.0f}%" for name, share in prediction.best)
            print(f"{prediction.intent or '(out of scope)'}  [{best}]", flush=True)
            return
        row = {
            "text": utterance,
            "intent": prediction.intent,
            "confidence": prediction.confidence,
            "intents": [{"intent": name, "probability": share} for name, share in prediction.best],
        }
        print(json.dumps(row, ensure_ascii=False), flush=True)

    if text:
        for utterance in text:
            answer(utterance)
        return
    if sys.stdin.isatty():
        notify("Type an utterance. Ctrl-D ends the input.")
    for _, line in stdin_lines():
        answer(line)
