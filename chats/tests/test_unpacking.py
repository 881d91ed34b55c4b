"""Decompression bombs of some kilobytes are refused before they fill the memory."""

import gzip
import io
import random
import re
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import polars
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank_chats import DataError, import_chats
from polyrank_chats.sheets import check_workbook
from polyrank_chats.unpacking import gunzipped

ENDLESS = 1_048_576
CELLS = '<c r="A1" t="inlineStr"><is><t>a</t></is></c>', '<c r="XFD1048576" t="inlineStr"><is><t>b</t></is></c>'


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def workbook(*rows: str) -> bytes:
    main, relations = (
        "http://schemas.openxmlformats.org/spreadsheetml/2006/main",
        "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    )
    package = "http://schemas.openxmlformats.org/package/2006"
    files = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="xml" ContentType="a/xml"/>'
        "</Types>",
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{relations}"><sheets>'
        '<sheet name="s" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1"'
        f' Type="{relations}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{"".join(rows)}</sheetData></worksheet>',
    }
    return packed({name: text.encode() for name, text in files.items()})


@pytest.mark.parametrize("name", ["chats.zip", "chats.csv.gz", "inside.zip"])
def test_files_that_unpack_to_too_much_are_refused(tmp_path: Path, name: str) -> None:
    large = b"x," * 500_000
    data = {
        "chats.zip": packed({"a.csv": large}),
        "chats.csv.gz": gzip.compress(large[:100]) + gzip.compress(large),  # the second member
        "inside.zip": packed({"a.csv.gz": gzip.compress(large)}),
    }[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=r"unpacks to more than 100,000 bytes; .*`max_bytes`"):
        import_chats(tmp_path / name, max_bytes=100_000)


@pytest.mark.parametrize("name", ["chats.zip", "chats.csv.gz"])
def test_bombs_within_the_size_limit_are_refused_by_their_ratio(tmp_path: Path, name: str) -> None:
    large = bytes(2**26 + 1)
    (tmp_path / name).write_bytes(packed({"a.csv": large}) if name == "chats.zip" else gzip.compress(large))
    with pytest.raises(DataError, match="unpacks to more than 200 times its size; unpack it"):
        import_chats(tmp_path / name)


def ods(*sheets: Sequence[tuple[int, Sequence[tuple[str, int]]]]) -> bytes:
    """A sheet from rows with repeat counts, and cells with repeat counts; a cell without a text is empty."""

    def cell(text: str, n: int) -> str:
        head = f'<table:table-cell table:number-columns-repeated="{n}"'
        return f'{head} office:value-type="string"><text:p>{text}</text:p></table:table-cell>' if text else f"{head}/>"

    def row(n: int, cells: Sequence[tuple[str, int]]) -> str:
        inside = "".join(cell(*one) for one in cells)
        return f'<table:table-row table:number-rows-repeated="{n}">{inside}</table:table-row>'

    body = "".join(
        f'<table:table table:name="s{number}">{"".join(row(*one) for one in rows)}</table:table>'
        for number, rows in enumerate(sheets)
    )
    names = ' xmlns:office="o" xmlns:table="t" xmlns:text="x"'
    manifest = "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"
    files = {
        "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
        "META-INF/manifest.xml": f'<manifest:manifest xmlns:manifest="{manifest}"/>',
        "content.xml": f"<office:document-content{names}><office:body><office:spreadsheet>{body}"
        "</office:spreadsheet></office:body></office:document-content>",
    }
    return packed({name: text.encode() for name, text in files.items()})


