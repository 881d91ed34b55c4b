"""``polyrank index``: builds, changes, copies and checks an index."""

import json
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from polyrank.cli import console
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import Device, FilterText, MovedModel, Overwrite, Runtime, Threads, Wait
from polyrank.devices.distributed import on_rank_zero, process_group
from polyrank.errors import ArtifactError, UsageError
from polyrank.loading.models import absolute_name, moved_name, resolve_encoder
from polyrank.wording import counted

index_app = command_group(
    "index", "Build, change and inspect indexes of candidates.", callback=console.silence_other_ranks
)
IndexPath = Annotated[Path, Argument(help="An index folder.")]
Replies = Annotated[Path, Argument(help="Replies: JSON lines of id and text, CSV, or one per line.")]


@add_command(
    index_app,
    "build",
    "run/model replies.txt -o my-index",
    "hf:OWNER/MODEL replies.jsonl -o my-index --ann auto --precision int8",
)
@process_group()
def index_build(
    model: Annotated[
        str,
        Argument(
            help="A ranker, a Bi- or Poly-encoder, a Hugging Face bi-encoder, untuned:BACKBONE or shipped:convert."
        ),
    ],
    candidates: Annotated[
        Path,
        Argument(help="Replies: JSON lines of id and text, CSV, or one per line; or dialogues, for their replies."),
    ],
    output: Annotated[Path, Option("-o", "--output", help="The index folder to make.")],
    ann: Annotated[
        str,
        Option(
            help="Structure for approximate search: auto, flat, sq8, ivfpq, hnsw, or none; with --remote flat, sq8,"
            " ivfpq, hnsw, diskann, or none."
        ),
    ] = "none",
    precision: Annotated[
        str, Option(help="Precision of stored vectors: fp32, bf16 (half the size) or int8 (about a quarter).")
    ] = "fp32",
    remote: Annotated[
        str | None,
        Option(
            help="Store candidates on a server: http://HOST:PORT/[DATABASE/]NAME of Milvus, qdrant+http://HOST:PORT/NAME"
            " or postgresql://HOST:PORT/DATABASE/NAME. The folder holds the address."
        ),
    ] = None,
    partition_by: Annotated[
        str,
        Option(help="With --remote: a metadata field. A filter for its value reads that part of the collection only."),
    ] = "",
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    backend: Runtime = "torch",
) -> None:
    """Encode candidates and write them as an index. With --overwrite, only new texts are encoded."""
    from polyrank.answering.build import build_index
    from polyrank.config.names import SHIPPED
    from polyrank.data import frequent_replies, read_pool
    from polyrank.data.language import not_english
    from polyrank.data.speakers import holds_dialogues
    from polyrank.index import check_target
    from polyrank.index.checks import check_candidates
    from polyrank.index.local.ann import read_kind
    from polyrank.index.remote import Address
    from polyrank.index.remote.stores import read_kind as read_remote_kind
    from polyrank.scorers.open import encoder_of, load_ranking
    from polyrank.storage.quantized import read_precision

    console.use_processor(threads)
    kind = read_kind(ann) if remote is None else read_remote_kind(ann, Address.of(remote))
    stored = read_precision(precision)
    resolve_encoder(model, backend=backend)
    target: dict[str, Any] = {"precision": stored, "remote": remote, "partition_by": partition_by}
    on_rank_zero(lambda: check_target(output, overwrite=overwrite, **target))
    if holds_dialogues(candidates):
        pool = frequent_replies(console.load_examples(candidates, None), notify=console.notify)
    else:
        pool = read_pool(candidates, notify=console.notify)
    check_candidates(pool)
    if model.startswith(SHIPPED) and (warning := not_english("replies", (candidate.text for candidate in pool))):
        console.notify(f"{candidates}: {warning}")
    scorer = load_ranking(model, device=device, backend=backend)
    encoder = encoder_of(scorer)
    with console.encoding_progress() as progress:
        n = build_index(
            output, scorer, pool, name=absolute_name(model), ann=kind, overwrite=overwrite, **target, progress=progress
        )
    console.report_cut_texts(encoder)
    made = f"{counted(len(pool), 'candidate')} of dimension {encoder.dimension}, {counted(n, 'text')} encoded"
    console.notify(f"{output}: {made}")


