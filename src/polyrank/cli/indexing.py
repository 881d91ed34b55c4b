"""``polyrank index``: build, change, copy and check an index."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import console, one_speaks, say_cut, talk
from polyrank.cli.options import Device, FilterText, Overwrite, Runtime
from polyrank.devices.distributed import on_rank_zero, process_group
from polyrank.errors import ArtifactError, DataError, UsageError

index_app = typer.Typer(
    no_args_is_help=True, callback=one_speaks, help="Build, change and inspect indexes of candidates."
)
IndexPath = Annotated[Path, typer.Argument(help="An index folder.")]
Replies = Annotated[Path, typer.Argument(help="Replies: JSON lines of id and text, CSV, or one per line.")]


@index_app.command("build")
@process_group()
def index_build(
    model: Annotated[
        str,
        typer.Argument(
            help="A Bi- or Poly-encoder's folder, a Hugging Face bi-encoder, untuned:BACKBONE or shipped:convert."
        ),
    ],
    candidates: Replies,
    output: Annotated[Path, typer.Option("-o", "--output", help="The index folder to make.")],
    ann: Annotated[str, typer.Option(help="For approximate search: auto, flat, sq8, ivfpq, hnsw, or none.")] = "none",
    precision: Annotated[
        str, typer.Option(help="Vectors are stored in fp32, bf16 (half the room) or int8 (about a quarter).")
    ] = "fp32",
    remote: Annotated[
        str | None,
        typer.Option(help="Keep candidates on a Milvus server, http://HOST:PORT/COLLECTION; the folder names it."),
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    backend: Runtime = "torch",
) -> None:
    """Encode candidates once and write them as an index. Replacing one, only new texts are encoded."""
    from polyrank.answering.build import build_index
    from polyrank.data import read_pool
    from polyrank.index import check_target
    from polyrank.index.checks import check_candidates
    from polyrank.index.local.ann import read_kind
    from polyrank.loading.models import absolute_name, read_backend, resolve_encoder
    from polyrank.scorers.open import load_encoder
    from polyrank.storage.quantized import read_precision

    kind, stored, runtime = read_kind(ann), read_precision(precision), read_backend(backend)
    resolve_encoder(model, backend=runtime)
    on_rank_zero(lambda: check_target(output, precision=stored, remote=remote, overwrite=overwrite))
    pool = read_pool(candidates, notify=talk)
    check_candidates(pool)
    encoder = load_encoder(model, device=device, backend=runtime)
    with _progress() as progress:
        n = build_index(
            output,
            encoder,
            pool,
            model=absolute_name(model),
            ann=kind,
            precision=stored,
            overwrite=overwrite,
            remote=remote,
            progress=progress,
        )
    say_cut(encoder)
    talk(f"{output}: {len(pool):,} candidates of dimension {encoder.dimension}, {n:,} texts encoded")


@index_app.command("add")
def index_add(
    index: IndexPath,
    candidates: Replies,
    replace: Annotated[bool, typer.Option("--replace", help="Replace candidates of the same ids.")] = False,
    model: Annotated[Path | None, typer.Option(help="The model, where it has moved since the index was built.")] = None,
    device: Device = "auto",
    backend: Runtime = "torch",
) -> None:
    """Add candidates: all of them or, with an error, none. Whoever searches the index sees them at once."""
    from polyrank.answering.build import add_to_index
    from polyrank.data import read_pool
    from polyrank.index import open_index, open_writer
    from polyrank.index.checks import check_candidates
    from polyrank.loading.models import read_backend
    from polyrank.scorers.open import encoder_of_index

    runtime = read_backend(backend)
    with open_index(index) as opened:
        built_with = opened.model
    pool = read_pool(candidates, notify=talk)
    check_candidates(pool)
    encoder = encoder_of_index(built_with, model, device=device, backend=runtime)
    with open_writer(index, fingerprint=encoder.fingerprint) as writer, _progress() as progress:
        n = add_to_index(writer, encoder, pool, replace=replace, progress=progress)
        say_cut(encoder)
        there = f" ({len(pool) - n:,} were there already)" if n < len(pool) else ""
        talk(f"{index}: added {n:,}{there}, now {len(writer):,} candidates")


@index_app.command("update-counts")
def index_update_counts(index: IndexPath, replies: Replies) -> None:
    """Set how often each reply was said, by the field `count` of a file; texts are not encoded again."""
    from polyrank.answering.build import update_counts
    from polyrank.scorers.popularity import catalogue_counts

    counts = catalogue_counts(replies)
    n = update_counts(index, counts)
    talk(f"{index}: {n:,} candidates have another count now")


@index_app.command("remove")
def index_remove(
    index: IndexPath,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of candidates.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file of ids, one per line.")] = None,
    filter: FilterText = None,
) -> None:
    """Remove candidates by id, or those that pass a filter; ids that are not there are fine."""
    from polyrank.data.rows import numbered_lines
    from polyrank.index import as_filter, open_index, open_writer

    condition = as_filter(filter)
    if condition is not None and (ids or file):
        raise UsageError("there are ids and a filter; remove by one of them, then by the other")
    names = list(ids or ())
    for _, line in numbered_lines(file) if file is not None else ():
        if isinstance(line, DataError):
            raise line
        if line.strip():
            names.append(line.strip())
    if not names and condition is None:
        raise UsageError("no ids were given; name some, or a file of them with --file, or a --filter")
    with open_writer(index) as writer:
        if condition is not None:
            with open_index(index) as opened:  # nobody else changes it meanwhile
                names = [candidate.id for _, candidate in opened.iter_candidates(condition)]
        n = writer.remove(names)
        talk(f"{index}: removed {n:,}, now {len(writer):,} candidates")


@index_app.command("compact")
def index_compact(index: IndexPath) -> None:
    """Make the matrix that searches read anew. Happens by itself when much has changed."""
    from polyrank.index import open_writer

    with open_writer(index) as writer:
        writer.compact()
        talk(f"{index}: {len(writer):,} candidates")


@index_app.command("snapshot")
def index_snapshot(
    index: IndexPath, output: Annotated[Path, typer.Option("-o", "--output", help="The index folder to make.")]
) -> None:
    """Copy an index as it is now; it may be searched meanwhile."""
    from polyrank.index import open_writer
    from polyrank.index.local.writer import check_snapshot_path

    check_snapshot_path(output)
    with open_writer(index) as writer:
        writer.snapshot(output)
        talk(f"{output}: {len(writer):,} candidates")


@index_app.command("list")
def index_list(
    index: IndexPath,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first ones, as they were added.")] = None,
    filter: FilterText = None,
    json_: Annotated[bool, typer.Option("--json", help="JSON lines, with metadata.")] = False,
) -> None:
    """What an index holds: a line for each candidate, its id, a tab, and its text."""
    from polyrank.data.pool import row_of
    from polyrank.index import as_filter, open_index

    condition = as_filter(filter)
    with open_index(index) as opened:
        for _, candidate in islice(opened.iter_candidates(condition), limit):
            if json_:
                print(json.dumps(row_of(candidate), ensure_ascii=False))
            else:  # a line is a line, whatever the text holds
                print(*(" ".join(part.split()) for part in (candidate.id, candidate.text)), sep="\t")


@index_app.command("dump")
def index_dump(
    index: IndexPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write, .jsonl or .jsonl.gz.")],
    overwrite: Overwrite = False,
) -> None:
    """Write an index's candidates as JSON lines, of which polyrank index build makes an equal one."""
    from polyrank.data import write_pool
    from polyrank.data.rows import suffix
    from polyrank.index import open_index
    from polyrank.storage.durable import check_output

    if suffix(output) != ".jsonl":  # else it would be read as what its name says
        raise UsageError(f"{output} does not say that it holds JSON lines; let its name end in .jsonl or .jsonl.gz")
    check_output(output, overwrite=overwrite)
    with open_index(index) as opened:
        pool = [candidate for _, candidate in opened.iter_candidates()]
    write_pool(output, pool)
    talk(f"{output}: {len(pool):,} candidates")


@index_app.command("info")
def index_info(index: IndexPath) -> None:
    """What an index holds, as JSON."""
    from polyrank.index import open_index

    with open_index(index) as opened:
        print(json.dumps(opened.info()))


@index_app.command("verify")
def index_verify(index: IndexPath) -> None:
    """Check every byte of an index; lists all that is wrong."""
    from polyrank.index import verify_index

    problems = verify_index(index)
    for problem in problems:
        talk(problem)
    if problems:
        raise ArtifactError(f"{index} has {len(problems)} problem(s), listed above")
    talk(f"{index}: sound")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    from rich.progress import Progress

    with Progress(console=console(), disable=not console().is_terminal, transient=True) as display:
        task = display.add_task("encoding", total=None)
        yield lambda done, total: display.update(task, completed=done, total=total)
