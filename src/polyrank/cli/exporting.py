"""``polyrank export``."""

from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import console, talk
from polyrank.cli.lists import read_lists
from polyrank.cli.options import Overwrite, Speaker
from polyrank.errors import UsageError


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    to: Annotated[
        str, typer.Option(help="onnx, onnx-int8 or openvino, kept in the model folder; or sentence-transformers.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder to make, for sentence-transformers.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the export that is there with fp32, on this machine.")
    ] = False,
    valid: Annotated[
        Path | None,
        typer.Option(
            help="For onnx-int8: lists by which it must rank as before; else the sample's. Of pairs or dialogues, lists"
            " are drawn."
        ),
    ] = None,
    speaker: Speaker = None,
    overwrite: Overwrite = False,
) -> None:
    """A model for another runtime. Refused where its vectors or scores differ from fp32.

    onnx-int8 has its weights in 8 bits, for processors without bf16, and is refused where it ranks differently: where
    R@1 falls by more than a point, or fewer than nine of the ten best stay.
    """
    from polyrank.loading.folders import folder_kind
    from polyrank.loading.models import export_folder, read_backend, read_sum
    from polyrank.scorers import exported as backends

    kept = ("onnx", "onnx-int8", "openvino")
    if to not in (*kept, "sentence-transformers"):
        raise UsageError(f"there is no export to {to!r}; choose onnx, onnx-int8, openvino or sentence-transformers")
    if to not in kept and (output is None or check):
        raise UsageError("sentence-transformers needs a folder to make and has no --check; give it with -o FOLDER")
    if valid is not None and to != "onnx-int8":
        raise UsageError(f"--valid is for onnx-int8; an export to {to} is compared number by number, leave it out")
    if not model.exists():
        raise UsageError(f"there is no model folder {model}; give one that training wrote")
    if folder_kind(model) == "sum":
        parts = ", ".join(part["model"] for part in read_sum(model)["parts"])
        raise UsageError(f"{model} is a sum, which has no network of its own; export its encoders one by one: {parts}")
    if output is not None and to == "sentence-transformers":
        backends.export_to_sentence_transformers(model, output, replace=overwrite)
        talk(f"wrote {output}")
        return
    backend = read_backend(to)
    if output is not None:
        raise UsageError(
            f"a model folder keeps its {to} export itself, in {export_folder(model, backend)}; leave out -o"
        )
    examples = [] if valid is None else read_lists(valid, speaker)
    with console().status("comparing with fp32" if check else f"exporting to {to}"):
        if check:
            alike = backends.check_export(model, backend, examples)
        else:
            alike = backends.export_model(model, backend, replace=overwrite, examples=examples)
    folder = export_folder(model, backend)
    if isinstance(alike, float):
        talk(f"{folder}: worst cosine to fp32 {alike:.6f}, at least {backends.MIN_COSINE} needed")
    else:
        talk(f"{folder}: {alike}")
