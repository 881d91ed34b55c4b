"""Model cards: what README.md of a trained model reports, edits that survive, and folders without one."""

import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from polyrank.config.methods import MutualMethod, RerankMethod
from polyrank.config.models import MODEL, BiConfig, ConvertConfig, ConvertText, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Partner, Recipe
from polyrank.config.train import NetworkTraining, TrainConfig
from polyrank.data import read_examples
from polyrank.devices.choice import cpu_has_int8
from polyrank.loading.recipes import NetworkPlan
from polyrank.models.artifacts import keep_edited_card, load_model, read_config, sign_card, signed
from polyrank.scorers.exported.agreement import Agreement
from polyrank.scorers.in_int8 import check_int8, read_record
from polyrank.scorers.load import IN_INT8
from polyrank.storage.document import seal
from polyrank.training import RunResult, train
from polyrank.training.card import describe_part, licence, write_card
from polyrank.training.loop import FitResult
from train_settings import train_config


def recipe(task: dict[str, Path], backbone: Path, output: Path, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {"batch_size": 8, "max_steps": 2, "lr": 1e-3, "precision": "fp32"}
    values: dict[str, Any] = {
        "model": BiConfig(backbone=str(backbone), reduction="mean"),
        "text": TextPolicy(max_context_tokens=24, max_candidate_tokens=8),
        "data": DataConfig(**{name: str(path) for name, path in task.items()}),
        "train": train_config(**settings, **changes.pop("train", {})),
        "output": str(output),
        **changes,
    }
    return Recipe(**values)


def card(result: RunResult) -> str:
    return (result.model / "README.md").read_text("utf-8")


@pytest.fixture
def tested(task: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """The toy task with a test part, whose name has the sign between the cells of a table."""
    path = tmp_path / "test|2.jsonl"
    path.write_bytes(task["valid"].read_bytes())
    return {**task, "test": path}


def test_a_card_describes_the_model(
    tested: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.training.run.INT8_LISTS", 5)  # of 12: every third one
    backbone = tmp_path / "tiny"
    backbone.symlink_to(tiny_backbone)
    (own,) = train(recipe(tested, backbone, tmp_path / "run"))
    text = card(own)
    digest = hashlib.sha256(tested["train"].read_bytes()).hexdigest()
    assert f"| train | train.jsonl | 72 | `{digest}` |" in text
    assert re.search(r"\| test \| test\\\|2\.jsonl \| 12 \| `[0-9a-f]{64}` \|", text)
    assert "| **Started from** | `tiny` (licence: not stated) |" in text
    assert "| **Training** | 2 steps, 16 examples; seed 1 |" in text
    assert "| **Saved after** | step 2, the best on the validation part |" in text
    figures = ", ".join(f"{name} {own.fit.best[name]:.4f}" for name in ("MRR", "R@1", "loss"))
    assert f"\n\nValidation: {figures}.\n\n" in text
    assert f"| **Fingerprint** | `{load_model(own.model).fingerprint}` |" in text
    alike = read_record(own.model)
    assert (alike is not None) == cpu_has_int8()
    if alike is not None:
        assert alike.n == 4
        assert f"| **In 8 bits** | {alike}; {'' if alike.kept else 'not '}used on CPUs without bf16 |" in text
        assert alike == check_int8(own.model, read_examples(tested["valid"]).examples[::3], record=False)
    assert "| `train.lr` | `0.001` |" in text
    assert "| `train.epochs` | `1` |" in text  # a default, and shown
    assert "train.new_lr" not in text  # a default
    assert str(tmp_path) not in text
    assert f"Test: 12 examples with 12 candidates each, in {own.test['precision']}, in percent." in text
    rate, (low, high) = own.test["metrics"]["R@1"], own.test["intervals"]["R@1"]
    assert f"| R@1 | {100 * rate:.1f} | {100 * low:.1f} to {100 * high:.1f} |" in text
    assert "# Bi-encoder for ranking replies" in text
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    exec(code[1].replace("path/to/this/folder", str(own.model)), {})  # the card's own example
    assert own.load(device="cpu").rank("hello", ["a", "b"])


def test_a_card_names_the_trained_model_that_a_network_started_from(
    tiny_encoders: dict[str, Path], task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    """By its name on the Hub, with its licence; a first stage by its last name."""
    folder, start = Path(shutil.copytree(tiny_encoders["poly"], tmp_path / "model")), tmp_path / "start"
    start.mkdir()
    (start / "README.md").write_text("---\nlicense: apache-2.0\n---\n", "utf-8")
    model, text, train = PolyConfig(backbone=str(tiny_backbone)), TextPolicy(), NetworkTraining(init_from="hf:me/mine")
    network = NetworkPlan(name="", model=model, text=text, train=train, start=start)
    plan = Recipe(model=model, text=text, data=DataConfig(train=str(task["train"])), output=str(tmp_path / "run"))
    fit = FitResult(n_steps=9, n_examples=72, best={"loss": 0.5}, best_step=6, seconds=1.0)

    def write(plan: Recipe) -> str:
        write_card(folder, plan, network, [], seed=1, fit=fit, n_steps=9, test={})
        return (folder / "README.md").read_text("utf-8")

    before = write(plan)
    header = "---\nlibrary_name: polyrank\nlicense: apache-2.0\nbase_model: me/mine\n---\n"
    assert before.startswith(header)
    assert "| **Started from** | `hf:me/mine` (licence: apache-2.0) |" in before
    assert "| **Saved after** | step 6, the best on the validation part |" in before
    assert "| `train.batch_size` | `64` |" in before  # a default, and shown
    assert "In 8 bits" not in before
    document, alike = read_config(folder), Agreement(200, 0.5, 0.45, 0.97)
    in_int8 = {"fingerprint": document["fingerprint"], "kept": False, **dataclasses.asdict(alike)}
    (folder / MODEL.file).write_bytes(seal({**document, "metadata": {**document["metadata"], IN_INT8: in_int8}}, MODEL))
    method = RerankMethod(first_stage=str(tiny_encoders["bi"]))
    plan = dataclasses.replace(plan, model=CrossConfig(), train=TrainConfig(method=method))
    text_of = write(plan)
    assert f"| **In 8 bits** | {alike}; not used on CPUs without bf16 |" in text_of
    assert "| **First stage** | `bi`, whose scores it corrects; all figures are of both |" in text_of
    assert str(tmp_path) not in text_of
    assert str(tiny_encoders["bi"]) not in text_of


@pytest.mark.parametrize("text", [None, "# mine\n", sign_card("# polyrank's\n"), sign_card("# it\n") + "and mine\n"])
def test_a_folder_that_is_replaced_keeps_the_card_that_somebody_edited(tmp_path: Path, text: str | None) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    if text is not None:
        (old / "README.md").write_text(text, "utf-8")
    keep_edited_card(old, new)
    edited = text is not None and "mine" in text
    assert [path.read_text("utf-8") for path in new.iterdir()] == ([text] if edited else [])


@pytest.mark.deep
def test_a_new_training_replaces_its_own_card_and_keeps_an_edited_one(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    backbone = Path(shutil.copytree(tiny_backbone, tmp_path / "licensed"))
    (backbone / "README.md").write_text("---\nlicense: mit\n---\n# A backbone", "utf-8")
    plan = recipe({"train": task["train"]}, backbone, tmp_path / "run")
    (first,) = train(plan)
    before = card(first)
    assert before.startswith("---\nlibrary_name: polyrank\nlicense: mit\n---\n")
    assert "| **Started from** | `licensed` (licence: mit) |" in before
    longer = dataclasses.replace(plan, train=dataclasses.replace(plan.train, max_steps=3))
    (second,) = train(longer, overwrite=True)
    assert "3 steps" in card(second) != before
    path = second.model / "README.md"
    path.write_text(card(second).replace("Trained with", "Made by me with"), "utf-8")
    assert not signed(second.model)
    edited = path.read_bytes()
    train(longer, resume=True)  # it is finished
    assert path.read_bytes() == edited
    (third,) = train(plan, overwrite=True)
    assert (third.model / "README.md").read_bytes() == edited
    assert load_model(second.model).fingerprint  # the card is not verified


def test_an_outdated_card_that_nobody_edited_is_written_again(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    plan = recipe(task, tiny_backbone, tmp_path / "run")
    (own,) = train(plan)
    before = card(own)
    (own.model / "README.md").write_text(sign_card("# An earlier version of polyrank wrote this\n"), "utf-8")
    (again,) = train(plan, resume=True)
    assert card(again) == before


@pytest.mark.deep
def test_both_networks_of_a_mutual_training_have_cards(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    partner = Partner(
        model=CrossConfig(backbone=str(tiny_backbone)),
        train=NetworkTraining(),
    )
    changes = {"method": "mutual", "n_negatives": 2}
    plan = recipe(task, tiny_backbone, tmp_path / "run", train=changes, reranker=partner)
    assert isinstance(plan.train.method, MutualMethod)
    first, second = map(card, train(plan))
    assert first.startswith("---\nlibrary_name: polyrank\n---\n\n# Bi-encoder")
    assert "# Cross-encoder" in second


def test_examples_from_memory_and_a_network_without_a_start(task: dict[str, Path], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in task["train"].read_text("utf-8").splitlines()]
    lists = read_examples(task["valid"]).examples

    def text_of(name: str, files: dict[str, Path], *given: Any) -> str:
        plan = recipe(
            files, Path(), tmp_path / name,
            model=ConvertConfig(embedding_dim=8, ffn_dim=8, spans=(3,), side_dim=8, output_dim=8),
            text=ConvertText(min_count=1),
            train={"method": "convert"},
        )  # fmt: skip
        (own,) = train(plan, *given)
        return card(own)

    text = text_of("train", {}, rows)
    assert "| train | in memory | 72 |  |" in text
    assert "| **Started from** | random weights |" in text
    assert "| **Saved after** | step 2 |" in text  # the last, without a validation
    assert "## Figures" not in text
    assert "| valid |" not in text
    text = text_of("with-file", {"valid": task["valid"]}, rows)
    assert "| train | in memory | 72 |  |" in text
    assert re.search(r"\| valid \| valid\.jsonl \| 12 \| `[0-9a-f]{64}` \|", text)
    assert re.search(r"\n## Figures\n\nValidation: .*R@1 [01]\.\d{4}, loss .*\.\n", text)  # without a test part
    text = text_of("valid", {"train": task["train"]}, None, lists)
    assert re.search(r"\| train \| train\.jsonl \| 72 \| `[0-9a-f]{64}` \|", text)
    assert "| valid | in memory | 12 |  |" in text
    text = text_of("test", {"train": task["train"], "test": task["valid"]})
    assert "\n## Figures\n\nTest: 12 examples with 12 candidates each" in text
    assert "Validation: " not in text
    rows_of_test = [json.loads(line) for line in Path(task["valid"]).read_text("utf-8").splitlines()]
    right = rows_of_test[0]["candidates"][rows_of_test[0]["relevant"][0]]
    wrong = [one for one in rows_of_test[0]["candidates"] if one != right]
    rows_of_test[0] |= {"candidates": [right, *wrong[:2]], "relevant": [0]}
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, rows_of_test)), "utf-8")
    text = text_of("sizes", {"train": task["train"], "test": str(tmp_path / "two.jsonl")})
    assert "\n## Figures\n\nTest: 12 examples with 3 to 12 candidates each" in text


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n# A model", "mit"),
        ("---\nlicense: cc-by-4.0\n---\n# A model", "cc-by-4.0"),
        ("---\nlanguage: en\n---\nlicense: mit", "not stated"),
        ("# A model\nlicense: mit", "not stated"),
        (None, "not stated"),
    ],
)
def test_licences_come_from_a_cards_header(header: str | None, wanted: str, tmp_path: Path) -> None:
    if header is not None:
        (tmp_path / "README.md").write_text(header, "utf-8")
    assert licence("hf:owner/model", tmp_path) == wanted


def test_several_files_have_one_fingerprint(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(name, "utf-8")
    part = describe_part("train", str(tmp_path / "*.jsonl"), 5)
    digests = "".join(hashlib.sha256(name.encode()).hexdigest() for name in "ab")
    assert part.files == "2 files, a.jsonl to b.jsonl"
    assert part.sha256 == hashlib.sha256(digests.encode()).hexdigest()


def test_a_signature_depends_on_every_letter(tmp_path: Path) -> None:
    path, text = tmp_path / "README.md", sign_card("# A model\n")
    for written, own in ((text, True), (text.replace("A", "a"), False), (text + "\n", False), ("", False)):
        path.write_text(written, "utf-8")
        assert signed(tmp_path) == own
    path.write_bytes("# Ein Modell für alle\n".encode("latin-1"))  # somebody's
    assert not signed(tmp_path)
