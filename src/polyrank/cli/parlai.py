"""``polyrank import parlai``: a model of ParlAI becomes a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import talk
from polyrank.cli.options import Overwrite

NAMES = {"bi": "a Bi-encoder", "poly": "a Poly-encoder", "cross": "a Cross-encoder"}


def parlai(
    model: Annotated[Path, typer.Argument(help="The file of weights; .opt, .dict and .dict.codecs lie next to it.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The model folder to write.")],
    overwrite: Overwrite = False,
) -> None:
    """A Bi-, Poly- or Cross-encoder that ParlAI trained, such as the models released with the Poly-encoder paper."""
    from polyrank.models.foreign import import_parlai

    imported = import_parlai(model, output, replace=overwrite)
    talk(f"{model}: {NAMES[imported.kind]} with {imported.n_parameters:,} parameters")
    if imported.random_codes:
        talk("The file has no codes, so they are random; train the model before you use it.")
    talk(f"wrote {output}")
