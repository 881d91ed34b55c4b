"""``polyrank curves``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import drawable, talk
from polyrank.cli.options import Json, Overwrite
from polyrank.errors import UsageError


def curves(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of trainings, or their metrics.jsonl files.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Draw here, as .png or .svg.", callback=drawable)
    ] = None,
    figure: Annotated[str, typer.Option(help="R@1, MRR or loss.")] = "R@1",
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """Validation figures by epoch, several trainings in one plot; without --output as a table."""
    import dataclasses

    from polyrank.evaluation.curves import plot_curves, read_curves
    from polyrank.storage.durable import check_output

    check_output(output, inputs=runs, overwrite=overwrite)
    curves_of = read_curves(runs)
    if not any(figure in check.figures for curve in curves_of.values() for check in curve):
        known = ", ".join(sorted({name for curve in curves_of.values() for check in curve for name in check.figures}))
        raise UsageError(f"no validation of these runs has {figure}; they have {known or 'none at all'}")
    if output is not None:
        plot_curves(curves_of, output, figure=figure)
        talk(f"wrote {output}")
    if json_:
        print(json.dumps({name: [dataclasses.asdict(check) for check in curve] for name, curve in curves_of.items()}))
    elif output is None:
        for name, curve in curves_of.items():
            for check in curve:
                when = f"step {check.step}" if check.epoch is None else f"epoch {check.epoch:g}"
                if figure in check.figures:
                    print(f"{name}\t{when}\t{figure} {check.figures[figure]:.4f}")
