"""Files of some kilobytes that unpack to more than a memory holds are refused before they do."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest

import polyrank
from polyrank.data import import_chats
from polyrank.data.chats.unpacking import gunzipped

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
def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, name: str) -> None:
    large = b"x," * 500_000
    data = {
        "chats.zip": packed({"a.csv": large}),
        "chats.csv.gz": gzip.compress(large[:100]) + gzip.compress(large),  # the second member
        "inside.zip": packed({"a.csv.gz": gzip.compress(large)}),
    }[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(polyrank.DataError, match=r"unpacks to more than 100,000 bytes; .*--max-bytes"):
        import_chats(tmp_path / name, max_bytes=100_000)


def test_a_sheet_of_two_far_cells_is_refused(tmp_path: Path) -> None:
    """Its reader would ask for 17 billion cells, and take the process with it."""
    first, last = CELLS
    (tmp_path / "far.xlsx").write_bytes(workbook(f'<row r="1">{first}</row>', f'<row r="1048576">{last}</row>'))
    with pytest.raises(polyrank.DataError, match=r"spans 17,179,869,184 cells, the limit is 20,000,000"):
        import_chats(tmp_path / "far.xlsx")


def test_what_was_packed_comes_back_whole() -> None:
    text = b"hello " * 1_000_000
    assert gunzipped(Path("a"), gzip.compress(text) + gzip.compress(b"end") + b"\0\0", 2**30) == text + b"end"
    with pytest.raises(EOFError):
        gunzipped(Path("a"), gzip.compress(text)[:-20], 2**30)
