"""Model folders: bit-equal after a round trip, refused if damaged, never half written."""

import dataclasses
import hashlib
import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save as save_tensors

import convert_models
from polyrank.answering.build import build_index
from polyrank.answering.replies import Replies
from polyrank.config.checked import (
    Count,
    Fraction,
    Limits,
    NonNegativeFloat,
    Positive,
    Settings,
    from_dict,
    parse_value,
    read_choice,
)
from polyrank.config.models import MODEL, BiConfig, ConvertText, CrossConfig, LateConfig, PolyConfig, TextPolicy
from polyrank.errors import ArtifactError, ConfigError, MissingExtraError, OfflineError, UsageError
from polyrank.index import open_index
from polyrank.index.local import store
from polyrank.loading.backbones import resolve_backbone
from polyrank.loading.folders import INDEX_FILE, RANKER
from polyrank.loading.models import (
    absolute_name,
    model_exists,
    model_folder,
    portable_name,
    resolved_name,
)
from polyrank.models import new_model
from polyrank.models.artifacts import dtype_name, load_model, read_config, read_sizes, save_model, sizes_of
from polyrank.models.published import read_published
from polyrank.models.start import start_model
from polyrank.records import Candidate, Context
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import make_scorer
from polyrank.scorers.open import load
from polyrank.storage.document import seal, tensors_kind
from polyrank.storage.tensors import read_tensors, write_tensors
from polyrank.text import BackboneTexts, ConvertTexts, Texts, read_subwords

CONFIGS: list[Any] = [
    BiConfig(),
    BiConfig(shared_towers=True, projection_dim=4),
    PolyConfig(n_codes=3),
    CrossConfig(head="mlp"),
]
CONTEXTS, REPLIES = [Context(("hi", "my wifi is down"))], ["restart it", "thanks"]


def save(backbone: Path, config: Any, path: Path, seed: int = 1) -> tuple[Any, str]:
    config = dataclasses.replace(config, backbone=str(backbone))
    policy = TextPolicy(max_context_tokens=30, max_candidate_tokens=10, new_tokens=("[EOT]",), turn_separator="[EOT]")
    model, texts, resolved = new_model(config, policy, seed=seed, sample=REPLIES)
    fingerprint = save_model(path, model, texts, resolved, metadata={"note": "a test"})
    return make_scorer(model, texts, device="cpu", precision="fp32"), fingerprint


@pytest.mark.parametrize("config", CONFIGS)
def test_saved_and_loaded_scores_are_bit_equal(tiny_backbone: Path, tmp_path: Path, config: Any) -> None:
    before, fingerprint = save(tiny_backbone, config, tmp_path / "m")
    after = load(tmp_path / "m", device="cpu", precision="fp32")
    assert after.fingerprint == fingerprint
    assert np.array_equal(before.score(CONTEXTS, [REPLIES])[0], after.score(CONTEXTS, [REPLIES])[0])
    assert load_model(tmp_path / "m").metadata == {"note": "a test"}


@pytest.fixture
def encoder_and_late(tiny_backbone: Path, tmp_path: Path) -> tuple[Path, Any, Any, Any]:
    """The folder of an encoder, and a late Cross-encoder that begins with its layers."""
    save(tiny_backbone, BiConfig(shared_towers=True), tmp_path / "encoder", seed=3)
    config = LateConfig(backbone=str(tiny_backbone), joined_layers=1)
    policy = TextPolicy(max_context_tokens=30, max_candidate_tokens=10, new_tokens=("[EOT]",))
    late, texts, config = start_model(config, policy, seed=5, sample=REPLIES, start=tmp_path / "encoder")
    with torch.no_grad():
        for parameter in late.parameters():
            parameter += 0.01 * parameter.requires_grad  # trained
    return tmp_path / "encoder", late, texts, config


