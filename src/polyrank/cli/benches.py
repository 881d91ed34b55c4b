"""``polyrank bench``: speed tables, as text, JSON or a plot."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from polyrank.cli.console import console, drawable, talk
from polyrank.cli.options import Device, Json, Overwrite, Speaker
from polyrank.errors import UsageError

bench_app = typer.Typer(no_args_is_help=True, help="Measure speed on this machine, side by side.")
Plot = Annotated[Path | None, typer.Option(help="Draw it here, as .png or .svg.", callback=drawable)]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all by default.")]
Instructions = Annotated[
    str | None,
    typer.Option(help="As if the processor had no more: plain, avx2, avx-vnni, avx512 or avx512-vnni; torch too."),
]
AVX512 = ("avx512", "AVX512", "AVX512_CORE_VNNI", "SkylakeX")
LIMITS = {  # of torch, MKL, oneDNN and OpenBLAS, in their own words
    "plain": ("default", "SSE4_2", "SSE41", "Nehalem"),
    "avx2": ("avx2", "AVX2", "AVX2", "Haswell"),
    "avx-vnni": ("avx2", "AVX2", "AVX2_VNNI", "Haswell"),
    "avx512": AVX512,
    "avx512-vnni": AVX512,
}
Texts = Annotated[Path | None, typer.Option(help="A file of replies; the shipped sample's by default.")]


@bench_app.command("scoring")
def bench_scoring(
    n: Annotated[int, typer.Option("-n", min=1, help="Candidates.")] = 100_000,
    d: Annotated[int, typer.Option("-d", min=1, help="Dimensions.")] = 768,
    m: Annotated[list[int] | None, typer.Option("-m", min=1, help="Context vectors; repeatable.")] = None,
    growth: Annotated[list[int] | None, typer.Option(min=1, help="Sizes for the growth of time; repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    threads: Threads = None,
    instructions: Instructions = None,
    json_: Json = False,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """The ten best of N vectors for one context: the papers' form against ours."""
    _limit(instructions)
    from polyrank import bench

    _check_plot(plot, overwrite)
    _threads(threads)
    with console().status("measuring") as status:
        result = bench.bench_scoring(
            n=n, d=d, vectors=m or (16, 64, 360), growth=growth or (), repeats=repeats, progress=status.update
        )
    _show(result, json_, plot, by="m")


