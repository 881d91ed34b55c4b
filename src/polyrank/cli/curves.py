"""``polyrank curves``."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyrank.cli.console import check_plot_path, notify
from polyrank.cli.options import Json, Overwrite
from polyrank.errors import UsageError


def curves(
    runs: Annotated[list[Path], Argument(help="Output folders of trainings, or their metrics.jsonl files.")],
    output: Annotated[
        Path | None, Option("-o", "--output", help="Draw a plot (.png, .svg, .pdf).", callback=check_plot_path)
    ] = None,
    figure: Annotated[str, Option(help="R@1, MRR or loss.")] = "R@1",
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """Show validation figures by epoch, for one or more trainings: as a plot with --output, otherwise as a table."""
    from polyrank.evaluation.curves import plot_curves, read_curves
    from polyrank.storage.durable import check_output

    check_output(output, inputs=runs, overwrite=overwrite)
    by_run = read_curves(runs)
    known = sorted({name for curve in by_run.values() for check in curve for name in check.figures})
    if figure not in known:
        raise UsageError(f"no validation of these runs has {figure}; choose {', '.join(known) or 'other runs'}")
    if output is not None:
        plot_curves(by_run, output, figure=figure)
        notify(f"wrote {output}")
    if json_:
        print(json.dumps({name: [dataclasses.asdict(check) for check in curve] for name, curve in by_run.items()}))
    elif output is None:
        for name, curve in by_run.items():
            for check in curve:
                when = f"step {check.step}" if check.epoch is None else f"epoch {check.epoch:g}"
                if figure in check.figures:
                    print(f"{name}\t{when}\t{figure} {check.figures[figure]:.4f}")