def test_weights_of_a_base_are_left_out_and_scores_stay_bit_equal(
    encoder_and_late: tuple[Path, Any, Any, Any], tiny_backbone: Path, tmp_path: Path
) -> None:
    base, late, texts, config = encoder_and_late
    trained = {name for name, parameter in late.named_parameters() if parameter.requires_grad}
    save_model(tmp_path / "whole", late, texts, config)
    fingerprint = save_model(tmp_path / "part", late, texts, config, base=str(base))
    with safe_open(tmp_path / "part" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == trained
    whole, part = (load(tmp_path / name, device="cpu", precision="fp32") for name in ("whole", "part"))
    assert part.fingerprint == fingerprint != whole.fingerprint
    assert np.array_equal(whole.score(CONTEXTS, [REPLIES])[0], part.score(CONTEXTS, [REPLIES])[0])
    save(tiny_backbone, BiConfig(shared_towers=True, output_scale=2.0), tmp_path / "louder", seed=3)  # the same weights
    assert save_model(tmp_path / "part of louder", late, texts, config, base=str(tmp_path / "louder")) != fingerprint
    shutil.copytree(tmp_path / "part", tmp_path / "other" / "part")  # the base is found from the folder
    with pytest.raises(ArtifactError, match=r"holds only what differs from .*encoder, which is missing; install both"):
        load(tmp_path / "other" / "part")
    shutil.copytree(base, tmp_path / "other" / "encoder")
    assert load(tmp_path / "other" / "part").fingerprint == fingerprint


def test_weights_that_differ_from_those_of_a_base_in_one_bit_are_stored(
    encoder_and_late: tuple[Path, Any, Any, Any], tmp_path: Path
) -> None:
    base, late, texts, config = encoder_and_late
    frozen = {name: parameter for name, parameter in late.named_parameters() if not parameter.requires_grad}
    names = [name for name in frozen if name.endswith(("word_embeddings.weight", "key.weight", "LayerNorm.bias"))]
    with torch.no_grad():
        for name in names:
            row = frozen[name].view(-1)[-1:]
            row.copy_(torch.nextafter(row, row + 1))
    save_model(tmp_path / "part", late, texts, config, base=str(base))
    with safe_open(tmp_path / "part" / "model.safetensors", "pt") as file:
        assert {name for name in file.keys() if name in frozen} == {*names}  # noqa: SIM118  # no dict
    stored = load_model(tmp_path / "part").model.stored()
    for name, tensor in late.stored().items():
        assert torch.equal(stored[name], tensor), name


def test_a_base_that_has_changed_is_refused(
    encoder_and_late: tuple[Path, Any, Any, Any], tiny_backbone: Path, tmp_path: Path
) -> None:
    base, late, texts, config = encoder_and_late
    save_model(tmp_path / "part", late, texts, config, base=str(base))
    shutil.rmtree(base)
    save(tiny_backbone, BiConfig(shared_towers=True), base, seed=4)
    with pytest.raises(ArtifactError, match="which has changed since; install both again, from the same version"):
        load(tmp_path / "part")


def test_different_weights_have_different_fingerprints(tiny_backbone: Path, tmp_path: Path) -> None:
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
    with pytest.raises(ArtifactError, match=r"written by polyrank 9\.0 in format 99, this version reads format 1"):
        load_model(tmp_path / "m")
    assert path.read_bytes() == before


def test_an_existing_folder_is_not_replaced_by_default(tiny_backbone: Path, tmp_path: Path) -> None:
    save(tiny_backbone, BiConfig(), tmp_path / "m")
    with pytest.raises(UsageError, match="already exists"):
        save(tiny_backbone, BiConfig(), tmp_path / "m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    (tmp_path / "config.json").write_text("{}", "utf-8")
    (tmp_path / "2_Dense").mkdir()
    for part in (None, "2_Dense/model.safetensors", "safetensors"):  # weights of another module, or of none
        if part:
            (tmp_path / part).write_bytes(b"")
        with pytest.raises(ArtifactError, match="is a pickle, which can run code"):
            resolve_backbone(str(tmp_path))
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ArtifactError, match=r"has no \.safetensors weights"):
        resolve_backbone(str(tmp_path))


def test_a_hub_name_without_network_fails_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    with pytest.raises(OfflineError, match="give a local model folder"):
        resolve_backbone("no-such-owner/no-such-model")
    assert time.monotonic() - started < 5


def test_the_embedded_backbone_is_found_and_known() -> None:
    try:
        resolve_backbone("embedded")
    except MissingExtraError:
        pytest.skip("the embedded extra is not installed")
    found = read_published("embedded")
    assert (found.reduction(), list(found.kept_layers(BiConfig())), found.prompts) == ("mean", [], ("", ""))


def test_sizes_need_a_sound_file(tmp_path: Path) -> None:
    for number, damaged in enumerate((lambda d: d[:1000], lambda d: d[:5] + b"\xff" + d[6:], lambda d: d[:-1] + b"x")):
        folder = shutil.copytree(model_folder("shipped:convert"), tmp_path / str(number))
        place = folder / "model.safetensors"
        place.chmod(0o644)
        place.write_bytes(damaged(place.read_bytes()))
        with pytest.raises(ArtifactError, match="does not match config"):
            read_sizes(folder)


# fingerprints

PRINTED_POLICY = TextPolicy(max_context_tokens=30, max_candidate_tokens=10)


@pytest.fixture(scope="module")
def poly(tiny_backbone: Path) -> tuple[Any, Texts, Any]:
    """A Poly-encoder with one tower, so that it has few tensors."""
    config = PolyConfig(backbone=str(tiny_backbone), n_codes=3, shared_towers=True, projection_dim=4)
    return new_model(config, PRINTED_POLICY, seed=1, sample=REPLIES)  # type: ignore[return-value]


def test_any_changed_weight_changes_the_fingerprint(poly: tuple[Any, Texts, Any], tmp_path: Path) -> None:
    model, texts, config = poly
    generator = np.random.default_rng(0)
    prints = {save_model(tmp_path / "m", model, texts, config)}
    tensors = dict(model.state_dict())
    own = {name for name in tensors if not name.startswith("candidate_tower.")}
    assert len(own) > 30
    for name in sorted(own):
        flat = tensors[name].view(-1)
        place = int(generator.integers(len(flat)))
        was = flat[place].item()
        flat[place] = was + 1 if not flat.is_floating_point() else float(np.nextafter(np.float32(was), np.float32(9)))
        prints.add(save_model(tmp_path / "m", model, texts, config, replace=True))
        flat[place] = was
    assert len(prints) == 1 + len(own)
    assert save_model(tmp_path / "m", model, texts, config, replace=True) in prints


def test_any_changed_setting_changes_the_fingerprint(poly: tuple[Any, Texts, Any], tmp_path: Path) -> None:
    """Settings of the text policy and of the model, including the reduction, and the vocabulary."""
    model, texts, config = poly
    policies = {
        "max_context_tokens": 31, "max_candidate_tokens": 11, "max_background_tokens": 7, "turn_separator": "[EOT]",
        "new_tokens": ("[EOT]",), "speaker_prefixes": ("a: ",), "background": "after", "close_last_turn": True,
        "share_pair_budget": False, "start_candidate_of_pair": True, "max_earlier_turns": 3,
        "context_prefix": "q: ", "candidate_prefix": "p: ", "slots": True,
    }  # fmt: skip
    settings = {
        "reduction": "sqrt_n", "reduction_tokens": 9, "shared_towers": False, "projection_dim": 5, "output_scale": 3.0,
        "match_output_std": 0.7, "match_self_score": 2.0, "codes": "last", "n_codes": 4, "code_init": "normal",
        "equal_projections": False, "normalize": True,
    }  # fmt: skip
    assert set(policies) == {field.name for field in dataclasses.fields(TextPolicy)}
    assert set(settings) == {field.name for field in dataclasses.fields(PolyConfig)} - {"backbone"}

    def fingerprint(policy: TextPolicy, changed: Any, vocabulary: bytes = texts.subwords.to_bytes()) -> str:
        words = BackboneTexts(read_subwords(vocabulary, "here"), policy, texts.max_positions)
        return save_model(tmp_path / "m", model, words, changed, replace=True)

    prints = [fingerprint(texts.policy, config)]
    prints += [fingerprint(dataclasses.replace(texts.policy, **{k: v}), config) for k, v in policies.items()]  # type: ignore[arg-type]
    prints += [fingerprint(texts.policy, dataclasses.replace(config, **{k: v})) for k, v in settings.items()]
    prints += [fingerprint(texts.policy, config, texts.subwords.to_bytes().replace(b'"wifi"', b'"wife"'))]
    swapped = texts.subwords.to_bytes().replace(b'"start": "[CLS]"', b'"start": "[MASK]"')
    prints += [fingerprint(texts.policy, config, swapped)]
    assert len(set(prints)) == len(prints) == 3 + len(policies) + len(settings)
    assert fingerprint(texts.policy, config) == prints[0]


def test_any_text_setting_of_a_convert_changes_its_fingerprint(tmp_path: Path) -> None:
    model, texts, config = convert_models.make()
    settings = {
        "max_context_tokens": 50, "max_candidate_tokens": 50, "max_earlier_tokens": 21, "max_earlier_turns": 3,
        "number_prefixes": True, "background": "after", "vocabulary": "a file", "min_count": 4,
        "vocabulary_size": 99, "n_buckets": 5, "count_repeats": True, "slots": True,
    }  # fmt: skip
    assert set(settings) == {field.name for field in dataclasses.fields(ConvertText)}
    prints = {save_model(tmp_path / "m", model, texts, config)}
    for name, value in settings.items():
        words = ConvertTexts(texts.subwords, dataclasses.replace(texts.policy, **{name: value}), texts.multi_context)
        prints.add(save_model(tmp_path / "m", model, words, config, replace=True))
    assert len(prints) == 1 + len(settings)


def test_settings_without_effect_on_vectors_keep_the_fingerprint(poly: tuple[Any, Texts, Any], tmp_path: Path) -> None:
    """Neither the folder's path nor the training's metadata; an index accepts the copy, but no other model."""
    model, texts, config = poly
    first = save_model(tmp_path / "m", model, texts, config, metadata={"seed": 1})
    assert save_model(tmp_path / "other", model, texts, config, metadata={"seed": 2}) == first
    shutil.copytree(tmp_path / "m", tmp_path / "far" / "away")
    moved = (tmp_path / "other").rename(tmp_path / "moved")
    changed = dataclasses.replace(texts.policy, max_context_tokens=29)
    words = BackboneTexts(texts.subwords, changed, texts.max_positions)
    save_model(tmp_path / "changed", model, words, config)

    def opened(path: Path) -> EncoderScorer:
        found = load(path, device="cpu", precision="fp32")
        assert isinstance(found, EncoderScorer)
        return found

    build_index(tmp_path / "i", opened(tmp_path / "m"), [Candidate("a", "hello")], name="m")
    for path in (tmp_path / "far" / "away", moved):
        assert opened(path).fingerprint == first
        assert Replies(opened(path), open_index(tmp_path / "i")).respond([Context(("hi",))], 1)[0][0].id == "a"
    with pytest.raises(ArtifactError, match="was made by encoder"):
        Replies(opened(tmp_path / "changed"), open_index(tmp_path / "i"))


def test_a_fingerprint_does_not_depend_on_the_librarys_version(poly: tuple[Any, Texts, Any], tmp_path: Path) -> None:
    model, texts, config = poly
    first = save_model(tmp_path / "m", model, texts, config)
    shape = read_config(tmp_path / "m")["backbone"]
    assert not {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures"} & set(shape)
    assert shape["hidden_size"] == 32
    again = load_model(tmp_path / "m")
    assert save_model(tmp_path / "again", again.model, again.texts, again.config) == first


# sealed documents


def a_model(path: Path, poly: tuple[Any, Texts, Any]) -> tuple[Path, Callable[[], Any]]:
    save_model(path, *poly, metadata={"note": "a test"})
    return path / "config.json", lambda: read_config(path)


def tensors_of(kind: str) -> Callable[[Path, tuple[Any, Texts, Any]], tuple[Path, Callable[[], Any]]]:
    def make(path: Path, poly: tuple[Any, Texts, Any]) -> tuple[Path, Callable[[], Any]]:
        document = {"encoder": "somewhere", "encoder_fingerprint": "f" * 64, "metadata": {"n": 5}}
        write_tensors(path, tensors_kind(kind), document, {"matrix": torch.eye(3), "bias": torch.arange(2)})
        return path / f"{kind}.json", lambda: read_tensors(path, tensors_kind(kind))[0]

    return make


@pytest.mark.deep
@pytest.mark.parametrize("make", [a_model, tensors_of("ranker"), tensors_of("intent")])
def test_a_flipped_bit_of_any_byte_of_a_document_is_refused(
    poly: tuple[Any, Texts, Any], tmp_path: Path, make: Any
) -> None:
    """Unless the document is the same: a number's exponent may be written e or E."""
    place, read = make(tmp_path / "m", poly)
    whole, want = place.read_bytes(), read()
    n_same = 0
    for at, byte in enumerate(whole):
        place.write_bytes(whole[:at] + bytes([byte ^ (1 << (at + at // 8) % 8)]) + whole[at + 1 :])
        try:
            same = read() == want
        except ArtifactError:
            continue
        assert same, f"byte {at} of {place.name}"
        assert byte in b"eE"
        n_same += 1
    assert n_same <= whole.count(b"e-") + whole.count(b"E-")
    place.write_bytes(whole)
    assert read() == want


def test_a_flipped_bit_in_the_description_of_an_index_is_refused(tmp_path: Path) -> None:
    from polyrank.index import write_index

    write_index(tmp_path / "i", [Candidate("a", "b")], np.ones((1, 2), np.float32), fingerprint="f" * 64, model="m")
    connection = sqlite3.connect(tmp_path / "i" / INDEX_FILE, isolation_level=None)
    values = dict(connection.execute("SELECT key, value FROM meta"))
    assert {"fingerprint", "dimension", "n", "digest", "precision", "checksum"} <= set(values)
    for key, value in values.items():
        for at, letter in enumerate(value):
            changed = value[:at] + chr(ord(letter) ^ (1 << at % 7)) + value[at + 1 :]
            connection.execute("UPDATE meta SET value = ? WHERE key = ?", (changed, key))
            with pytest.raises(ArtifactError):
                store.read_meta(connection, tmp_path / "i")
        connection.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
    for key in values:
        connection.execute("DELETE FROM meta WHERE key = ?", (key,))
        with pytest.raises(ArtifactError):
            store.read_meta(connection, tmp_path / "i")
        connection.execute("INSERT INTO meta VALUES (?, ?)", (key, values[key]))
    assert store.read_meta(connection, tmp_path / "i").n == 1
    connection.execute("INSERT INTO meta VALUES ('more', 'x')")
    with pytest.raises(ArtifactError):
        store.read_meta(connection, tmp_path / "i")
    connection.close()


def sealed(document: dict[str, Any]) -> bytes:
    """The document with its correct checksum: the SHA-256 of its JSON without spaces and with sorted keys."""
    rest = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    whole = {**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(whole, indent=2, sort_keys=True).encode()


def test_a_model_with_unknown_settings_is_refused(poly: tuple[Any, Texts, Any], tmp_path: Path) -> None:
    place, _ = a_model(tmp_path / "m", poly)
    document = json.loads(place.read_bytes())
    place.write_bytes(sealed(document))
    assert load_model(tmp_path / "m").metadata == {"note": "a test"}
    for changed in ({"model": {"kind": "bi", "n_codes": 3}}, {"model": {"kind": "odd"}}, {"text": {"turns": 1}}):
        place.write_bytes(sealed({**document, **changed}))
        with pytest.raises(ArtifactError, match=r"config\.json: "):
            load_model(tmp_path / "m")
    for version, error in ((2, "in format 2, this version reads format 1; upgrade"), (1, None)):
        place.write_bytes(sealed({**document, "format": version}))
        if error:
            with pytest.raises(ArtifactError, match=error):
                load_model(tmp_path / "m")
    load_model(tmp_path / "m")
    for data in (b"[]", b'"format"', b"{}", b'{"format": 1}'):
        place.write_bytes(data)
        with pytest.raises(ArtifactError, match="is damaged"):
            load_model(tmp_path / "m")
    with pytest.raises(ArtifactError, match="model folder: it has no"):
        load_model(place)
    with pytest.raises(ArtifactError, match="is not a model folder"):
        load_model(tmp_path)


def test_tensors_are_read_back_unchanged(tmp_path: Path) -> None:
    kind, other = tensors_kind("map"), tensors_kind("intent")
    tensors = {"matrix": torch.randn(3, 4).T, "bias": torch.arange(2), "parameter": torch.nn.Parameter(torch.ones(1))}
    write_tensors(tmp_path / "t", kind, {"name": "x"}, tensors)
    document, found = read_tensors(tmp_path / "t", kind)
    assert document["name"] == "x"
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], tensor) and not found[name].requires_grad for name, tensor in tensors.items())
    for absent, remedy in ((RANKER, "make one with polyrank tune"), (other, "check the path")):
        with pytest.raises(ArtifactError, match=rf"it has no {absent.file}; {remedy}$"):
            read_tensors(tmp_path / "t", absent)
    with pytest.raises(ArtifactError, match="not a folder of kind 'intent'"):
        read_tensors(tmp_path / "t", other)
    with pytest.raises(UsageError, match="already exists"):
        write_tensors(tmp_path / "t", kind, {}, tensors)
    write_tensors(tmp_path / "t", kind, {"name": "y"}, tensors, replace=True)
    assert read_tensors(tmp_path / "t", kind)[0]["name"] == "y"
    with pytest.raises(ValueError, match="JSON"):
        write_tensors(tmp_path / "nan", kind, {"value": math.nan}, tensors)
    assert not (tmp_path / "nan").exists()
    document = json.loads((tmp_path / "t" / "map.json").read_bytes())
    (tmp_path / "t" / "map.json").write_bytes(sealed({**document, "format": 2}))
    with pytest.raises(ArtifactError, match="in format 2, this version reads format 1"):
        read_tensors(tmp_path / "t", kind)
    (tmp_path / "t" / "map.json").write_bytes(sealed(document))
    data = (tmp_path / "t" / "map.safetensors").read_bytes()
    for at in range(0, len(data), 7):
        (tmp_path / "t" / "map.safetensors").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ArtifactError, match=r"map\.safetensors is damaged"):
            read_tensors(tmp_path / "t", kind)
    (tmp_path / "t" / "map.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"map\.safetensors is missing"):
        read_tensors(tmp_path / "t", kind)


# weights and sizes


def test_weights_of_another_shape_or_name_are_refused(poly: tuple[Any, Texts, Any], tmp_path: Path) -> None:
    model, texts, config = poly
    save_model(tmp_path / "m", model, texts, config)
    with safe_open(str(tmp_path / "m" / "model.safetensors"), framework="pt") as stream:
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118  # no dict: has no __iter__
    fresh = load_model(tmp_path / "m").model
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.restore(tensors)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, tensors[name.replace("candidate_tower.", "context_tower.")])
    name = sorted(tensors)[0]
    for wrong in ({**tensors, "more": torch.ones(1)}, {k: v for k, v in tensors.items() if k != name}):
        with pytest.raises(ArtifactError, match="the weights do not fit the configuration"):
            fresh.restore(wrong)
    with pytest.raises(ArtifactError, match=name):
        fresh.restore({k: v for k, v in tensors.items() if k != name})
    odd = {f"z{letter}": torch.ones(1) for letter in "fbdace"}
    with pytest.raises(ArtifactError, match="configuration: za, zb, zc on one side only"):
        fresh.restore({**tensors, **odd})


def test_sizes_equal_those_of_the_library(poly: tuple[Any, Texts, Any], tmp_path: Path) -> None:
    save_model(tmp_path / "poly", *poly)
    save_model(tmp_path / "convert", *convert_models.make())
    for path in (tmp_path / "poly", tmp_path / "convert"):
        parts: dict[str, list[torch.Tensor]] = {}
        with safe_open(str(path / "model.safetensors"), framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118  # no dict: has no __iter__
                parts.setdefault(name.partition(".")[0], []).append(stream.get_tensor(name))
        found = read_sizes(path)
        assert [part.name for part in found] == sorted(parts)
        for part in found:
            tensors = parts[part.name]
            assert part.n_parameters == sum(t.numel() for t in tensors)
            assert part.n_bytes == sum(t.numel() * t.element_size() for t in tensors)
            assert set(part.dtypes) == {dtype_name(t.dtype) for t in tensors}
            assert list(part.dtypes) == sorted(part.dtypes)


def test_parts_and_their_kinds_of_numbers_are_in_order(tmp_path: Path) -> None:
    kinds = [torch.float64, torch.bfloat16, torch.int32, torch.uint8, torch.float16, torch.bool]
    tensors = {f"net.{i}": torch.zeros(2, dtype=kind) for i, kind in enumerate(kinds)}
    weights = save_tensors(tensors)
    (tmp_path / "model.safetensors").write_bytes(weights)
    digest = hashlib.sha256(weights).hexdigest()
    (tmp_path / MODEL.file).write_bytes(seal({"files": {"model.safetensors": digest}}, MODEL))
    assert read_sizes(tmp_path)[0].dtypes == ("bf16", "bool", "fp16", "fp64", "int32", "uint8")
    groups = sizes_of({"b.x": torch.zeros(1), "a.y": torch.zeros(2), "b.z": torch.zeros(3, dtype=torch.int8)})
    assert [(group.name, group.n_parameters, group.n_bytes) for group in groups] == [("a", 2, 8), ("b", 4, 7)]


# names of models


def test_names_are_resolved_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "bi").mkdir(parents=True)
    (tmp_path / "work" / "map").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for prefix in ("", "untuned:"):
        assert absolute_name(f"{prefix}bi") == f"{prefix}{tmp_path / 'work' / 'bi'}"
        assert portable_name(f"{prefix}bi", Path("map")) == f"{prefix}../bi"
        assert resolved_name(f"{prefix}../bi", Path("map")) == f"{prefix}{tmp_path / 'work' / 'bi'}"
        for name in (f"{prefix}owner/model", f"{prefix}embedded"):
            assert portable_name(name, Path("map")) == resolved_name(name, Path("map")) == name
        # a folder created later under this name does not replace the Hub's model
        assert absolute_name(f"{prefix}owner/model") == f"{prefix}hf:owner/model"
        assert absolute_name(f"{prefix}embedded") == f"{prefix}embedded"
    for name in ("embedded", "bm25", "tfidf"):  # names that mean the same next to a folder of that name
        for folder in (Path(name), Path("map", name)):
            folder.mkdir()
        name = f"untuned:{name}" if name == "embedded" else name
        assert absolute_name(name) == portable_name(name, Path("map")) == resolved_name(name, Path("map")) == name
    assert absolute_name("embedded") == str(tmp_path / "work" / "embedded")
    (tmp_path / "work").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert resolved_name("../bi", tmp_path / "moved" / "map") == str(tmp_path / "moved" / "bi")
    # a name that starts with .. is not looked up in the working directory
    (tmp_path / "bi").mkdir()
    assert resolved_name("../gone", tmp_path / "moved" / "map") == str(tmp_path / "moved" / "gone")
    assert resolved_name("./gone", tmp_path / "moved" / "map") == str(tmp_path / "moved" / "map" / "gone")
    assert [model_exists(name) for name in ("bi", "untuned:gone", "gone", "shipped:convert")] == [
        True,
        True,
        False,
        True,
    ]
    with pytest.raises(UsageError, match="shipped:none does not ship with polyrank; use one of"):
        model_folder("shipped:none")


# settings from users


@dataclass(frozen=True, kw_only=True)
class Given(Settings):
    """A setting of each type."""

    n: Count = 1
    share: Fraction = 0.5
    rate: Positive = 0.1
    weight: NonNegativeFloat = 0.0
    plain: float = 1.0
    name: str = ""
    on: bool = False
    kind: Literal["a", "b", "none"] = "a"
    some: int | None = None
    ways: Literal["x", "y"] | None = None
    numbers: tuple[float, ...] = ()
    words: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("n", 1, 1), ("share", 0, 0.0), ("share", 1, 1.0), ("rate", 1e-300, 1e-300), ("weight", 0, 0.0),
        ("plain", 3, 3.0), ("plain", -3.5, -3.5), ("on", True, True), ("kind", None, "none"), ("kind", "b", "b"),
        ("some", None, None), ("some", 4, 4), ("ways", None, None), ("ways", "y", "y"),
        ("numbers", [1, 2.5], (1.0, 2.5)), ("words", ("a",), ("a",)),
        ("some", 2**63 - 1, 2**63 - 1), ("some", 1 - 2**63, 1 - 2**63),
    ],
)  # fmt: skip
def test_values_within_limits_are_accepted(key: str, value: object, found: object) -> None:
    taken = getattr(from_dict(Given, {key: value}), key)
    assert taken == found
    assert type(taken) is type(found)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("n", 0, "r.n = 0 must be at least 1"), ("n", 1.0, "r.n = 1.0 is float; it must be int"),
        ("n", True, "r.n = True is bool; it must be int"), ("share", 1.01, "r.share = 1.01 is outside 0 to 1"),
        ("share", -0.01, "r.share = -0.01 is outside 0 to 1"), ("rate", 0, "r.rate = 0.0 must be above 0"),
        ("weight", -1, "r.weight = -1.0 must be at least 0"), ("plain", math.nan, "r.plain = nan is not finite"),
        ("plain", math.inf, "r.plain = inf is not finite"), ("plain", True, "r.plain = True is bool; it must be float"),
        ("name", 3, "r.name = 3 is int; it must be str"), ("on", 1, "r.on = 1 is int; it must be bool"),
        ("kind", "c", "r.kind = 'c' is not one of 'a', 'b', 'none'"), ("ways", "z", "r.ways = 'z' is not one of"),
        ("words", "ab", "r.words = 'ab' is not a list"), ("words", [1], "r.words = 1 is int; it must be str"),
        ("some", 2**63, "r.some is a whole number of more than 64 bits"), ("some", "x", "it must be int"),
        ("some", -(2**63), "more than 64 bits"), ("nmae", 1, 'unknown key "r.nmae"; did you mean "r.name"?'),
        ("zzzzzz", 1, 'unknown key "r.zzzzzz"; known keys: kind, n, name'),
    ],
)  # fmt: skip
def test_values_outside_limits_are_named(key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Given, {key: value}, "r")
    assert said in str(caught.value)