@bench_app.command("encode")
def bench_encode(
    texts: Texts = None,
    limit: Annotated[int, typer.Option(min=1, help="Use the first N texts.")] = 2000,
    pairs: Annotated[int, typer.Option(min=1, help="Candidates to re-rank.")] = 100,
    backend: Annotated[
        list[str] | None, typer.Option(help="Time an export beside torch: onnx, onnx-int8, openvino; repeatable.")
    ] = None,
    model: Annotated[list[Path] | None, typer.Option(help="Time another model folder too; repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    threads: Threads = None,
    instructions: Instructions = None,
    json_: Json = False,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """Encoding in bulk, one context, and re-ranking; by exports too."""
    _limit(instructions)
    from polyrank import bench
    from polyrank.loading.models import read_backend

    _check_plot(plot, overwrite, texts)
    runtimes = [read_backend(name) for name in backend or ()]
    _threads(threads)
    with console().status("measuring") as status:
        result = bench.bench_encoding(
            _texts(texts)[:limit],
            n_pairs=pairs,
            repeats=repeats,
            backends=runtimes,
            models=model or (),
            progress=status.update,
        )
    _show(result, json_, plot, by="n")


@bench_app.command("train")
def bench_train(
    data: Annotated[
        Path | None, typer.Argument(help="Pairs or dialogues; without it, the shipped sample's dialogues.")
    ] = None,
    speaker: Speaker = None,
    limit: Annotated[int, typer.Option(min=2, help="Use N examples.")] = 256,
    batch: Annotated[int, typer.Option(min=2, help="Contexts of an update.")] = 32,
    cache: Annotated[
        int | None, typer.Option(min=3, help="Time updates of N contexts too, in chunks of a batch (gradient cache).")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    threads: Threads = None,
    json_: Json = False,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """In-batch training of a Bi-encoder, pairs per second."""
    from importlib.resources import files

    from polyrank import bench
    from polyrank.data import choose_speaker, read_examples

    _check_plot(plot, overwrite, data)
    _threads(threads)
    path = data or Path(str(files("polyrank") / "sample" / "train.jsonl"))
    examples = read_examples(path, speaker=choose_speaker(path, speaker, notify=talk)).examples
    some = [example for example in examples if example.response is not None][:: max(1, len(examples) // limit)]
    with console().status("measuring") as status:
        result = bench.bench_training(
            some[:limit], batch_size=batch, large_batch=cache, repeats=repeats, progress=status.update
        )
    _show(result, json_, plot, by="n")


@bench_app.command("respond")
def bench_respond(
    texts: Texts = None,
    n: Annotated[list[int] | None, typer.Option("-n", min=1, help="Candidates; repeatable.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Bi, Poly-16, -64, -360, Cross, Poly-first-16, -64, -360; repeatable.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="embedded, base (as large as BERT-base, random weights), a folder or hf:OWNER/MODEL.")
    ] = "embedded",
    words: Annotated[int, typer.Option(min=1, help="Words of the context.")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """From a context's text to the ten best of N candidates, for each kind of model: the papers' table."""
    from polyrank import bench
    from polyrank.bench.responding import check_kinds

    check_kinds(kind or ())
    _check_plot(plot, overwrite, texts)
    _threads(threads)
    with console().status("measuring") as status:
        result = bench.bench_responding(
            _texts(texts),
            sizes=n or (1_000, 100_000),
            kinds=kind or bench.USUAL,
            backbone=backbone,
            n_words=words,
            repeats=repeats,
            device=device,
            progress=status.update,
        )
    _show(result, json_, plot, by="n")


@bench_app.command("profile")
def bench_profile(threads: Threads = None, instructions: Instructions = None, json_: Json = False) -> None:
    """Measure what searches cost here, and keep it: they choose how to scan by it. Answers do not depend on it."""
    _limit(instructions)
    from polyrank import bench

    _threads(threads)
    with console().status("measuring") as status:
        result = bench.bench_profile(progress=status.update)
    talk(f"wrote {result['path']}")
    _show(result, json_, None, by="what")


def _limit(instructions: str | None) -> None:
    """Let this process use no more instructions, in the loops, in torch and in its libraries, which read this once."""
    if instructions is None:
        return
    if instructions not in LIMITS:
        raise UsageError(f"--instructions {instructions!r} names none; give one of {', '.join(LIMITS)}")
    if "torch" in sys.modules:
        raise UsageError("torch has chosen its instructions already; measure with others in a process of its own")
    torch, mkl, onednn, openblas = LIMITS[instructions]
    os.environ |= {
        "POLYRANK_INSTRUCTIONS": instructions,
        "ATEN_CPU_CAPABILITY": torch,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "OPENBLAS_CORETYPE": openblas,
    }


def _check_plot(plot: Path | None, overwrite: bool, *inputs: Path | None) -> None:
    from polyrank.storage.durable import check_output

    check_output(plot, inputs=inputs, overwrite=overwrite)


def _threads(threads: int | None) -> None:
    import torch

    from polyrank.devices.choice import set_threads

    set_threads(threads or torch.get_num_threads())  # all of them, whatever else is busy: figures name their number


def _texts(path: Path | None) -> list[str]:
    from importlib.resources import files

    from polyrank.data import read_pool

    pool = path or Path(str(files("polyrank") / "sample" / "replies.jsonl"))
    return [candidate.text for candidate in read_pool(pool)]


def _show(result: dict[str, Any], as_json: bool, plot: Path | None, *, by: str) -> None:
    if plot is not None:
        from polyrank.evaluation import plot_times

        plot_times(result["rows"], by, plot)
        talk(f"wrote {plot}")
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    talk(f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {versions}")
    columns = list(dict.fromkeys(key for row in result["rows"] for key in row))
    table = Table(*columns)
    for row in result["rows"]:
        table.add_row(*("" if row.get(key) is None else f"{row[key]:,}" if isinstance(row[key], int | float) and not
                        isinstance(row[key], bool) else escape(str(row[key])) for key in columns))  # fmt: skip
    Console().print(table)
    for line in result.get("left_out", ()):
        talk(f"left out: {line}")