@add_command(index_app, "add", "my-index more.txt", "my-index new.jsonl --replace")
def index_add(
    index: IndexPath,
    candidates: Replies,
    replace: Annotated[bool, Option("--replace", help="Replace candidates with the same ids.")] = False,
    model: MovedModel = None,
    wait: Wait = 0.0,
    device: Device = "auto",
    threads: Threads = None,
    backend: Runtime = "torch",
) -> None:
    """Add all candidates or, on an error, none. Searches that are running see the new candidates at once."""
    from polyrank.answering.build import add_to_index
    from polyrank.answering.opening import scorer_of_index
    from polyrank.data import read_pool
    from polyrank.index import open_index, open_writer
    from polyrank.index.checks import check_candidates
    from polyrank.scorers.open import encoder_of

    console.use_processor(threads)
    with open_index(index) as opened:
        built_with = moved_name(opened.model, index)
    pool = read_pool(candidates, notify=console.notify)
    check_candidates(pool)
    scorer = scorer_of_index(built_with, model, device=device, backend=backend)
    fingerprint = encoder_of(scorer).fingerprint
    with open_writer(index, fingerprint=fingerprint, wait_s=wait) as writer, console.encoding_progress() as progress:
        n = add_to_index(writer, scorer, pool, replace=replace, progress=progress)
        console.report_cut_texts(scorer)
        there = f" ({len(pool) - n:,} were already in the index)" if n < len(pool) else ""
        done = "added or replaced" if replace else "added"
        console.notify(f"{index}: {done} {n:,}{there}, now {counted(len(writer), 'candidate')}")


@add_command(index_app, "update-counts", "my-index replies.jsonl", "my-index replies.jsonl --feedback feedback.db")
def index_update_counts(
    index: IndexPath,
    replies: Replies,
    feedback: Annotated[
        Path | None, Option(help="A feedback file of `polyrank serve`: replies that users sent unchanged count too.")
    ] = None,
    wait: Wait = 0.0,
) -> None:
    """Set the count of each reply from the field `count` of a file; texts are not encoded again.

    With --feedback, a reply without the field counts from 0.
    """
    from polyrank.answering.build import update_counts
    from polyrank.feedback import FeedbackStore, count_taken
    from polyrank.scorers.terms.counts import catalogue_counts

    counts, taken = catalogue_counts(replies, default=None if feedback is None else 0), Counter[str]()
    if feedback is not None:
        with FeedbackStore(feedback, write=False) as store:
            taken = count_taken(store.requests())
    n = update_counts(index, counts, taken, wait_s=wait)
    console.notify(f"{index}: updated the counts of {counted(n, 'candidate')}")


@add_command(index_app, "remove", "my-index id-1 id-2", "my-index --filter 'lang = \"de\"'")
def index_remove(
    index: IndexPath,
    ids: Annotated[list[str] | None, Argument(help="Ids of candidates.")] = None,
    file: Annotated[Path | None, Option(help="A file of ids, one per line.")] = None,
    filter: FilterText = None,
    wait: Wait = 0.0,
) -> None:
    """Remove candidates by id, or those that match a filter. Unknown ids are ignored."""
    from polyrank.data.lines import numbered_lines
    from polyrank.index import as_filter, open_index, open_writer

    condition = as_filter(filter)
    if condition is not None and (ids or file):
        raise UsageError("ids and a filter cannot be combined; remove by ids first, then by the filter")
    names = list(ids or ())
    for _, line in numbered_lines(file) if file is not None else ():
        if line.strip():
            names.append(line.strip())
    if not names and condition is None:
        raise UsageError("no ids were given; give ids, a file of ids with --file, or a --filter")
    with open_writer(index, wait_s=wait) as writer:
        if condition is not None:
            with open_index(index) as opened:  # the writer's lock excludes other changes
                names = [candidate.id for _, candidate in opened.iter_candidates(condition)]
        n = writer.remove(names)
        console.notify(f"{index}: removed {n:,}, now {counted(len(writer), 'candidate')}")


