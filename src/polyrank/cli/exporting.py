"""``polyrank export``."""

from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import console, talk
from polyrank.errors import UsageError


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    to: Annotated[str, typer.Option(help="onnx or openvino, kept in the model folder; or sentence-transformers.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder to make, for sentence-transformers.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the export that is there with fp32, on this machine.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """A model for another runtime. Refused where its vectors or scores differ from fp32."""
    from polyrank.scorers import exported as backends
    from polyrank.scorers.summed import is_sum, read_sum

    if not model.exists():
        raise UsageError(f"there is no model folder {model}; give one that training wrote")
    if is_sum(model):
        parts = ", ".join(part["model"] for part in read_sum(model)["parts"])
        raise UsageError(f"{model} is a sum, which has no network of its own; export its encoders one by one: {parts}")
    if to == "sentence-transformers":
        if output is None or check:
            raise UsageError("sentence-transformers needs a folder to make and has no --check; give it with -o FOLDER")
        backends.export_to_sentence_transformers(model, output, replace=overwrite)
        talk(f"wrote {output}")
        return
    if to not in ("onnx", "openvino"):
        raise UsageError(f"there is no export to {to!r}; choose onnx, openvino or sentence-transformers")
    backend = backends.read_backend(to)
    if output is not None:
        raise UsageError(
            f"a model folder keeps its {to} export itself, in {backends.export_folder(model, backend)}; leave out -o"
        )
    with console().status("comparing with fp32" if check else f"exporting to {to}"):
        if check:
            worst = backends.check_export(model, backend)
        else:
            worst = backends.export_model(model, backend, replace=overwrite)
    folder = backends.export_folder(model, backend)
    talk(f"{folder}: worst cosine to fp32 {worst:.6f}, at least {backends.MIN_COSINE} needed")
