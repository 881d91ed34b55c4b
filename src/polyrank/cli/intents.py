"""``polyrank intents``: a classifier on the vectors of a frozen encoder."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from polyrank.cli.console import console, notify, stdin_lines, use_processor
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import Device, Json, Overwrite, Threads, existing_model

SHARES = ("recall", "precision", "in_scope_accuracy")
intents_app = command_group("intents", "Classify utterances with a small network on an encoder's vectors.")


@add_command(intents_app, "train", "banking77 -o intents", "intents.csv -o intents --encoder shipped:convert")
def intents_train(
    data: Annotated[
        Path,
        Argument(
            help="A CSV, JSON or JSON-lines file (text, intent), split 80/10/10; or a folder with train, dev and test,"
            " or of banking77, clinc150, hwu64."
        ),
    ],
    output: Annotated[Path, Option("-o", "--output", help="The classifier's folder to make.")],
    encoder: Annotated[
        str, Option(help="A model folder, untuned:BACKBONE or shipped:convert.", callback=existing_model)
    ] = "untuned:embedded",
    few_shot: Annotated[int | None, Option(min=1, help="Train on N utterances per intent.")] = None,
    seeds: Annotated[int, Option(metavar="N", min=1, help="N trainings; the best on dev is kept.")] = 1,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Train a two-layer network on frozen encodings; the development part selects its sizes.

    The intent "oos" marks utterances out of scope. If the development part has some, they set a threshold of rejection.
    """
    from polyrank.loading.folders import INTENTS
    from polyrank.scorers.open import load_encoder
    from polyrank.storage.durable import check_replaceable
    from polyrank.tuning import intents

    use_processor(threads)
    check_replaceable(output, own_files=INTENTS.files, replace=overwrite)
    splits = intents.read_intents(data)
    if data.is_file() and not splits.test:
        splits = intents.held_out(splits)
    notify(f"{data}: {splits}")
    with console().status("encoding") as status:
        result = intents.train_intents(
            splits,
            load_encoder(encoder, device=device),
            encoder_name=encoder,
            n_few_shot=few_shot,
            seeds=range(1, seeds + 1),
            report=lambda what, done, total: status.update(f"{what}: {done:,} of {total:,}"),
        )
    intents.save_intents(output, result.classifier, replace=overwrite)
    if json_:
        print(json.dumps({"data": data.name, **result.figures}))
    else:
        _show(result.figures)
        notify(f"{output}: try it with polyrank intents predict {output}")


def _show(figures: dict[str, Any]) -> None:
    part, chosen = figures["judged_on"], figures["chosen"]
    low, high = (100 * end for end in figures["interval"])
    spread = "" if figures["accuracy_std"] is None else f" ± {100 * figures['accuracy_std']:.1f}"
    for row in figures["most_confused"][:5]:
        print(f"{row['intent']} classified as {row['classified_as']}: {row['count']}")
    print(
        f"{part} accuracy {100 * figures['accuracy']:.1f}%{spread} (95%: {low:.1f}-{high:.1f}) on"
        f" {figures[f'n_{part}']:,} in scope; {figures['n_train']:,} train, {figures['n_dev']:,} dev; H"
        f" {chosen['hidden_dim']}, dropout {chosen['dropout']}, lr {chosen['lr']}"
    )
    if (outside := figures["out_of_scope"]) is not None:
        shares = {name: "-" if outside[name] is None else f"{100 * outside[name]:.1f}%" for name in SHARES}
        print(
            f"rejecting scores below {outside['threshold']:.4g}: {shares['recall']} of {outside['n_out_of_scope']:,}"
            f" out of scope are rejected, {shares['precision']} of rejected ones are out of scope,"
            f" {shares['in_scope_accuracy']} in scope get their intent"
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
