"""``polyrank bench``: measures speed, and prints text, JSON or a plot."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Argument, Option

from polyrank.cli.console import console, notify, print_table
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import AllThreads, Device, Json, Overwrite, Plot, Speaker, existing_device
from polyrank.errors import UsageError

T = TypeVar("T")
bench_app = command_group("bench", "Measure and compare speed on this machine.")
Instructions = Annotated[
    str | None,
    Option(help="Limit the processor's instructions, also in torch: plain, avx2, avx-vnni, avx512 or avx512-vnni."),
]
AVX512 = ("avx512", "AVX512", "AVX512_CORE_VNNI", "SkylakeX")
LIMITS = {  # the names that torch, MKL, oneDNN and OpenBLAS use
    "plain": ("default", "SSE4_2", "SSE41", "Nehalem"),
    "avx2": ("avx2", "AVX2", "AVX2", "Haswell"),
    "avx-vnni": ("avx2", "AVX2", "AVX2_VNNI", "Haswell"),
    "avx512": AVX512,
    "avx512-vnni": AVX512,
}
Texts = Annotated[Path | None, Option(help="A file of replies. Default: the shipped sample.")]


@add_command(bench_app, "scoring", "-n 1000000 -m 16 -m 64")
def bench_scoring(
    n: Annotated[int, Option("-n", min=1, help="Candidates.")] = 100_000,
    d: Annotated[int, Option("-d", min=1, help="Dimensions.")] = 768,
    m: Annotated[list[int] | None, Option("-m", min=1, help="Context vectors. Repeatable.")] = None,
    growth: Annotated[list[int] | None, Option(min=1, help="Sizes to measure the growth of time. Repeatable.")] = None,
    repeats: Annotated[int, Option(min=1, help="Rounds.")] = 5,
    device: Annotated[str, Option(help="cuda: also search on it.", callback=existing_device)] = "cpu",
    threads: AllThreads = None,
    instructions: Instructions = None,
    json_: Json = False,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """Time the ten best of N vectors for one context: the papers' formula against polyrank's search."""
    _limit(instructions)
    from polyrank import bench

    _prepare(threads, plot, overwrite)
    with console().status("measuring") as status:
        result = bench.bench_scoring(
            n=n,
            d=d,
            vectors=m or (16, 64, 360),
            growth=growth or (),
            repeats=repeats,
            device=device,
            progress=status.update,
        )
    _show(result, json_, plot, by="m")


@add_command(bench_app, "encode", "--backend onnx --backend openvino")
def bench_encode(
    texts: Texts = None,
    limit: Annotated[int, Option(min=1, help="Use the first N texts.")] = 2000,
    pairs: Annotated[int, Option(min=1, help="Candidates to re-rank.")] = 100,
    backend: Annotated[
        list[str] | None, Option(help="Also time an export: onnx, onnx-int8, openvino. Repeatable.")
    ] = None,
    precision: Annotated[list[str] | None, Option(help="Also time weights in fp32, bf16 or int8. Repeatable.")] = None,
    model: Annotated[list[Path] | None, Option(help="Also time another model folder. Repeatable.")] = None,
    repeats: Annotated[int, Option(min=1, help="Rounds.")] = 3,
    device: Device = "auto",
    threads: AllThreads = None,
    instructions: Instructions = None,
    json_: Json = False,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """Time encoding in bulk, encoding one context, and re-ranking, with torch and with exports."""
    _limit(instructions)
    from polyrank import bench
    from polyrank.config.checked import read_choice
    from polyrank.devices.choice import Precision
    from polyrank.loading.models import read_backend

    runtimes = [read_backend(name) for name in backend or ()]
    precisions: list[Precision] = [read_choice(name, Precision, "precision") for name in precision or ()]
    _prepare(threads, plot, overwrite, texts)
    with console().status("measuring") as status:
        result = bench.bench_encoding(
            _texts(texts)[:limit],
            n_pairs=pairs,
            repeats=repeats,
            backends=runtimes,
            precisions=precisions,
            models=model or (),
            device=device,
            progress=status.update,
        )
    _show(result, json_, plot, by="n")


@add_command(bench_app, "train", "--batch 64 --cache 1024")
def bench_train(
    data: Annotated[Path | None, Argument(help="Pairs or dialogues. Default: the shipped sample.")] = None,
    speaker: Speaker = None,
    limit: Annotated[int, Option(min=2, help="Use N examples.")] = 256,
    batch: Annotated[int, Option(min=2, help="Contexts per update.")] = 32,
    cache: Annotated[
        int | None, Option(min=3, help="Also time updates of N contexts, in chunks of a batch (gradient cache).")
    ] = None,
    host: Annotated[
        bool,
        Option("--host", help="Time only the preparation of batches, in microseconds per pair."),
    ] = False,
    repeats: Annotated[int, Option(min=1, help="Rounds.")] = 3,
    device: Device = "auto",
    threads: AllThreads = None,
    json_: Json = False,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """Time the in-batch training of a Bi-encoder, in pairs per second."""
    from polyrank import bench
    from polyrank.config.names import SAMPLE
    from polyrank.data import choose_speaker, read_examples

    if host and (cache is not None or plot is not None):
        raise UsageError("--host prepares batches without a network; leave --cache and --plot out")
    _prepare(threads, plot, overwrite, data)
    path = data or SAMPLE / "train.jsonl"
    examples = read_examples(path, speaker=choose_speaker(path, speaker, notify=notify)).examples
    some = _spread([example for example in examples if example.response is not None], limit)
    with console().status("measuring") as status:
        if host:
            result = bench.bench_host(some, batch_size=batch, repeats=repeats, progress=status.update)
        else:
            result = bench.bench_training(
                some, batch_size=batch, large_batch=cache, repeats=repeats, device=device, progress=status.update
            )
    _show(result, json_, plot, by="n")


@add_command(bench_app, "respond", "-n 100000 --kind Bi --kind Poly-16")
def bench_respond(
    texts: Texts = None,
    n: Annotated[list[int] | None, Option("-n", min=1, help="Candidates. Repeatable.")] = None,
    kind: Annotated[
        list[str] | None, Option(help="Bi, Poly-16, -64, -360, Cross, Poly-first-16, -64, -360. Repeatable.")
    ] = None,
    backbone: Annotated[
        str, Option(help="embedded, base (size of BERT-base, random weights), a folder or hf:OWNER/MODEL.")
    ] = "embedded",
    words: Annotated[int, Option(min=1, help="Words per context.")] = 100,
    repeats: Annotated[int, Option(min=1, help="Rounds.")] = 5,
    device: Device = "auto",
    threads: AllThreads = None,
    json_: Json = False,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """Time the way from a context's text to the ten best of N candidates, for each kind of model, as in the papers."""
    from polyrank import bench
    from polyrank.bench.responding import check_kinds

    check_kinds(kind or ())
    _prepare(threads, plot, overwrite, texts)
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


