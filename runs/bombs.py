"""Files and requests that take little space and much memory, and everything that reads them, each measured.

    python runs/bombs.py FOLDER [NAME...]    # prints one JSON line for each reading of each; "http" names the requests
    python runs/bombs.py --summary FILE... | python runs/record.py bombs    # of those lines

A reading may refuse a file with an error of polyrank's, or read it; the peak of its memory above what the process had
before is what counts. The memory of each process is limited, so that a bomb that goes off ends with a MemoryError.
"""

import bz2
import gzip
import io
import json
import lzma
import resource
import struct
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_BYTES = 500 * 10**6
LIMIT_BYTES = 3 * 10**9  # of address space, above what the process has
LARGE = 120 * 2**20  # what the packed ones unpack to
ROW = '{"context": ["hi"], "response": "hello"}\n'
CHAT = "[01/02/2024, 10:00:00] Ann: hello\n[01/02/2024, 10:00:05] Bob: hi\n"


def zipped(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return stream.getvalue()


def tarred(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def workbook(rows: str) -> bytes:
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    files = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"/>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{relations}"><sheets>'
        '<sheet name="s" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1"'
        f' Type="{relations}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>',
    }
    return zipped(**{name: text.encode() for name, text in files.items()})


def sheet(rows: str) -> bytes:
    names = ' xmlns:office="o" xmlns:table="t" xmlns:text="x"'
    content = f"<office:document-content{names}><office:body><office:spreadsheet>{rows}</office:spreadsheet>"
    return zipped(
        mimetype=b"application/vnd.oasis.opendocument.spreadsheet",
        **{
            "META-INF/manifest.xml": b'<m:manifest xmlns:m="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>',
            "content.xml": f"{content}</office:body></office:document-content>".encode(),
        },
    )


def table(**columns: Any) -> bytes:
    import pyarrow
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), stream, compression="zstd")
    return stream.getvalue()


def repeated(text: str, n: int) -> Any:
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * n, pyarrow.int32()), [text])


def database() -> bytes:
    import sqlite3

    memory = sqlite3.connect(":memory:")
    memory.execute("CREATE TABLE m (a)")
    memory.execute("CREATE VIEW v AS SELECT zeroblob(500000000) AS text, 'a' AS sender")
    return memory.serialize()


def tensors(header: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header


def deep(opening: str, closing: str = "", n: int = 2_000_000) -> bytes:
    return (opening * n + closing * n).encode()


def entities() -> bytes:
    lines = ['<!ENTITY a0 "aaaaaaaaaa">'] + [f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10)]
    return f"<!DOCTYPE m [{''.join(lines)}]><messages><m sender='a' text='&a9;'/></messages>".encode()


