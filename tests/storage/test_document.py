"""The sealed document: round trips, refusal of any changed byte, and documents of earlier versions."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import polyrank
from polyrank.config.models import MODEL
from polyrank.errors import ArtifactError
from polyrank.index.local.matrix import MATRIX
from polyrank.loading.folders import RANKER
from polyrank.scorers.ranker import as_ranker, load_ranker
from polyrank.storage.document import (
    SEAL,
    DocumentKind,
    check_format,
    check_part,
    checksum,
    has_document,
    new_parts,
    open_or_write,
    read_document,
    read_parts,
    seal,
    unseal,
)
from polyrank.training.run import RECIPE

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
DOCUMENTS = st.dictionaries(st.text().filter(lambda key: key not in SEAL), VALUES, max_size=5)
KINDS = [MODEL, RANKER, MATRIX, RECIPE]
PATH = Path("folder/config.json")


@given(DOCUMENTS, st.sampled_from(KINDS))
def test_sealed_documents_are_read_back(document: dict[str, Any], kind: DocumentKind) -> None:
    data = seal(document, kind)
    assert unseal(data, PATH, kind) == document
    assert seal(unseal(data, PATH, kind), kind) == data
    assert seal(dict(reversed(document.items())), kind) == data
    assert unseal(data.replace(b"\n", b"\r\n"), PATH, kind) == document


@pytest.mark.deep
@given(DOCUMENTS, st.sampled_from(KINDS), st.data())
def test_any_changed_byte_is_refused(document: dict[str, Any], kind: DocumentKind, draw: st.DataObject) -> None:
    data = seal(document, kind)
    at, new = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 255))
    for damaged in (data[:at], data[:at] + data[at + 1 :], data[: at + 1] + data[at:], data + b"\n"):
        # another digit may look like a newer format, which is refused, too
        with pytest.raises(
            ArtifactError, match=r"folder/config\.json( is damaged|: written by .* this version reads format 1)"
        ):
            unseal(damaged, PATH, kind)
    if new != data[at]:
        with pytest.raises(ArtifactError, match=r"folder/config\.json"):
            unseal(data[:at] + bytes([new]) + data[at + 1 :], PATH, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_refused(kind: DocumentKind) -> None:
    data = seal({"é": [1.5, None, {"a": "\n "}], "n": -3}, kind)
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises(ArtifactError, match=r"folder/config\.json"):
                unseal(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], PATH, kind)


def test_numeric_keys_become_texts() -> None:
    assert unseal(seal({"n": {2: "b", 10: "a"}}, MODEL), PATH, MODEL) == {"n": {"2": "b", "10": "a"}}


@pytest.mark.parametrize("document", [{"a": float("nan")}, {"a": [float("inf")]}, {"checksum": "x"}, {"format": 1}])
def test_values_that_a_document_cannot_hold(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not JSON compliant|is a reserved key of the seal"):
        seal(document, MODEL)


def test_a_newer_format_is_named_with_both_versions() -> None:
    newer = {**json.loads(seal({"a": 1}, MODEL)), "format": 2, "written_by": "9.1"}
    for said in (newer, {**newer, "checksum": checksum(newer)}):
        with pytest.raises(
            ArtifactError, match=r"json: written by polyrank 9\.1 in format 2, this version reads format 1"
        ):
            unseal(json.dumps(said).encode(), PATH, MODEL)
    with pytest.raises(ArtifactError, match=r"^x: in format 3, this version reads format 2; upgrade polyrank$"):
        check_format("x", {"format": 3}, 2, "make it again")
    with pytest.raises(ArtifactError, match=r"^x: in format 1, this version reads format 2; make it again$"):
        check_format("x", {}, 2, "make it again")
    check_format("x", {}, 1, "")
    for version in (True, "1", 1.0, None):
        with pytest.raises(ValueError, match="is not an integer"):
            check_format("x", {"format": version}, 1, "")


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b"null", b"{}", b"\xff", b"[" * 100_000, b'{"format": "1"}'])
def test_other_files_are_refused_with_the_remedy(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"folder/config\.json is damaged \(.*\); restore the model folder"):
        unseal(data, PATH, MODEL)


def test_missing_fields_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        assert not has_document(folder, MODEL)
        with pytest.raises(ArtifactError, match=r"is not a model folder: it has no config\.json; give a folder"):
            read_document(folder, MODEL)
        with pytest.raises(ArtifactError, match=r"is not a folder of kind 'ranker': .* no ranker\.json; make one with"):
            read_document(folder, RANKER)
    (tmp_path / MODEL.file).write_bytes(seal({"a": 1}, MODEL))
    assert has_document(tmp_path, MODEL)
    document = read_document(tmp_path, MODEL)
    assert document == {"a": 1}
    with pytest.raises(ArtifactError, match=r"config\.json has no 'b': another version wrote it; restore the model"):
        document["b"]
    assert copy.deepcopy(document) == pickle.loads(pickle.dumps(document)) == {"a": 1}


def test_a_ranker_of_another_form_is_refused_with_the_command(tmp_path: Path) -> None:
    as_ranker(polyrank.load("shipped:convert")).save(tmp_path / "ranker")
    document = read_document(tmp_path / "ranker", RANKER)
    for removed in document.keys() - {"fingerprint"}:  # computed again
        other = {key: value for key, value in document.items() if key != removed}
        (tmp_path / "ranker" / RANKER.file).write_bytes(seal(other, RANKER))
        with pytest.raises(ArtifactError, match=f"has no '{removed}'.*make it again with polyrank tune"):
            load_ranker(tmp_path / "ranker", polyrank.load)


def test_parts_are_checked(tmp_path: Path) -> None:
    part = tmp_path / "part"
    with pytest.raises(ArtifactError, match="part is missing; restore the model folder"):
        check_part(part, "", MODEL)
    part.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert check_part(part, digest, MODEL) == part
    for other in ("", None, digest[:-1]):
        with pytest.raises(ArtifactError, match=r"part is damaged: its SHA-256 does not match config\.json; restore"):
            check_part(part, other, MODEL)


def test_the_canonical_forms_do_not_change() -> None:
    values = {"b": [1, 2.5, "é"], "a": None, "checksum": "x"}
    assert checksum(values) == "d4e7b7ea1f785bcaf2af5af23dddc104ef2f2921a290da2912e3b2637f45da59"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.file)
def test_a_missing_key_at_any_depth_names_the_remedy(kind: DocumentKind) -> None:
    document = unseal(seal({"one": {"two": [{"three": 3}, {"four": 4}]}}, kind), PATH, kind)
    inner = document["one"]
    for values in (document, inner, *inner["two"]):
        with pytest.raises(ArtifactError) as refused:
            values["absent"]
        assert str(refused.value) == f"{PATH} has no 'absent': another version wrote it; {kind.remedy}"


def test_a_folder_has_all_its_parts_or_is_not_replaced(tmp_path: Path) -> None:
    kind = DocumentKind(name="folder of numbers", file="n.json", remedy="count again", parts=("a", "b", "c"))
    for version in (b"old", b"new"):
        with new_parts(tmp_path / "n", kind) as (document, streams):
            document["version"] = version.decode()
            for name, stream in zip(kind.parts, streams, strict=True):
                stream.write(version + name.encode())
    with pytest.raises(KeyError), new_parts(tmp_path / "n", kind):
        raise KeyError
    document, parts = read_parts(tmp_path / "n", kind)
    assert (document["version"], [part.read_bytes() for part in parts]) == ("new", [b"newa", b"newb", b"newc"])
    assert {entry.name for entry in (tmp_path / "n").iterdir()} == {*kind.parts, kind.file}
    for part in parts:
        whole = part.read_bytes()
        part.write_bytes(whole[:-1])
        with pytest.raises(ArtifactError, match=f"{part.name} is damaged.*count again"):
            read_parts(tmp_path / "n", kind)
        part.write_bytes(whole)


def test_a_folder_that_can_be_written_again_is_written_if_it_is_missing_or_damaged(tmp_path: Path) -> None:
    """Only damage is reported: a folder without the document may be a cache's, or one that a killed process left."""
    kind, said, n_written = DocumentKind(name="cache", file="n.json", remedy="count again"), list[str](), 0

    def write() -> None:
        nonlocal n_written
        n_written += 1
        (tmp_path / "n").mkdir(exist_ok=True)
        (tmp_path / "n" / kind.file).write_bytes(seal({"n": n_written}, kind))

    def opened() -> dict[str, Any]:
        return open_or_write(tmp_path / "n", kind, lambda folder: read_document(folder, kind), write, said.append)

    assert opened() == opened() == {"n": 1}
    (tmp_path / "n" / kind.file).unlink()
    assert opened() == opened() == {"n": 2}
    assert said == []
    (tmp_path / "n" / kind.file).write_bytes(b"{")
    assert opened() == opened() == {"n": 3}
    (message,) = said
    assert message.startswith(f"{tmp_path / 'n' / kind.file} is damaged")
    assert message.endswith("; count again; polyrank writes it again")
