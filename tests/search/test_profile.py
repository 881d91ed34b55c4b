"""The machine's profile: measured and cached; it never prevents an answer."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyrank.devices.choice import cpu_has_bf16
from polyrank.index.protocol import Block
from polyrank.search import kernels, search
from polyrank.search.best import Best
from polyrank.search.kernels import FORMS, package
from polyrank.search.profile import (
    PROFILES,
    SHIPPED,
    Profile,
    _load,
    load_profile,
    profile_folder,
    profile_key,
    save_profile,
    shipped_profile,
)
from polyrank.search.query import Machine
from polyrank.search.subspace import find_subspace
from polyrank.search.ways import Policy
from polyrank.storage.document import seal

OTHER = Profile(plain=(1.0, 2.0), apart=3.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("polyrank.search.profile.cpu_has_bf16", lambda: False)
    shipped_profile.cache_clear()  # an earlier test may have cached a machine with bf16
    yield tmp_path / "polyrank"
    shipped_profile.cache_clear()
    _load.cache_clear()


def test_a_profile_belongs_to_a_machine_and_number_of_threads(folder: Path) -> None:
    assert load_profile() == shipped_profile()
    path = save_profile(OTHER)
    assert path == folder / "profile.json"
    assert load_profile() == OTHER
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(n_threads + 1)
        assert load_profile() == shipped_profile()
        save_profile(replace(OTHER, exp=7.0))
        assert load_profile().exp == 7.0
    finally:
        torch.set_num_threads(n_threads)
    assert load_profile() == OTHER


def test_the_shipped_profile_depends_on_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for name, shipped in SHIPPED.items():
        monkeypatch.setenv("POLYRANK_INSTRUCTIONS", name)
        monkeypatch.setattr("polyrank.search.kernels.best_form", lambda name=name: FORMS.index(name) + 1)
        shipped_profile.cache_clear()
        assert load_profile() == shipped
        assert shipped.plain_tiles[1] > shipped.int8_tiles[1] > shipped.compiled_exp
        assert min(min(value) if isinstance(value, tuple) else value for value in asdict(shipped).values()) > 0.0
        keys.add(profile_key())
    assert len(keys) == len(SHIPPED)
    for name in ("amx", ""):
        monkeypatch.setattr("polyrank.search.kernels.best_form", lambda name=name: FORMS.index(name) + 1 if name else 0)
        shipped_profile.cache_clear()
        assert shipped_profile() == Profile()


def test_amx_is_of_the_compiled_loops_and_the_processor() -> None:
    assert not Machine(compiled=False, bf16=True).amx
    assert Machine(compiled=True, bf16=True).amx == kernels.has_amx()


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_relative_cache_folder_is_ignored(home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile_folder() == tmp_path / ".cache" / "polyrank"


def sealed(values: object) -> bytes:
    return seal({"profiles": {profile_key(): values}}, PROFILES)


def test_a_damaged_or_foreign_profile_is_ignored_and_can_be_replaced(folder: Path, tmp_path: Path) -> None:
    whole = save_profile(OTHER).read_bytes()
    good = asdict(OTHER)
    cases = [
        whole[:-9],
        whole.replace(b"3.0", b"4.0"),
        b"",
        b"[]",
        b"\xff",
        seal({"profiles": []}, PROFILES),
        seal({"something": 1}, PROFILES),
        sealed(None),
        sealed([1.0]),
        sealed({**good, "exp": 0.0}),
        sealed({**good, "exp": -1.0}),
        sealed({**good, "exp": "fast"}),
        sealed({**good, "plain": [1.0]}),
        sealed({**good, "later": 1.0}),
        json.dumps({"format": 99, "profiles": {}}).encode(),
    ]
    for number, data in enumerate(cases):
        at = tmp_path / str(number) / "polyrank"
        at.mkdir(parents=True)
        (at / "profile.json").write_bytes(data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(at.parent))
            assert load_profile() == shipped_profile(), data
            save_profile(OTHER)
            assert load_profile() == OTHER
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XDG_CACHE_HOME")
        patch.setattr(Path, "home", lambda: exec("raise RuntimeError"))  # of a user without a home directory
        assert load_profile() == shipped_profile()
    (tmp_path / "unreadable" / "polyrank" / "profile.json").mkdir(parents=True)  # reading a folder fails
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "unreadable"))
        assert load_profile() == shipped_profile()
    folder.rename(tmp_path / "away")
    folder.write_text("a file where the folder should be")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("XDG_CACHE_HOME", "")
        assert load_profile() == shipped_profile()


def test_the_profile_determines_the_way_but_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pool = Block(rng.standard_normal((9000, 64), np.float32), np.arange(9000))
    context = rng.standard_normal((1, 24, 64), np.float32) / 20 + rng.standard_normal((1, 1, 64), np.float32)
    profiles = [
        Profile(),
        Profile(plain=(1e-4, 1e-4), exp=1e-4, compiled_exp=1e-4, plain_tiles=(1e-4, 1e-4)),
        Profile(plain=(1e6, 1e6), apart=1e-4, bf16=(1e-4, 1e-4), bf16_tiles=(1e-4, 1e-4)),
        Profile(plain=(1e6, 1e6), apart=1e-4, int8=(1e-4, 1e-4), exp=1e6, subspace=(1e-4, 1e-4)),
    ]
    machine = Machine(compiled=False, bf16=True)
    with torch.inference_mode():
        chosen = {Policy(machine, profile).choose(Best(context[0], 5), [pool]).way.name for profile in profiles}
    assert {"plain", "bf16"} <= chosen
    answers = []
    for profile in profiles:
        monkeypatch.setattr("polyrank.search.load_profile", lambda profile=profile: profile)
        [result] = search(context, np.ones((1, 24), bool), [pool], 5)
        answers.append((result.rows.tolist(), result.scores.tolist()))
    assert answers[1:] == answers[:1] * 3


def test_the_measured_profile_is_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrank.bench import profile as bench

    for name, value in (("N", 256), ("CHUNK", 128), ("APART", 4)):
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr("polyrank.search.blocks.REPEATS", 1)
    with monkeypatch.context() as patch:
        patch.setattr("polyrank.search.kernels.best_form", lambda: FORMS.index("avx2") + 1)
        shipped = shipped_profile()  # stays cached
    said: list[str] = []
    table = bench.bench_profile(progress=said.append)
    assert said[0] == "products in fp32, exponentials, columns"
    assert Path(table["path"]).is_file()
    found = load_profile()
    rows = iter(table["rows"])
    for name, values in asdict(found).items():
        for number, value in enumerate(values if isinstance(values, tuple) else [values]):
            before = getattr(shipped, name)
            row = {"shipped": before[number] if isinstance(before, tuple) else before, "measured": value}
            what = f"{name}, each" if number else name
            assert next(rows) == {"what": what, **{key: round(cost, 4) for key, cost in row.items()}}
            assert round(value, 4) > 0.0
    assert not list(rows)
    for name in ("plain", "exp", "fine", "apart", "subspace"):
        assert getattr(found, name) != getattr(Profile(), name)


def test_costs_are_milliseconds_of_100_000_candidates() -> None:
    from polyrank.bench.profile import _unit

    assert _unit(0.5, 200_000) == 250.0
    assert _unit(0.002, 1000) == 200.0
    assert _unit(0.0, 1000) > 0.0


def test_each_cost_is_of_its_numbers_of_candidates_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock with which every measured call takes a second."""
    from polyrank.bench import profile as bench

    for name, value in (("N", 256), ("CHUNK", 128), ("APART", 4), ("MANY", 32)):
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr("polyrank.search.blocks.perf_counter", count().__next__)
    monkeypatch.setattr("polyrank.search.blocks.REPEATS", 1)
    forms: list[bool] = []  # of subspaces: searches by compiled loops use integers

    def noted(columns: torch.Tensor, *, int16: bool) -> Any:
        forms.append(int16)
        return find_subspace(columns, int16=int16)

    monkeypatch.setattr(bench, "find_subspace", noted)
    found, ms = bench.measure_profile(), 1e3 * 1e5
    assert {*forms} == {package() is not None}
    assert found.plain == (ms / 256, ms / 256 / 32)
    assert found.bf16 == (found.plain if cpu_has_bf16() else Profile().bf16)
    assert (found.exp, found.fine, found.apart) == (ms / 128 / 32, ms / 64 / 32, ms / 4)
    assert found.subspace == (1e3, 1e-4)  # sixteen columns take as long as all
    assert found.compiled_exp == (found.exp if package() is not None else Profile().compiled_exp)


def test_costs_of_products_are_those_of_all_candidates_and_of_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that counts multiplied pairs of a candidate and a column; test_kernels.py has the compiled loops."""
    from polyrank.bench import profile as bench

    now, multiply = [0], torch.mm

    def counted(rows: torch.Tensor, columns: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        now[0] += len(rows) * columns.shape[1]
        return multiply(rows, columns, out=out)

    for name, value in (("N", 256), ("CHUNK", 128), ("APART", 4), ("MANY", 32), ("D", 64)):
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr("torch.mm", counted)
    monkeypatch.setattr("polyrank.search.blocks.perf_counter", lambda: now[0])
    monkeypatch.setattr("polyrank.search.blocks.REPEATS", 1)
    found, ms = bench.measure_profile(), 1e3 * 1e5
    assert found.plain == (bench.FEW * ms, ms)  # the minimum is that of few columns
    assert found.bf16 == (found.plain if cpu_has_bf16() else Profile().bf16)