LINES = (ROW * (LARGE // len(ROW))).encode
BOMBS: dict[str, Callable[[], bytes]] = {
    "gz.jsonl.gz": lambda: gzip.compress(LINES(), 1),
    "gz-one-line.jsonl.gz": lambda: gzip.compress(b'{"context": ["' + b"a" * LARGE + b'"], "response": "b"}', 1),
    "gz-list.json.gz": lambda: gzip.compress(b"[" + b'{"a":1},' * (LARGE // 8) + b'{"a":1}]', 1),
    "gz-of-gz.csv.gz": lambda: gzip.compress(gzip.compress(bytes(LARGE), 9), 9),
    "gz-zeros.txt.gz": lambda: gzip.compress(bytes(LARGE), 9),
    "gz-chat.txt.gz": lambda: gzip.compress(CHAT.encode() * (LARGE // len(CHAT)), 9),
    "gz-csv.csv.gz": lambda: gzip.compress(b"context,response\n" + b"hi,hello\n" * (LARGE // 9), 9),
    "gz-mail.mbox.gz": lambda: gzip.compress(b"From a\nSubject: b\n\nhi\n\n" * (LARGE // 25), 9),
    "bz2.jsonl.bz2": lambda: bz2.compress(bytes(LARGE)),
    "xz.jsonl.xz": lambda: lzma.compress(bytes(LARGE), preset=1),
    "zst.jsonl.zst": lambda: __import__("zstandard").compress(bytes(LARGE)),
    "tar.tar.gz": lambda: tarred(**{"a.csv": bytes(LARGE)}),
    "zip-zeros.zip": lambda: zipped(**{"a.csv": bytes(LARGE)}),
    "zip-json.zip": lambda: zipped(**{"messages.json": b"[" + b"[]," * (8 * 2**20) + b"[]]"}),
    "zip-many.zip": lambda: zipped(**{f"{n}.csv": bytes(2**20) for n in range(300)}),
    "zip-of-gz.zip": lambda: zipped(**{"a.csv.gz": gzip.compress(bytes(LARGE), 9)}),
    "zip-of-zip.zip": lambda: zipped(**{"a.zip": zipped(**{"a.csv": bytes(LARGE)})}),
    "zip-names.zip": lambda: zipped(**{f"{n}.txt": b"" for n in range(60_000)}),
    "zip-xlsx.zip": lambda: zipped(**{"a.xlsx": workbook('<row r="1"><c r="A1"><v>1</v></c></row>' * 400_000)}),
    "xlsx-far.xlsx": lambda: workbook(
        '<row r="1"><c r="A1" t="inlineStr"><is><t>a</t></is></c></row>'
        '<row r="1048576"><c r="XFD1048576" t="inlineStr"><is><t>b</t></is></c></row>'
    ),
    "xlsx-rows.xlsx": lambda: workbook('<row><c t="inlineStr"><is><t>a</t></is></c></row>' * 1_000_000),
    "xlsx-cell.xlsx": lambda: workbook(f'<row r="1"><c r="A1" t="inlineStr"><is><t>{"a" * LARGE}</t></is></c></row>'),
    "xlsx-name.xlsx": lambda: workbook('<row r="1"><c r="ZZZZZZZZZZ99999999999"><v>1</v></c></row>'),
    "docx.docx": lambda: zipped(**{"[Content_Types].xml": b"", "word/document.xml": b"<a>" * (LARGE // 3)}),
    "ods-rows.ods": lambda: sheet(
        '<table:table table:name="s"><table:table-row table:number-rows-repeated="1048576"><table:table-cell'
        ' table:number-columns-repeated="16384" office:value-type="string"><text:p>a</text:p></table:table-cell>'
        "</table:table-row></table:table>"
    ),
    "ods-huge.ods": lambda: sheet(
        '<table:table table:name="s"><table:table-row table:number-rows-repeated="4294967295"><table:table-cell'
        ' office:value-type="string"><text:p>a</text:p></table:table-cell></table:table-row></table:table>'
    ),
    "parquet-text.parquet": lambda: table(context=repeated("a" * 5_000, 200_000), response=repeated("b", 200_000)),
    "parquet-nulls.parquet": lambda: table(text=__import__("pyarrow").nulls(20_000_000)),
    "parquet-rows.parquet": lambda: table(text=repeated("a" * 50, 10_000_000), id=repeated("a", 10_000_000)),
    "parquet-cell.parquet": lambda: table(text=["a" * LARGE]),
    "parquet-lists.parquet": lambda: table(context=[["a"] * 20_000_000], response=["b"]),
    "parquet-columns.parquet": lambda: table(**{f"c{n}": [1] for n in range(20_000)}),
    "sqlite-view.db": database,
    "sqlite-view.jsonl": database,
    "json-deep.json": lambda: deep("[", "]"),
    "json-deep-open.json": lambda: deep('{"a":'),
    "json-deep.jsonl": lambda: deep("[", "]") + b"\n",
    "json-number.json": lambda: b'{"context": "a", "response": ' + b"1" * (20 * 2**20) + b"}",
    "json-number.jsonl": lambda: b'{"context": "a", "response": ' + b"1" * (7 * 2**20) + b"}\n",
    "json-exponent.jsonl": lambda: b'{"context": "a", "response": "b", "relevant": 1e999999999}\n',
    "json-lists.json": lambda: b"[" + b"[]," * (10 * 2**20) + b"[]]",
    "json-objects.json": lambda: b"[" + b'{"a":[]},' * (2**20) + b"{}]",
    "json-keys.jsonl": lambda: json.dumps({f"k{n}": n for n in range(400_000)}).encode() + b"\n",
    "json-escapes.json": lambda: b'[{"sender":"a","text":"' + b"\\ud83d\\ude00" * (2**20) + b'"}]',
    "csv-columns.csv": lambda: b"," * (4 * 2**20) + b"\n" + b"a," * 100 + b"\n",
    "csv-quote.csv": lambda: b'context,response\n"' + b"a\n" * (20 * 2**20),
    "csv-narrow.csv": lambda: b"a,b\n" * (2 * 2**20),
    "mbox-headers.mbox": lambda: b"From a\n" + b"X: y\n" * 1_000_000 + b"\nhi\n",
    "mbox-mails.mbox": lambda: b"From a@b Thu Jan  1 00:00:00 2024\nFrom: a@b\n\nhi\n\n" * 100_000,
    "eml-parts.eml": lambda: (
        b"From: a@b\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\n" + b"--x\n\na\n" * 300_000
    ),
    "eml-nested.eml": lambda: b"".join(
        b"From: a@b\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x%d\n\n--x%d\n" % (n, n)
        for n in range(20_000)
    ),
    "eml-base64.eml": lambda: b"From: a@b\nContent-Transfer-Encoding: base64\n\n" + b"QUJD" * (5 * 2**20),
    "html-tags.eml": lambda: b"From: a@b\nContent-Type: text/html\n\n" + b"<div>" * 1_000_000,
    "xml-entities.xml": entities,
    "xml-deep.xml": lambda: deep("<a>", "</a>", 500_000),
    "xml-wide.xml": lambda: b"<m>" + b"<a b='c'/>" * 500_000 + b"</m>",
    "vtt-tags.vtt": lambda: b"WEBVTT\n\n00:00.000 --> 00:01.000\n" + b"<v Ann>" * 500_000,
    "srt-lines.srt": lambda: b"1\n00:00:00,000 --> 00:00:01,000\nAnn: hi\n\n" * 200_000,
    "txt-lines.txt": lambda: b"\n" * (20 * 2**20),
    "txt-chat.txt": lambda: CHAT.encode() * 100_000,
    "safetensors-header.safetensors": lambda: tensors(b"{}", 2**62),
    "safetensors-shape.safetensors": lambda: tensors(
        b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    ),
    "safetensors-names.safetensors": lambda: tensors(
        json.dumps({f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(300_000)}).encode()
    ),
}


def model_folder(folder: Path, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


CONFIG = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 64}  # fmt: skip
FOLDERS: dict[str, dict[str, Callable[[], bytes]]] = {
    "config-deep": {"config.json": lambda: deep("[", "]")},
    "config-huge": {"config.json": lambda: json.dumps(CONFIG | {"hidden_size": 2**20, "vocab_size": 2**30}).encode()},
    "tokenizer-deep": {
        "config.json": lambda: json.dumps(CONFIG).encode(), "tokenizer.json": lambda: deep("[", "]"),
        "model.safetensors": lambda: tensors(b"{}"),
    },
    "tokenizer-wide": {
        "config.json": lambda: json.dumps(CONFIG).encode(),
        "tokenizer.json": lambda: json.dumps(
            {"version": "1.0", "model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
             "max_input_chars_per_word": 100, "vocab": {f"w{n}": n for n in range(500_000)}}}
        ).encode(),
        "model.safetensors": lambda: tensors(b"{}", 2**62),
    },
    "shape-huge": {
        "config.json": lambda: json.dumps(CONFIG).encode(), "tokenizer.json": lambda: b"{}",
        "model.safetensors": BOMBS["safetensors-shape.safetensors"],
    },
    "index-deep": {"candidates.db": database, "index.json": lambda: deep("[", "]")},
    "index-zero": {"candidates.db": lambda: b"SQLite format 3\0" + bytes(2**20)},
    "ranker-deep": {"ranker.json": lambda: deep("[", "]"), "ranker.safetensors": lambda: tensors(b"{}", 2**62)},
    "model-deep": {"model.json": lambda: deep('{"a":')},
    "remote-deep": {"remote.json": lambda: deep("[", "]")},
}  # fmt: skip


def readings(path: Path) -> dict[str, Callable[[], object]]:
    """The functions that read a file or folder."""
    import polyrank
    from polyrank.data import read_examples
    from polyrank.data.pool import read_pool
    from polyrank.index import verify_index
    from polyrank_chats import import_chats

    if path.is_dir():
        return {
            "load": lambda: polyrank.load(str(path), device="cpu"),
            "open": lambda: polyrank.open(path, device="cpu"),
            "verify": lambda: verify_index(path),
        }
    return {
        "import chats": lambda: import_chats(path),
        "train data": lambda: sum(1 for _ in read_examples(path, skip_bad=True).examples),
        "import replies": lambda: len(read_pool(path)),
    }


def memory(name: str, process: int | str = "self") -> int:
    """A field of /proc/PROCESS/status, in bytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise LookupError(name)


def measure(work: Callable[[], object]) -> dict[str, Any]:
    """The outcome of a reading, and its peak of memory above what was there."""
    from polyrank.errors import PolyrankError
    from polyrank_chats.errors import ChatsError

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before, began = memory("VmRSS"), time.monotonic()
    try:
        work()
        outcome = "read"
    except (PolyrankError, ChatsError) as error:
        outcome = f"refused: {str(error)[:300]}"
    except BaseException as error:
        outcome = f"failed: {type(error).__name__}: {str(error)[:300]}"
    seconds = round(time.monotonic() - began, 1)
    return {"outcome": outcome, "bytes": memory("VmHWM") - before, "seconds": seconds}


def requests(folder: Path) -> None:
    """Send bodies to a server, which answers or refuses each; the memory is that of its process and of its worker."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import polyrank
    from servers import serving
    from serving.test_attacks import TYPED, cases, head, send

    packed = gzip.compress(b'{"context": "' + b"a" * LARGE + b'"}')
    zipped = b"content-encoding: gzip\r\ncontent-length: %d\r\n" % len(packed)
    polyrank.build_index(folder / "served", "shipped:convert", ["hello"], overwrite=True)
    with serving(folder / "served") as running:
        for name, data in [*cases(), ("gzip", head("POST", "/v1/respond", TYPED + zipped) + packed)]:
            pids = (running.process.pid, *running.workers)
            for pid in pids:
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            before, began = sum(memory("VmRSS", pid) for pid in pids), time.monotonic()
            answer = send(running, data).split(b"\r", 1)[0].decode("latin-1")
            row = {"bomb": f"http {name}", "reading": "serve", "outcome": answer or "the connection ended"}
            row |= {"bytes": sum(memory("VmHWM", pid) for pid in pids) - before}
            print(json.dumps(row | {"seconds": round(time.monotonic() - began, 1)}), flush=True)


def main(folder: Path, names: list[str]) -> None:
    """Make each bomb in another process, so that its making does not count, and read it here."""
    import multiprocessing

    import polyrank

    polyrank.load("shipped:convert", device="cpu").score(["a"], [["b"]])  # the libraries are in memory
    size = memory("VmSize") + LIMIT_BYTES
    for name in names or [*BOMBS, *FOLDERS, "http"]:
        if name == "http":
            requests(folder)
            continue
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(folder, name))
        maker.start()
        maker.join()
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for reading, work in readings(folder / name).items():
            print(json.dumps({"bomb": name, "reading": reading} | measure(work)), flush=True)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)


def make(folder: Path, name: str) -> None:
    """Write a bomb."""
    if name in FOLDERS:
        model_folder(folder / name, **{file: data() for file, data in FOLDERS[name].items()})
    else:
        (folder / name).write_bytes(BOMBS[name]())


def summary(paths: list[str]) -> dict[str, Any]:
    """The counts of all rows, and the largest and slowest ones."""
    from polyrank.bench.machine import describe_machine

    rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    n_requests = sum(row["reading"] == "serve" for row in rows)
    return {
        "machine": describe_machine(),
        "files": len({row["bomb"] for row in rows}) - n_requests,
        "readings": len(rows) - n_requests,
        "requests": n_requests,
        "failed": [row for row in rows if row["outcome"].startswith("failed")],
        "largest": sorted(rows, key=lambda row: -row["bytes"])[:5],
        "slowest": sorted(rows, key=lambda row: -row["seconds"])[:5],
    }


if __name__ == "__main__":
    if sys.argv[1] == "--summary":
        print(json.dumps(summary(sys.argv[2:])))
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
