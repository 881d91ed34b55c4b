"""``polyrank export`` and ``polyrank push``."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from polyrank.cli.console import console, load_lists, notify
from polyrank.cli.options import Overwrite, Speaker
from polyrank.errors import UsageError


def export(
    model: Annotated[str, Argument(help="A model folder; for sentence-transformers also shipped:minilm.")],
    to: Annotated[
        Literal["onnx", "onnx-int8", "openvino", "int8", "sentence-transformers"],
        Option(help="What to make: inside the model folder, except sentence-transformers."),
    ],
    output: Annotated[
        Path | None, Option("-o", "--output", help="The folder to make, for sentence-transformers.")
    ] = None,
    check: Annotated[bool, Option("--check", help="Compare an existing export with fp32, on this machine.")] = False,
    valid: Annotated[
        Path | None,
        Option(
            help="For int8 and onnx-int8: candidate lists to compare rankings on; for pairs or dialogues, lists are"
            " drawn. Default: the shipped sample."
        ),
    ] = None,
    speaker: Speaker = None,
    overwrite: Overwrite = False,
) -> None:
    """Export a model for another runtime. Fails if the vectors or scores of the export differ from fp32.

    onnx-int8 has 8-bit weights, for processors without bf16. Its export fails if it ranks differently: if R@1 falls by
    more than half a point, or fewer than nine of the ten best candidates stay. int8 compares torch's own 8-bit weights
    in the same way and records in the model folder whether they may be used.
    """
    from polyrank.config.names import SHIPPED
    from polyrank.loading.hub import hub_name
    from polyrank.loading.models import CUT, export_folder, resolve_model
    from polyrank.scorers import exported as backends
    from polyrank.scorers.in_int8 import check_int8

    inside = to != "sentence-transformers"
    if not inside and (output is None or check):
        raise UsageError("sentence-transformers needs an output folder and has no --check; give -o FOLDER")
    if valid is not None and to not in ("int8", "onnx-int8"):
        raise UsageError(
            f"--valid is for int8 and onnx-int8; an export to {to} is compared number by number, so leave it out"
        )
    if valid is None and speaker is not None:
        raise UsageError(f"--speaker {speaker} applies to candidate lists; give them with --valid, or leave it out")
    reference = resolve_model(model)
    if reference.kind not in ("trained", "foreign") or (folder := reference.folder) is None:
        raise UsageError(f"{model} is not a network; export its terms, which polyrank info lists")
    if reference.truncate_dim is not None:
        raise UsageError(
            f"an export holds whole vectors; leave {CUT}{reference.truncate_dim} out, and cut what it gives"
        )
    if (model.startswith(SHIPPED) or hub_name(model)) and inside and not check:
        raise UsageError(f"{model} belongs to an installed package, which keeps its files; export a copy of {folder}")
    if to == "sentence-transformers":
        assert output is not None, "checked above"
        backends.export_to_sentence_transformers(folder, output, replace=overwrite)
        notify(f"wrote {output}")
        return
    if output is not None:
        raise UsageError(f"the {to} export goes into the model folder {folder}; leave out -o")
    examples = [] if valid is None else load_lists(valid, speaker)
    with console().status("comparing with fp32" if check or to == "int8" else f"exporting to {to}"):
        if to == "int8":
            alike = check_int8(folder, examples, record=not check)
            use = "use 8-bit weights" if alike.kept else "do not use 8-bit weights"
            notify(f"{model}: {alike}; processors without bf16 instructions {use}")
            return
        if check:
            result = backends.check_export(folder, to, examples)
        else:
            result = backends.export_model(folder, to, replace=overwrite, examples=examples)
    cosine = f"lowest cosine to fp32 {result:.6f}; the minimum is {backends.MIN_COSINE}" if to != "onnx-int8" else ""
    notify(f"{export_folder(folder, to)}: {cosine or result}")


def push(
    model: Annotated[Path, Argument(help="A model folder that training wrote.")],
    name: Annotated[str, Argument(help="hf:OWNER/MODEL; the repository is created if it does not exist.")],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
) -> None:
    """Upload a trained model to the Hugging Face Hub; every command then accepts it as hf:OWNER/MODEL."""
    from polyrank.loading.sharing import push_model

    address = push_model(model, name, private=private)
    notify(f"{model}: uploaded to {address}; load it with {name}")