def test_limits_hold_at_their_ends() -> None:
    limits = Limits(least=1, most=2)
    for value in (1, 1.5, 2):
        limits.check(value, "x")
    for value in (0.999, 2.001):
        with pytest.raises(ConfigError, match="is outside 1 to 2"):
            limits.check(value, "x")
    with pytest.raises(ConfigError, match="must be above 0"):
        Limits(above=0).check(0, "x")


def test_texts_become_values_as_toml_writes_them() -> None:
    texts = {
        "3": 3,
        "0.5": 0.5,
        "true": True,
        "[1, 2]": [1, 2],
        '"a b"': "a b",
        "a b": "a b",
        "none": None,
        "None": None,
    }
    assert {text: parse_value(text) for text in texts} == texts
    assert read_choice("also", Literal["also", "b"], "thing") == "also"
    with pytest.raises(UsageError, match="unknown thing 'z'; choose auto, a, b or c"):
        read_choice("z", Literal["a", "b", "c"], "thing", also="auto")


def test_a_required_setting_that_is_missing_is_named() -> None:
    needs = dataclasses.make_dataclass(
        "Needs", [("path", str), ("also", list, dataclasses.field(default_factory=list))]
    )
    assert from_dict(needs, {"path": "x"}).also == []  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r'missing key "data\.path"; add it'):
        from_dict(needs, {}, "data")


def test_half_precision_only_rounds_the_weights(tiny_backbone: Path, tmp_path: Path) -> None:
    model, texts, config = new_model(
        BiConfig(backbone=str(tiny_backbone), reduction="mean"), TextPolicy(max_context_tokens=24), seed=1, sample=()
    )
    save_model(tmp_path / "whole", model, texts, config)
    save_model(tmp_path / "half", model, texts, config, half=True)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    loaded = load_model(tmp_path / "half").model.state_dict()
    for name, value in load_model(tmp_path / "whole").model.state_dict().items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value.half().to(value.dtype))