@add_command(index_app, "compact", "my-index")
def index_compact(index: IndexPath, wait: Wait = 0.0) -> None:
    """Rebuild the matrix that searches read. polyrank also does this by itself after many changes."""
    from polyrank.index import open_writer

    with open_writer(index, wait_s=wait) as writer:
        writer.compact()
        console.notify(f"{index}: {counted(len(writer), 'candidate')}")


@add_command(index_app, "snapshot", "my-index -o backup")
def index_snapshot(
    index: IndexPath,
    output: Annotated[Path, Option("-o", "--output", help="The index folder to make.")],
    wait: Wait = 0.0,
) -> None:
    """Copy an index in its present state; it stays searchable meanwhile."""
    from polyrank.index import open_writer
    from polyrank.index.local.writer import check_snapshot_path

    check_snapshot_path(index, output)
    with open_writer(index, wait_s=wait) as writer:
        writer.snapshot(output)
        console.notify(f"{output}: {counted(len(writer), 'candidate')}")


@add_command(index_app, "list", "my-index --limit 10", "my-index --json > replies.jsonl")
def index_list(
    index: IndexPath,
    limit: Annotated[int | None, Option(min=1, help="Only the first N, in the order in which they were added.")] = None,
    filter: FilterText = None,
    json_: Annotated[bool, Option("--json", help="Print JSON lines, with metadata, which index build reads.")] = False,
) -> None:
    """Print each candidate of an index as a line: its id, a tab, and its text."""
    from polyrank.data.pool import row_of
    from polyrank.index import as_filter, open_index

    condition = as_filter(filter)
    with open_index(index) as opened:
        for _, candidate in islice(opened.iter_candidates(condition), limit):
            if json_:
                print(json.dumps(row_of(candidate), ensure_ascii=False))
            else:  # one line per candidate, even if its text has line breaks
                print(*map(console.as_line, (candidate.id, candidate.text)), sep="\t")


@add_command(index_app, "info", "my-index")
def index_info(index: IndexPath) -> None:
    """Print the size, encoder and settings of an index as JSON."""
    from polyrank.index import open_index

    with open_index(index) as opened:
        print(json.dumps(opened.info()))


@add_command(index_app, "verify", "my-index")
def index_verify(index: IndexPath) -> None:
    """Check every byte of an index, and list all errors."""
    from polyrank.index import verify_index

    problems = verify_index(index)
    for problem in problems:
        console.notify(problem)
    if problems:
        raise ArtifactError(f"{index} has {len(problems)} problem(s), listed above")
    console.notify(f"{index}: sound")


@add_command(index_app, "remote-list", "http://127.0.0.1:19530", "https://milvus.example.org/shop/")
def index_remote_list(
    server: Annotated[
        str,
        Argument(
            help="A server: http://HOST:PORT or http://HOST:PORT/DATABASE/ of Milvus, qdrant+http://HOST:PORT or"
            " postgresql://HOST:PORT/DATABASE/."
        ),
    ],
) -> None:
    """Print each collection that polyrank built: its name, a tab, and the index that uses it.

    No index uses a collection whose build was interrupted or is still running.
    """
    from polyrank.index.remote import Address, list_collections

    for collection in list_collections(Address.of(server, named=False)):
        print(collection.name, ", ".join(collection.indexes), sep="\t")


@add_command(
    index_app, "remote-drop", "http://127.0.0.1:19530/replies", "http://127.0.0.1:19530/replies_1f2e3d4c --yes"
)
def index_remote_drop(
    address: Annotated[
        str, Argument(help="An index, http://HOST:PORT/[DATABASE/]NAME, or a collection that no index uses.")
    ],
    yes: Annotated[bool, Option("--yes", help="Skip the question.")] = False,
) -> None:
    """Delete a remote index and its candidates from the server. Folders that name it stop working."""
    from polyrank.index.remote import Address, drop_collection, find_collection

    where = Address.of(address)
    collection = find_collection(where)
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"{where} would be deleted; confirm it with --yes")
        if not typer.confirm(f"Delete {where} (collection {collection.name})?", False, err=True):
            raise UsageError("nothing was deleted")
    drop_collection(where)
    console.notify(f"{where}: deleted collection {collection.name}")