def xls(names: Sequence[str], cells: Sequence[tuple[int, int]], n_bytes: int = 4096) -> bytes:
    """A workbook whose sheets are all the same one, in a stream of at least ``n_bytes``."""

    def record(kind: int, body: bytes) -> bytes:
        return struct.pack("<HH", kind, len(body)) + body

    def first(kind: int) -> bytes:
        return record(0x809, struct.pack("<HHHHII", 0x600, kind, 0, 0, 0, 0))

    def entry(name: str, kind: int, child: int, start: int, size: int) -> bytes:
        text = name.encode("utf-16-le") + b"\0\0"
        head = text.ljust(64, b"\0") + struct.pack("<HBBIII", len(text), kind, 1, FREE, FREE, child)
        return head + bytes(36) + struct.pack("<IQ", start, size)

    start = len(first(5)) + sum(12 + len(name) for name in names) + 4
    book = first(5) + b"".join(
        record(0x85, struct.pack("<IHBB", start, 0, len(name), 0) + name.encode()) for name in names
    )
    book += record(0x0A, b"") + first(0x10)
    book += b"".join(record(0x203, struct.pack("<HHHd", *cell, 0, 1.5)) for cell in cells) + record(0x0A, b"")
    book = book.ljust(n_bytes, b"\0")
    book += bytes(-len(book) % 512)
    chain = [*range(3, len(book) // 512 + 2), END]
    table = [0xFFFFFFFD, END, *chain]
    if len(book) < 4096:  # stored in pieces of 64 bytes, with the chain in the last sector
        table.append(END)
        directory = entry("Root Entry", 5, 1, 2, len(book)) + entry("Workbook", 2, FREE, 0, n_bytes)
        book += struct.pack("<128I", *range(1, len(book) // 64), END, *[FREE] * (128 - len(book) // 64))
    else:
        directory = entry("Root Entry", 5, 1, END, 0) + entry("Workbook", 2, FREE, 2, len(book))
    minis = (len(table) - 1, 1) if n_bytes < 4096 else (END, 0)
    head = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16) + struct.pack("<5H6x", 0x3E, 3, 0xFFFE, 9, 6)
    head += struct.pack("<9I109I", 0, 1, 1, 0, 4096, *minis, END, 0, 0, *[FREE] * 108)
    return head + struct.pack("<128I", *table, *[FREE] * (128 - len(table))) + directory.ljust(512, b"\0") + book


FREE, END = 0xFFFFFFFF, 0xFFFFFFFE
FAR = workbook(f'<row r="1">{CELLS[0]}</row>', f'<row r="1048576">{CELLS[1]}</row>')
BOMBS = {  # one or two kilobytes each
    "far.xlsx": (FAR, 17_179_869_184),
    "quotes.xlsx": (workbook("<x:c r = 'a1'/>", "<c s='1' r='XFD1048576'/>"), 17_179_869_184),
    "far.ods": (ods([(1, [("a", 1)]), (ENDLESS - 2, [("", 1)]), (1, [("", 29), ("b", 1)])]), 30 * ENDLESS),
    "repeated.ods": (ods([(10_000, [("a", 9_000)])]), 90_000_000),
    "sheets.ods": (ods(*[[(1_000, [("a", 9_000)])]] * 3), 27_000_000),
    "sheets.xls": (xls([f"s{i}" for i in range(99)], [(0, 0), (65_535, 99)]), 99 * 65_536 * 100),
    "small.xls": (xls(["a", "b"], [(0, 0), (65_535, 255)], 500), 2 * 2**24),
}


@pytest.mark.parametrize("name", BOMBS)
def test_sheets_of_more_cells_than_memory_holds_are_refused(tmp_path: Path, name: str) -> None:
    """Their reader would allocate all of them, and crash the process."""
    data, n = BOMBS[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=f"span {n:,} cells, the limit is 20,000,000"):
        import_chats(tmp_path / name)


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20)), min_size=1, max_size=5, unique=True),
    st.sampled_from([500, 4096, 9000]),
)
def test_cells_are_counted_as_they_are_read(cells: list[tuple[int, int]], n_bytes: int) -> None:
    """For all sheets together, at the limit and above it."""
    data = xls(["a", "b"], sorted(cells), n_bytes)
    sheets = polars.read_excel(data, sheet_id=0, has_header=False, drop_empty_rows=False, raise_if_empty=False)
    n = sum(sheet.height * sheet.width for sheet in sheets.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyrank_chats.sheets.MAX_CELLS", n)
        check_workbook(Path("a"), data, 2**20)
        patch.setattr("polyrank_chats.sheets.MAX_CELLS", n - 1)
        with pytest.raises(DataError, match=re.escape(f"span {n:,} cells")):
            check_workbook(Path("a"), data, 2**20)


def test_a_sheet_with_trailing_empty_rows_is_read(tmp_path: Path) -> None:
    """As LibreOffice writes it, with the rest of a million rows and 16,384 columns."""
    rows = [[("conversation", 1), ("speaker", 1), ("text", 1), ("", 16_381)]]
    rows += [[("1", 1), ("ann", 1), ("hello", 1)], [("1", 1), ("bob", 1), ("hi", 1)]]
    (tmp_path / "chats.ods").write_bytes(ods([*((1, row) for row in rows), (ENDLESS - 3, [("", 16_384)])]))
    assert import_chats(tmp_path / "chats.ods").report.n_messages == 2


@pytest.mark.parametrize(
    "table", [{"text": pyarrow.DictionaryArray.from_arrays([0] * 2_000, ["a" * 5_000])}, {"text": [None] * 100_000}]
)
def test_a_table_that_unpacks_to_too_much_is_refused(tmp_path: Path, table: dict[str, object]) -> None:
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "chats.parquet")
    assert (tmp_path / "chats.parquet").stat().st_size < 20_000
    with pytest.raises(DataError, match="unpacks to more than 1,000,000 bytes"):
        import_chats(tmp_path / "chats.parquet", max_bytes=1_000_000)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "chats.csv").open("wb") as file:
        file.truncate(2**40)  # a sparse file
    with pytest.raises(DataError, match=r"more than 1,073,741,824 bytes; .*`max_bytes`"):
        import_chats(tmp_path / "chats.csv")


def test_compressed_files_are_read_completely() -> None:
    text = b"hello " * 1_000_000
    assert gunzipped(Path("a"), gzip.compress(text) + gzip.compress(b"end") + b"\0\0", 2**30) == text + b"end"
    with pytest.raises(EOFError):
        gunzipped(Path("a"), gzip.compress(text)[:-20], 2**30)


@pytest.mark.parametrize("n_members", [1, 150])
def test_the_time_to_unpack_grows_with_the_size(n_members: int) -> None:
    data = random.Random(0).randbytes(150 * 2**20 // n_members)
    members = gzip.compress(data, 0) * n_members
    started = perf_counter()
    assert gunzipped(Path("a"), members, 2**30) == data * n_members
    assert perf_counter() - started < 12
