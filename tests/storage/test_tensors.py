"""Tensors as bytes, compared with the library of the format."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from polyrank.storage.tensors import from_bytes, read_file, read_header, to_bytes

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool)


@pytest.mark.parametrize("notes", [None, {"é": "\n"}])  # the library orders several by chance
def test_bytes_are_the_librarys(notes: dict[str, str] | None, tmp_path: Path) -> None:
    tensors = {f"layer.{n}.{kind}": (torch.randn(n, 3) * 9).to(kind) for n in range(3) for kind in TYPES}
    tensors |= {"one": torch.tensor(2.5), "column": torch.randn(4, 3).T, "part": torch.randn(5, 2)[1:3]}
    tensors["trained"] = torch.randn(2, requires_grad=True)
    data = to_bytes(tensors, notes)
    assert data == save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, notes)
    (tmp_path / "x.safetensors").write_bytes(data)
    of_file, stated = read_file(tmp_path / "x.safetensors")
    names, noted = read_header(tmp_path / "x.safetensors")
    assert (sorted(names), stated, noted) == (sorted(tensors), notes or {}, notes or {})
    for read in (load(data), from_bytes(data), of_file):
        assert read.keys() == tensors.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_a_file_that_cannot_be_read_is_refused_by_one_class_of_error(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"x" * 99)
    for name in ("damaged", "missing", "."):
        for read in (read_file, read_header):
            with pytest.raises(ValueError, match=r"."):
                read(tmp_path / name)


def test_tensors_that_share_memory_are_each_written() -> None:
    shared = torch.randn(3, 2)
    read = from_bytes(to_bytes({"a": shared, "b": shared, "row": shared[1]}))
    assert torch.equal(read["a"], read["b"])
    assert torch.equal(read["row"], shared[1])