@add_command(bench_app, "profile")
def bench_profile(threads: AllThreads = None, instructions: Instructions = None, json_: Json = False) -> None:
    """Measure the cost of searches and store it, for searches to choose the fastest method. Answers stay the same."""
    _limit(instructions)
    from polyrank import bench

    _prepare(threads)
    with console().status("measuring") as status:
        result = bench.bench_profile(progress=status.update)
    notify(f"wrote {result['path']}")
    _show(result, json_, None, by="what")


def _limit(instructions: str | None) -> None:
    """Limit the instructions of this process, through environment variables that torch and its libraries read once."""
    if instructions is None:
        return
    if instructions not in LIMITS:
        raise UsageError(f"--instructions {instructions!r} is unknown; give one of {', '.join(LIMITS)}")
    if "torch" in sys.modules:
        raise UsageError("torch has already chosen its instructions; measure with others in a new process")
    torch, mkl, onednn, openblas = LIMITS[instructions]
    os.environ |= {
        "POLYRANK_INSTRUCTIONS": instructions,
        "ATEN_CPU_CAPABILITY": torch,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "OPENBLAS_CORETYPE": openblas,
    }


def _prepare(threads: int | None, plot: Path | None = None, overwrite: bool = False, *inputs: Path | None) -> None:
    """Check the path of the plot, and set the number of threads."""
    import torch

    from polyrank.devices.choice import set_threads
    from polyrank.storage.durable import check_output

    check_output(plot, inputs=inputs, overwrite=overwrite)
    set_threads(
        threads or torch.get_num_threads()
    )  # all by default, even if some cores are busy: the figures state the number


def _spread(values: list[T], n: int) -> list[T]:
    """At most ``n`` values, from the whole list."""
    return values[:: max(1, len(values) // n)][:n]


def _texts(path: Path | None) -> list[str]:
    from polyrank.config.names import SAMPLE
    from polyrank.data import read_pool

    pool = path or SAMPLE / "replies.jsonl"
    return [candidate.text for candidate in read_pool(pool)]


def _show(result: dict[str, Any], as_json: bool, plot: Path | None, *, by: str) -> None:
    if plot is not None:
        from polyrank.evaluation import plot_times

        plot_times(result["rows"], by, plot)
        notify(f"wrote {plot}")
    if as_json:
        print(json.dumps(result))
        return
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    notify(f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {versions}")
    columns = list(dict.fromkeys(key for row in result["rows"] for key in row))
    rows = [[_cell(row.get(key)) for key in columns] for row in result["rows"]]
    print_table(columns, rows, n_left=len(columns))
    for line in result.get("left_out", ()):
        notify(f"left out: {line}")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,}" if type(value) in (int, float) else str(value)
