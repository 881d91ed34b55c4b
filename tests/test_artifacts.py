"""Model folders: bit-equal after a round trip, refused when damaged, never half written."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.names import model_folder
from polyrank.errors import ArtifactError, MissingExtraError, OfflineError, UsageError
from polyrank.models import find_backbone, new_model
from polyrank.models.artifacts import load_model, read_sizes, save_model
from polyrank.records import Context
from polyrank.scorers.load import load_scorer, make_scorer

CONFIGS: list[Any] = [
    BiConfig(),
    BiConfig(shared_towers=True, projection_dim=4),
    PolyConfig(n_codes=3),
    CrossConfig(head="mlp"),
]
CONTEXTS, REPLIES = [Context(("hi", "my wifi is down"))], ["restart it", "thanks"]


def save(backbone: Path, config: Any, path: Path, seed: int = 1) -> tuple[Any, str]:
    import dataclasses

    config = dataclasses.replace(config, backbone=str(backbone))
    policy = TextPolicy(max_context_tokens=30, max_candidate_tokens=10, new_tokens=("[EOT]",), turn_separator="[EOT]")
    model, texts, resolved = new_model(config, policy, seed=seed, sample=REPLIES)
    fingerprint = save_model(path, model, texts, resolved, metadata={"note": "a test"})
    return make_scorer(model, texts, device="cpu", precision="fp32"), fingerprint


@pytest.mark.parametrize("config", CONFIGS)
def test_saved_and_loaded_scores_are_bit_equal(tiny_backbone: Path, tmp_path: Path, config: Any) -> None:
    before, fingerprint = save(tiny_backbone, config, tmp_path / "m")
    after = load_scorer(tmp_path / "m", device="cpu", precision="fp32")
    assert after.fingerprint == fingerprint
    assert np.array_equal(before.score(CONTEXTS, [REPLIES])[0], after.score(CONTEXTS, [REPLIES])[0])
    assert load_model(tmp_path / "m").metadata == {"note": "a test"}


def test_fingerprints_tell_weights_apart(tiny_backbone: Path, tmp_path: Path) -> None:
    prints = {save(tiny_backbone, PolyConfig(n_codes=3), tmp_path / str(i), seed=i)[1] for i in (1, 2)}
    again = save(tiny_backbone, PolyConfig(n_codes=3), tmp_path / "again", seed=1)[1]
    assert len(prints) == 2
    assert again in prints


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_every_kind_of_damage_is_refused_by_name(tiny_backbone: Path, tmp_path: Path, name: str) -> None:
    save(tiny_backbone, PolyConfig(n_codes=3), tmp_path / "m")
    path = tmp_path / "m" / name
    whole = path.read_bytes()
    generator = np.random.Generator(np.random.PCG64(4))
    places = [0, len(whole) - 1, *generator.integers(len(whole), size=20).tolist()]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=name):
            load_model(tmp_path / "m")
    for data in (b"", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=name):
            load_model(tmp_path / "m")
    path.unlink()
    with pytest.raises(ArtifactError, match=name):
        load_model(tmp_path / "m")


def test_a_newer_format_is_refused_untouched(tiny_backbone: Path, tmp_path: Path) -> None:
    save(tiny_backbone, BiConfig(), tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    document = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**document, "format": 99, "written_by": "9.0"}), "utf-8")
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match=r"written by polyrank 9\.0 in format 99, this reads up to 1"):
        load_model(tmp_path / "m")
    assert path.read_bytes() == before


def test_an_existing_folder_is_not_replaced_unasked(tiny_backbone: Path, tmp_path: Path) -> None:
    save(tiny_backbone, BiConfig(), tmp_path / "m")
    with pytest.raises(UsageError, match="already exists"):
        save(tiny_backbone, BiConfig(), tmp_path / "m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    (tmp_path / "config.json").write_text("{}", "utf-8")
    with pytest.raises(ArtifactError, match=r"no \.safetensors"):
        find_backbone(str(tmp_path))


def test_a_hub_name_without_network_fails_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    with pytest.raises(OfflineError, match="give a local model folder"):
        find_backbone("no-such-owner/no-such-model")
    assert time.monotonic() - started < 5


def test_the_embedded_backbone_is_found_and_known() -> None:
    try:
        source = find_backbone("embedded")
    except MissingExtraError:
        pytest.skip("the embedded extra is not installed")
    assert source.mean_pooled


def test_sizes_are_of_a_sound_file_only(tmp_path: Path) -> None:
    for number, damaged in enumerate((lambda d: d[:1000], lambda d: d[:5] + b"\xff" + d[6:], lambda d: d[:-1] + b"x")):
        folder = shutil.copytree(model_folder("shipped:convert"), tmp_path / str(number))
        place = folder / "model.safetensors"
        place.chmod(0o644)
        place.write_bytes(damaged(place.read_bytes()))
        with pytest.raises(ArtifactError, match="does not match config"):
            read_sizes(folder)
