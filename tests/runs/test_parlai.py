"""Imported models of ParlAI: ids and scores equal those of ParlAI's own code.

tests/runs/parlai holds models with random weights, and ParlAI's results for them (runs/peers/released.py).
"""

import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyrank
from polyrank.errors import ArtifactError, UsageError
from polyrank.models.artifacts import load_model
from polyrank.records import Context

sys.path.insert(0, str(Path(__file__).parents[2] / "runs" / "papers"))

from from_parlai import import_parlai

SAVED = Path(__file__).parent / "parlai"
EXPECTED = json.loads((SAVED / "expected.json").read_text("utf-8"))
KINDS = ("bi", "poly", "cross")
CONTEXTS = [Context(tuple(turns)) for turns in EXPECTED["contexts"]]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    for kind in KINDS:
        assert import_parlai(SAVED / kind, folder / kind).kind == kind
    return folder


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a model with changed settings."""

    def change(kind: str, **settings: Any) -> Path:
        for path in SAVED.glob(f"{kind}*"):
            shutil.copy(path, tmp_path)
        file = tmp_path / f"{kind}.opt"
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | settings), "utf-8")
        return tmp_path / kind

    return change


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_parlais(imported: Path, kind: str) -> None:
    with torch.inference_mode():
        scores = polyrank.load(imported / kind).score(CONTEXTS, [EXPECTED["candidates"]] * len(CONTEXTS))
    np.testing.assert_allclose(np.array(scores), EXPECTED[kind]["scores"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_parlais(imported: Path, kind: str) -> None:
    texts, expected = load_model(imported / kind).texts, EXPECTED[kind]
    assert [texts.context_ids(context) for context in CONTEXTS] == expected["contexts"]
    assert [texts.candidate_ids(text) for text in EXPECTED["candidates"]] == expected["candidates"]


def test_a_pair_joins_both_texts_with_all_special_tokens(imported: Path) -> None:
    texts, expected = load_model(imported / "cross").texts, EXPECTED["cross"]
    for context, left in zip(CONTEXTS, expected["contexts"], strict=True):
        for text, right in zip(EXPECTED["candidates"], expected["candidates"], strict=True):
            assert texts.pair_ids(context, text) == ([*left, *right], [0] * len(left) + [1] * len(right))


def test_a_file_without_codes_can_start_a_training(changed: Callable[..., Path], tmp_path: Path) -> None:
    model = changed("poly")
    weights = torch.load(model, weights_only=True)["model"]
    del weights["codes"]
    torch.save({"model": weights}, model)
    first, second = (import_parlai(model, tmp_path / name) for name in ("one", "two"))
    assert first.random_codes
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(("size", "n_turns"), [(2, 2), (1, 1), (20, 4), (-1, 4), (0, 4), (None, 4)])
def test_the_history_has_the_size_of_the_settings(
    changed: Callable[..., Path], tmp_path: Path, size: int | None, n_turns: int
) -> None:
    import_parlai(changed("bi", history_size=size, text_truncate=60), tmp_path / "out")
    import_parlai(changed("bi", text_truncate=60), tmp_path / "whole")
    found, whole = (load_model(tmp_path / name).texts for name in ("out", "whole"))
    turns = CONTEXTS[1].turns
    assert len(turns) == 4
    assert found.context_ids(Context(turns)) == whole.context_ids(Context(turns[-n_turns:]))


def test_scaled_embeddings_without_segments_are_equivalent(changed: Callable[..., Path], tmp_path: Path) -> None:
    """Words divided by sqrt(D) that ParlAI multiplies by it, and the segment's vector within the positions."""
    model = changed("bi", embeddings_scale=True, n_segments=0)
    weights = torch.load(model, weights_only=True)["model"]
    for side in ("context_encoder", "cand_encoder"):
        weights[f"{side}.embeddings.weight"] = weights[f"{side}.embeddings.weight"] / 4  # D = 16
        weights[f"{side}.position_embeddings.weight"] += weights.pop(f"{side}.segment_embeddings.weight")[0]
    torch.save({"model": weights}, model)
    import_parlai(model, tmp_path / "out")
    scores = polyrank.load(tmp_path / "out").score(CONTEXTS, [EXPECTED["candidates"]] * len(CONTEXTS))
    np.testing.assert_allclose(np.array(scores), EXPECTED["bi"]["scores"], rtol=0, atol=1e-5)


