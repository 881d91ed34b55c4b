"""``polyrank curves``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import drawable, talk


def curves(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of trainings, or their metrics.jsonl files.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Draw here, as .png or .svg.", callback=drawable)
    ] = None,
    figure: Annotated[str, typer.Option(help="R@1, MRR or loss.")] = "R@1",
    json_: Annotated[bool, typer.Option("--json", help="Print the points as JSON.")] = False,
) -> None:
    """Validation figures by epoch, several trainings in one plot; without --output as a table."""
    import dataclasses

    from polyrank.evaluation.curves import plot_curves, read_curves

    found = read_curves(runs)
    if output is not None:
        plot_curves(found, output, figure=figure)
        talk(f"wrote {output}")
    if json_:
        print(json.dumps({name: [dataclasses.asdict(check) for check in curve] for name, curve in found.items()}))
    elif output is None:
        for name, curve in found.items():
            for check in curve:
                when = f"step {check.step}" if check.epoch is None else f"epoch {check.epoch:g}"
                print(f"{name}\t{when}\t{figure} {check.figures.get(figure, float('nan')):.4f}")
