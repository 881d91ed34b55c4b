"""Decompression bombs of some kilobytes are refused before they fill the memory."""

import gzip
import io
import json
import random
import zipfile
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time

import pyarrow
import pyarrow.parquet
import pytest

from polyrank_chats import DataError, import_chats
from polyrank_chats.files.members import gunzipped

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


@pytest.mark.deep
@pytest.mark.parametrize("name", ["chats.zip", "chats.csv.gz"])
def test_bombs_within_the_size_limit_are_refused_by_their_ratio(tmp_path: Path, name: str) -> None:
    large = bytes(2**26 + 1)
    (tmp_path / name).write_bytes(packed({"a.csv": large}) if name == "chats.zip" else gzip.compress(large))
    with pytest.raises(DataError, match="unpacks to more than 100 times its size; unpack it"):
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
    with pytest.raises(DataError, match="a: damaged gzip"):
        gunzipped(Path("a"), gzip.compress(text)[:-20], 2**30)


@pytest.mark.deep
@pytest.mark.parametrize("n_members", [1, 150])
def test_the_time_to_unpack_grows_with_the_size(n_members: int) -> None:
    data = random.Random(0).randbytes(150 * 2**20 // n_members)
    members = gzip.compress(data, 0) * n_members
    started = process_time()
    assert gunzipped(Path("a"), members, 2**30) == data * n_members
    assert process_time() - started < 12


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "secret.csv").write_text("conversation,speaker,text\n1,ann,hidden\n1,bob,text\n")
    (tmp_path / "export" / "own.csv").write_text("conversation,speaker,text\n1,ann,hello\n1,bob,hi\n")
    (tmp_path / "export" / "link.csv").symlink_to(tmp_path / "secret.csv")
    (tmp_path / "export" / "folder").symlink_to(tmp_path)
    assert import_chats(tmp_path / "export").report.n_messages == 2


def test_a_small_table_of_many_rows_is_refused_early(tmp_path: Path) -> None:
    texts = pyarrow.DictionaryArray.from_arrays([0] * 500_000, ["a" * 1_000])
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "chats.parquet")
    before = getrusage(RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="unpacks to more than 100 times its size"):
        import_chats(tmp_path / "chats.parquet")
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 300_000


def test_a_row_of_too_many_columns_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    file.write_text(json.dumps({f"k{n}": n for n in range(10_001)}) + "\n", "utf-8")
    with pytest.raises(DataError, match=r"10,001 columns, more than 10,000; export a table of messages"):
        import_chats(file)


def test_json_of_brackets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f"[{'[],' * 2**20}[]]")
    with pytest.raises(DataError, match="mostly brackets"):
        import_chats(tmp_path / "a.json")