def test_weights_in_sixteen_bits_are_read(changed: Callable[..., Path], tmp_path: Path) -> None:
    model = changed("bi")
    weights = {name: tensor.half() for name, tensor in torch.load(model, weights_only=True)["model"].items()}
    torch.save({"model": weights, "number_training_updates": 7}, model)
    import_parlai(model, tmp_path / "half")
    scores = polyrank.load(tmp_path / "half").score(CONTEXTS, [EXPECTED["candidates"]] * len(CONTEXTS))
    np.testing.assert_allclose(np.array(scores), EXPECTED["bi"]["scores"], rtol=0.02, atol=0.05)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("bi", {"variant": "aiayn"}, "has variant = 'aiayn'; polyrank imports only 'xlm'"),
        (
            "bi",
            {"reduction_type": "max"},
            "reduction_type = 'max' of a bi-encoder is unknown; polyrank imports first",
        ),
        (
            "poly",
            {"poly_attention_type": "multihead"},
            "has poly_attention_type = 'multihead'; polyrank imports only 'basic'",
        ),
        ("poly", {"polyencoder_type": "n_first"}, "has polyencoder_type = 'n_first'; polyrank imports only 'codes'"),
        ("poly", {"polyencoder_attention_keys": "position"}, "'position'; polyrank imports only 'context'"),
        ("bi", {"person_tokens": True}, "has person_tokens = True; polyrank imports only False"),
        ("bi", {"history_reversed": True}, "has history_reversed = True; polyrank imports only False"),
        ("bi", {"history_add_global_end_token": "end"}, "= 'end'; polyrank imports only None"),
        ("cross", {"n_layers": 3}, "cross has no tensor 'encoder.layers.2."),
        ("bi", {"variant": None}, "has variant = None; polyrank imports only 'xlm'"),
        ("bi", {"n_heads": None}, "has n_heads = None, not a number; download the model again"),
        ("bi", {"n_heads": 0}, "has n_heads = 0, not a number"),
        ("bi", {"n_heads": 3}, "which n_heads = 3 does not divide"),
        ("bi", {"dropout": 2.0}, "has dropout = 2.0, not from 0 to 1"),
        ("bi", {"n_positions": "4"}, "has n_positions = '4', not a number"),
        ("bi", {"history_size": "4"}, "has history_size = '4', not a number"),
        ("bi", {"output_scaling": None}, "has output_scaling = None"),
        ("poly", {"poly_n_codes": "x"}, "has poly_n_codes = 'x', not a number"),
        ("bi", {"n_layers": 1}, "n_layers is 1, and the file has more layers"),
        ("bi", {"n_positions": 32}, "do not agree"),
        (
            "bi",
            {"dict_endtoken": "__end__"},
            "has dict_endtoken = '__end__'; polyrank imports only '__start__'",
        ),
    ],
)
def test_another_network_is_refused(
    changed: Callable[..., Path], tmp_path: Path, kind: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArtifactError, match=re.escape(message)):
        import_parlai(changed(kind, **settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_poly_encoder_ignores_settings_of_the_bi_encoder(changed: Callable[..., Path], tmp_path: Path) -> None:
    import_parlai(changed("poly", share_encoders=True), tmp_path / "out")


@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [
        (".opt", "[1]", "does not hold settings by name"),
        (".opt", "{", "cannot be read as JSON"),
        (".dict.codecs", "#version: 0.1\n", "give a file of subword-nmt, version 0.2"),
        (".dict.codecs", "#version: 0.2\na b c\n", "'a b c' does not name two tokens"),
        (".dict", "".join(f"w{i}\t1\n" for i in range(99)), "the word embeddings have"),
    ],
)
def test_a_damaged_file_is_refused(
    changed: Callable[..., Path], tmp_path: Path, ending: str, content: str, message: str
) -> None:
    model = changed("cross")
    Path(f"{model}{ending}").write_text(content, "utf-8")
    with pytest.raises(ArtifactError, match=re.escape(message)):
        import_parlai(model, tmp_path / "out")


@pytest.mark.deep
def test_flipped_bits_in_the_weights_are_no_crash(changed: Callable[..., Path], tmp_path: Path) -> None:
    model = changed("bi")
    whole, found = model.read_bytes(), 0
    for place in range(0, 2500, 41):
        model.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            import_parlai(model, tmp_path / "out", replace=True)
        except ArtifactError:
            found += 1
    assert found > 20


def test_a_missing_tensor_is_named(changed: Callable[..., Path], tmp_path: Path) -> None:
    model = changed("cross")
    weights = torch.load(model, weights_only=True)["model"]
    del weights["linear_layer.weight"]
    torch.save({"model": weights}, model)
    with pytest.raises(ArtifactError, match=r"has no tensor 'linear_layer\.weight'"):
        import_parlai(model, tmp_path / "out")


class Harmful:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_code_in_a_file_never_runs(changed: Callable[..., Path], tmp_path: Path) -> None:
    model = changed("bi")
    torch.save({"model": {}, "options": Harmful(tmp_path / "harm")}, model)
    with pytest.raises(ArtifactError, match="cannot be read as weights alone"):
        import_parlai(model, tmp_path / "out")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("ending", ["", ".opt", ".dict", ".dict.codecs"])
def test_a_missing_file_is_named(changed: Callable[..., Path], tmp_path: Path, ending: str) -> None:
    model = changed("bi")
    Path(f"{model}{ending}").unlink()
    with pytest.raises(ArtifactError, match=re.escape(f"{model}{ending} does not exist")):
        import_parlai(model, tmp_path / "out")


def test_the_script_imports_and_the_model_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(Path(__file__).parents[2] / "runs" / "papers" / "from_parlai.py")
    monkeypatch.setattr(sys, "argv", [script, str(SAVED / "poly"), str(tmp_path / "poly")])
    runpy.run_path(script, run_name="__main__")
    assert "poly, " in capsys.readouterr().out
    with pytest.raises(UsageError, match="exists"):
        import_parlai(SAVED / "poly", tmp_path / "poly")
    polyrank.build_index(tmp_path / "index", polyrank.load(tmp_path / "poly"), EXPECTED["candidates"])
    with polyrank.open(tmp_path / "index") as replies:
        answer = replies.answer(EXPECTED["contexts"][0], k=1)
    best = int(np.argmax(EXPECTED["poly"]["scores"][0]))
    assert answer.text == EXPECTED["candidates"][best]
