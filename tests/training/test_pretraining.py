"""Pre-training: statistics of masks, losses compared with other implementations, batches, resuming, results."""

import json
import math
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import processes
from polyrank import load
from polyrank.config.checked import to_dict
from polyrank.config.pretrain import ContinuedModel, PretrainRecipe, PretrainSteps, PretrainText, ScratchModel
from polyrank.config.train import NetworkTraining
from polyrank.errors import ConfigError, DataError, ResourceError, UsageError
from polyrank.loading.recipes import load_pretrain_recipe
from polyrank.models.backbone import load_backbone
from polyrank.models.pretraining import (
    PretrainingNetwork,
    continued_backbone,
    new_bert,
    pretraining_network,
    save_backbone,
)
from polyrank.storage.document import read_document
from polyrank.storage.tensors import read_file
from polyrank.text import Subwords, learn_bert_subwords, load_subwords
from polyrank.text.subword_learning import _count_words
from polyrank.training import train
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.learner import Learner
from polyrank.training.loop import fit
from polyrank.training.optimizer import make_optimizer
from polyrank.training.pretraining import pretrain, tokens
from polyrank.training.pretraining.batches import (
    NO_TARGET,
    Batches,
    MaskedPairs,
    Masking,
    make_batch,
    pair_lengths,
)
from polyrank.training.pretraining.objectives import compute_losses, count_targets
from polyrank.training.pretraining.run import PRETRAINING, _start
from polyrank.training.pretraining.step import VALID_SEED, PairBatch, PairBatches, PretrainStep, validate
from polyrank.training.pretraining.tokens import Pairs, open_pairs
from shared_fixtures import WORDS

CPU = torch.device("cpu")
TEXT = PretrainText(max_tokens=24, max_response_tokens=10)
RARE = ["unbelievably", "reconnecting", "transformations", "misunderstood"]


def corpus(n: int = 60) -> list[dict[str, Any]]:
    """Dialogues in which each turn repeats the previous one with another word."""
    rows = []
    for i in range(n):
        words = [WORDS[(i * 7 + j) % len(WORDS)] for j in range(5)]
        turns = [
            f"{words[0]} {words[1]}",
            f"{words[1]} {words[2]} {RARE[i % 4]}",
            f"{words[2]}, {words[3]} {words[4]}!",
        ]
        rows.append({"turns": [{"speaker": "ab"[k % 2], "text": text} for k, text in enumerate(turns)]})
    return rows


@pytest.fixture
def dialogues(write_rows: Callable[[str, list[dict[str, Any]]], Path]) -> Path:
    return write_rows("dialogues.jsonl", corpus())


@pytest.fixture
def subwords(tiny_backbone: Path) -> Subwords:
    return load_subwords(tiny_backbone)


@pytest.fixture
def pairs(dialogues: Path, subwords: Subwords, tmp_path: Path) -> Pairs:
    return open_pairs(dialogues, subwords, "[SEP]", tmp_path / "cache", skip_bad=False)


def plan(dialogues: Path, output: Path, *changes: str, **tables: Any) -> PretrainRecipe:
    values = {
        "output": str(output),
        "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 48, "positions": 32},
        "vocabulary": {"size": 150},
        "data": {"train": str(dialogues), "valid": str(dialogues), "max_valid": 20},
        "text": {"max_tokens": 24, "max_response_tokens": 10},
        "train": {
            "steps": 8, "batch_tokens": 300, "lr": 1e-3, "schedule": {"warmup_steps": 2}, "evaluate_steps": 3,
            "checkpoint_steps": 2, "precision": "fp32",
        },
    }  # fmt: skip
    return load_pretrain_recipe(values | tables, changes)


def reading(pairs: Pairs, subwords: Subwords, *changes: str) -> PairBatches:
    recipe = plan(Path("none"), Path("none"), *changes)
    return PairBatches(pairs, subwords, recipe, recipe.train.seed)


def words_of(subwords: Subwords, ids: torch.Tensor) -> str:
    return str(subwords.tokenizer.decode(ids.tolist(), skip_special_tokens=False))


# vocabularies


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_a_vocabulary_decodes_its_corpus(kind: Any) -> None:
    texts = ["Lower lowest low", "the newest widest É", "emoji 😀 seen"] * 3
    subwords = learn_bert_subwords(texts, kind=kind, size=90)
    for text in texts:
        tokens = subwords.tokenizer.encode(text, add_special_tokens=False).tokens
        joined = "".join(token.removeprefix("##").removesuffix("</w>") for token in tokens)
        assert joined == text.lower().replace("é", "e").replace(" ", "")
    assert len(subwords) <= 90
    assert subwords.tokenizer.encode("龍", add_special_tokens=False).tokens == ["[UNK]"]
    assert [subwords.tokenizer.token_to_id(name) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [
        *range(5)
    ]
    cased = learn_bert_subwords(texts, kind=kind, size=90, lower_case=False)
    for letter in ("L", "l", "É"):
        (token,) = cased.tokenizer.encode(letter, add_special_tokens=False).tokens
        assert token.removesuffix("</w>") == letter


@pytest.mark.parametrize(
    ("kind", "inside"), [("wordpiece", ["##a", "##b", "##c"]), ("bpe", ["a</w>", "b</w>", "c</w>"])]
)
def test_a_vocabulary_begins_with_its_characters_in_their_order(kind: Any, inside: list[str]) -> None:
    """Frequencies do not matter: you can read the ids of single characters."""
    ids = learn_bert_subwords(["cc cc cb", "ba"], kind=kind, size=11).tokenizer.get_vocab()
    assert sorted(ids, key=ids.__getitem__)[5:] == ["a", "b", "c", *inside]


def _learn(kind: Any, file: str) -> None:
    texts = [turn["text"] for row in corpus() for turn in row["turns"]]
    Path(file).write_bytes(learn_bert_subwords(texts, kind=kind, size=140).to_bytes())


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_vocabulary_is_the_same_in_every_process(kind: Any, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.json" for i in range(3)]
    children = [processes.start(_learn, kind, str(file)) for file in files]
    for child in children:
        child.join(100)
    assert len({file.read_bytes() for file in files}) == 1


def test_bpe_joins_the_most_frequent_pairs_first() -> None:
    subwords = learn_bert_subwords(["ab ab ab abc abc xy"], kind="bpe", size=5 + 2 * 5 + 2)
    merges = json.loads(subwords.tokenizer.to_str())["model"]["merges"]
    assert merges == [["a", "b</w>"], ["a", "b"]]  # 3 times, and 2 times before c</w>


def test_words_count_as_often_as_they_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their copies are given to the trainer in parts; only the most frequent characters are known."""
    monkeypatch.setattr("polyrank.text.subword_learning.CHUNK", 2)
    texts = ["ab " * 5 + "cd " * 6]
    subwords = learn_bert_subwords(texts, kind="bpe", size=5 + 2 * 4 + 1)
    assert json.loads(subwords.tokenizer.to_str())["model"]["merges"] == [["c", "d</w>"]]
    monkeypatch.setattr("polyrank.text.subword_learning.MAX_CHARACTERS", 2)
    few = learn_bert_subwords([*texts, "cb"], kind="wordpiece", size=40).tokenizer
    assert [few.token_to_id(letter) is not None for letter in "abcd"] == [False, True, True, False]


def test_impossible_vocabularies_are_refused() -> None:
    with pytest.raises(ConfigError, match="size = 10 is too small for the 4 characters"):
        learn_bert_subwords(["abcd"], kind="bpe", size=10)
    for none in ("", "  ", "a" * 101):  # longer words are unknown
        with pytest.raises(ConfigError, match="have no words"):
            learn_bert_subwords([none, none], kind="wordpiece", size=100)
    longest = learn_bert_subwords(["a" * 100], kind="wordpiece", size=100).tokenizer
    assert "[UNK]" not in longest.encode("a" * 100, add_special_tokens=False).tokens
    assert longest.encode("a" * 101, add_special_tokens=False).tokens == ["[UNK]"]


def test_rare_words_are_dropped_when_there_are_too_many() -> None:
    """Memory is bounded: with a limit of 10 words it counts 15 before it drops the rare ones."""
    often = [f"often{i}" for i in range(10)]
    fifteen = [*often, *often, *(f"rare{i}" for i in range(5))]
    assert len(_count_words(fifteen, True, 10)) == 15
    assert _count_words([*fifteen, "last"], True, 10) == dict.fromkeys(often, 2)


def test_the_thousand_most_frequent_characters_are_known() -> None:
    signs = [chr(0x4E00 + i) for i in range(1002)]  # each is a word
    subwords = learn_bert_subwords([" ".join(signs), " ".join(signs[2:])], kind="wordpiece", size=3000)
    assert subwords.tokenizer.encode(signs[2] + signs[-1], add_special_tokens=False).tokens == [signs[2], signs[-1]]
    assert subwords.tokenizer.encode(signs[0] + signs[1], add_special_tokens=False).tokens == ["[UNK]", "[UNK]"]


# texts as ids


@pytest.mark.parametrize("n_at_a_time", [1, 7, 1000])
def test_pairs_come_from_the_dialogues(
    n_at_a_time: int, dialogues: Path, subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "ROWS", n_at_a_time)
    pairs = open_pairs(dialogues, subwords, "[SEP]", tmp_path / "cache", skip_bad=False)
    separator = subwords.end_id
    expected = []
    for row in corpus():
        turns = [list(subwords.encode(turn["text"])) for turn in row["turns"]]
        for i in range(1, len(turns)):
            context = [id_ for turn in turns[:i] for id_ in (*turn, separator)][:-1]
            expected.append((context, turns[i]))
    ids = (np.asarray(pairs.ids) >> 1).tolist()
    assert [(ids[a:b], ids[c:d]) for a, b, c, d, _ in pairs.table.tolist()] == expected
    keys = [key for *_, key in pairs.table.tolist()]
    same = {(one == other) == (a == b) for (_, one), a in zip(expected, keys, strict=True)
            for (_, other), b in zip(expected[:9], keys[:9], strict=True)}  # fmt: skip
    assert same == {True}


def test_pairs_are_made_once_and_again_when_damaged(dialogues: Path, subwords: Subwords, tmp_path: Path) -> None:
    said: list[str] = []

    def read(text: str = "[SEP]") -> Pairs:
        return open_pairs(dialogues, subwords, text, tmp_path / "cache", skip_bad=False, notify=said.append)

    before = np.array(read().table)
    (folder,) = (tmp_path / "cache").iterdir()
    inode = (folder / "ids.bin").stat().st_ino
    read()
    assert (folder / "ids.bin").stat().st_ino == inode
    data = bytearray((folder / "ids.bin").read_bytes())
    data[5] ^= 1
    (folder / "ids.bin").write_bytes(data)
    assert np.array_equal(read().table, before)
    assert any("damaged" in line for line in said)
    read("[MASK]")  # another separator: other ids
    assert len(list((tmp_path / "cache").iterdir())) == 2
    subwords.add(["unbelievably"])
    assert subwords.id_of("unbelievably") in np.asarray(read().ids) >> 1
    with dialogues.open("a", encoding="utf-8") as stream:
        stream.write('{"turns": 3}\n')
    assert len(open_pairs(dialogues, subwords, "[SEP]", tmp_path / "cache", skip_bad=True)) == len(before)
    with pytest.raises(DataError, match=r"dialogues\.jsonl:61: "):
        read()


def test_background_and_candidates(write_rows: Callable[..., Path], subwords: Subwords, tmp_path: Path) -> None:
    said = write_rows(
        "pairs.jsonl",
        [
            {"background": ["hi", "my bill"], "context": ["wifi down"], "response": "thanks", "negatives": ["please"]},
            {"context": "router", "response": ""},
            {"context": ["router", "is"], "response": "red"},
        ],
    )
    lists = write_rows(
        "lists.jsonl",
        [{"context": "hello", "candidates": ["it", "red"], "relevant": right} for right in (1, 0, [])],
    )
    expected = {
        said: [["hi [SEP] my bill [SEP] wifi down", "thanks"], ["router [SEP] is", "red"]],
        lists: [["hello", "red"], ["hello", "it"]],
    }
    for path, shown in expected.items():
        pairs = open_pairs(path, subwords, "[SEP]", tmp_path / "cache", skip_bad=False)
        ids = np.asarray(pairs.ids) >> 1
        stretches = [(row[:2], row[2:4]) for row in pairs.table]
        assert [[words_of(subwords, torch.tensor(ids[a:b])) for a, b in both] for both in stretches] == shown


def test_files_without_pairs_are_refused(write_rows: Callable[..., Path], subwords: Subwords, tmp_path: Path) -> None:
    short = write_rows("short.jsonl", [{"turns": [{"speaker": "a", "text": "hi"}]}])
    with pytest.raises(DataError, match="no row has a response"):
        open_pairs(short, subwords, "[SEP]", tmp_path / "cache", skip_bad=False)
    bad = write_rows("bad.jsonl", [*corpus(2), {"turns": 3}])
    with pytest.raises(DataError, match=r"bad.jsonl:3"):
        open_pairs(bad, subwords, "[SEP]", tmp_path / "cache", skip_bad=False)
    said: list[str] = []
    assert len(open_pairs(bad, subwords, "[SEP]", tmp_path / "cache", skip_bad=True, notify=said.append)) == 4
    assert "1 bad row left out" in said[0]
    assert said[-1].startswith(f"{bad}: 4 pairs, ")
    one = write_rows("one.jsonl", [{"context": "hello", "response": "hi"}, {"context": "", "response": "hi"}])
    with pytest.raises(DataError, match=r"one\.jsonl: 1 pair with words on both sides; give at least two"):
        open_pairs(one, subwords, "[SEP]", tmp_path / "cache", skip_bad=False)


# batches


def order(pairs: Pairs, **settings: Any) -> list[Any]:
    usual: dict[str, Any] = {"random_half": False, "batch_tokens": 200, "window": 50, "seed": (1, 0)}
    return Batches(pairs, TEXT, **usual | settings).epoch(0)


def test_an_epoch_has_every_pair_once_within_the_budget(pairs: Pairs) -> None:
    batches = order(pairs)
    assert sorted(int(i) for batch in batches for i in batch.rows) == list(range(len(pairs)))
    for batch in batches:
        n_contexts, n_responses = pair_lengths(pairs.table, TEXT, batch.rows, batch.responses)
        assert np.array_equal(batch.lengths, n_contexts + n_responses + 3)
        assert batch.lengths.max() * len(batch.lengths) <= 200
        assert batch.lengths.max() <= TEXT.max_tokens
        assert not batch.random.any()
    spread = [np.ptp(batch.lengths) for batch in batches]
    unsorted = [np.ptp(batch.lengths) for batch in order(pairs, window=1)]
    assert np.mean(spread) < np.mean(unsorted)


@pytest.mark.parametrize("window", [1, 2])
def test_a_small_window_still_fills_batches(pairs: Pairs, window: int) -> None:
    batches = order(pairs, window=window)
    assert sorted(int(i) for batch in batches for i in batch.rows) == list(range(len(pairs)))
    assert all(batch.lengths.max() * len(batch.lengths) <= 200 for batch in batches)
    assert len(batches) < 1.5 * len(order(pairs))


@pytest.mark.parametrize("few", [False, True])
def test_half_of_the_responses_are_random(
    few: bool, write_rows: Callable[..., Path], subwords: Subwords, tmp_path: Path
) -> None:
    rows: list[dict[str, str]] = []
    for a, b in product(WORDS, WORDS):  # nearly all responses are different, or half of them equal
        rows += [{"context": f"{a} {b}", "response": text} for text in (("hi", "thanks") if few else (f"{b} {a}",) * 2)]
    rows *= 2
    pairs = open_pairs(write_rows("p.jsonl", rows), subwords, "[SEP]", tmp_path / "c", skip_bad=False)
    batches = order(pairs, random_half=True, batch_tokens=1000)
    random = np.concatenate([batch.random for batch in batches])
    assert abs(random.mean() - 0.5) < 4 * 0.5 / math.sqrt(len(random))
    ids = np.asarray(pairs.ids)
    for batch in batches[:10]:
        for row, response, other in zip(batch.rows, batch.responses, batch.random, strict=True):
            own, drawn = (ids[slice(*pairs.table[i, 2:4])].tolist() for i in (row, response))
            assert (own != drawn) == bool(other)


def test_equal_responses_leave_no_random_ones(
    write_rows: Callable[..., Path], subwords: Subwords, tmp_path: Path
) -> None:
    rows = [{"context": a, "response": "hello"} for a in WORDS]
    pairs = open_pairs(write_rows("p.jsonl", rows), subwords, "[SEP]", tmp_path / "c", skip_bad=False)
    assert not any(batch.random.any() for batch in order(pairs, random_half=True))


def test_batches_depend_on_seed_and_position_alone(pairs: Pairs) -> None:
    def batches(seed: int = 3) -> Batches:
        return Batches(pairs, TEXT, random_half=True, batch_tokens=200, window=50, seed=(seed, 1))

    n, one, other = 40, batches(), batches()
    forwards = [one.at(i) for i in range(n)]
    for i in np.random.default_rng(1).permutation(n):
        assert all(np.array_equal(a, b) for a, b in zip(vars_of(forwards[i]), vars_of(other.at(int(i))), strict=True))
    assert n > len(one.epoch(0))  # more than one epoch; each has its own order
    assert not np.array_equal(forwards[0].rows, batches(4).at(0).rows)


def vars_of(chosen: Any) -> list[Any]:
    return [chosen.rows, chosen.responses, chosen.random, chosen.lengths]


def test_inputs_are_truncated_correctly(pairs: Pairs, subwords: Subwords) -> None:
    text = PretrainText(max_tokens=12, max_response_tokens=4)
    chosen = Batches(pairs, text, random_half=True, batch_tokens=120, window=1, seed=(1, 0)).at(0)
    assert 0 < chosen.random.sum() < len(chosen.random)
    batch = make_batch(pairs, chosen, text, subwords, None, np.random.default_rng(1))
    ids = np.asarray(pairs.ids) >> 1
    for i, (row, response) in enumerate(zip(chosen.rows, chosen.responses, strict=True)):
        a, b, c, d, _ = (*pairs.table[row, :2], *pairs.table[response, 2:])
        right = ids[c:d][:4].tolist()
        left = ids[a:b].tolist()[-(12 - 3 - len(right)) :]
        n = len(left) + len(right) + 3
        assert batch.tokens.ids[i, :n].tolist() == [subwords.start_id, *left, subwords.end_id, *right, subwords.end_id]
        assert batch.tokens.segments[i, :n].tolist() == [0] * (len(left) + 2) + [1] * (len(right) + 1)
        assert batch.tokens.mask[i].tolist() == [True] * n + [False] * (batch.tokens.ids.shape[1] - n)
    assert (batch.targets == NO_TARGET).all()
    assert batch.random.tolist() == [
        int(row != response) for row, response in zip(chosen.rows, chosen.responses, strict=True)
    ]


# masks


def test_masks_by_statistics(subwords: Subwords) -> None:
    masking = Masking.of(subwords, subwords.end_id)
    generator = np.random.default_rng(5)
    n = 200_000
    ids = generator.integers(len(subwords), size=n)
    hidden, targets = masking.mask_tokens(ids, generator)
    chosen, words = targets != NO_TARGET, ~np.isin(ids, masking.special)
    assert not chosen[~words].any()
    assert np.array_equal(targets[chosen], ids[chosen])
    assert np.array_equal(hidden[~chosen], ids[~chosen])

    def close(share: float, expected: float, of: int) -> bool:
        return abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / of)

    assert close(chosen.sum() / words.sum(), 0.15, int(words.sum()))
    masked, same = hidden[chosen] == masking.mask, hidden[chosen] == ids[chosen]
    by_chance = 0.1 / len(masking.words)  # a random word may equal the original
    assert close(masked.mean(), 0.8, int(chosen.sum()))
    assert close(same.mean(), 0.1 + by_chance, int(chosen.sum()))
    drawn = Counter(hidden[chosen][~masked & ~same].tolist())
    assert drawn.keys() <= set(masking.words.tolist())
    assert len(drawn) == len(masking.words)


def test_every_turn_of_objectives_has_its_own_pairs_and_masks(pairs: Pairs, subwords: Subwords) -> None:
    """Masked words are learned from true pairs, and whether a response is random from whole words."""
    source = reading(pairs, subwords, "train.objectives=alternate", "train.length_window=7", "text.turn_separator=wifi")
    assert [(each.random_half, each.window, each.batch_tokens) for each in source.orders] == [
        (False, 7, 300), (True, 7, 300),
    ]  # fmt: skip
    words, pair = (source.rows(number)[0] for number in (0, 1))
    assert [(rows.turn, rows.position) for rows in (words, pair, source.rows(5)[0])] == [(0, 0), (1, 0), (1, 2)]
    assert [rows.chosen.random.any() for rows in (words, pair)] == [False, True]
    (masked,), (whole,) = source.parts(words), source.parts(pair)
    assert [(batch.targets != NO_TARGET).any().item() for batch in (masked, whole)] == [True, False]
    for rows, batch in ((words, masked), (pair, whole)):
        assert source.counts(rows) == {"n_tokens": int(batch.tokens.mask.sum())}
    assert not masked.tokens.mask.all()  # padding does not count
    (again,), (later,) = source.parts(words), source.parts(words._replace(position=1))
    assert torch.equal(masked.tokens.ids, again.tokens.ids)
    assert not torch.equal(masked.tokens.ids, later.tokens.ids)
    separator = subwords.id_of("wifi")
    assert separator in source.masking.special
    assert separator not in source.masking.words


# losses


def network_of(backbone: Path) -> PretrainingNetwork:
    return pretraining_network(load_backbone(backbone), 1).eval()


def batches_of(pairs: Pairs, subwords: Subwords, *changes: str) -> list[MaskedPairs]:
    source = reading(pairs, subwords, "train.objectives=joint", *changes)
    return source.parts(source.rows(0)[0])


@torch.no_grad()
def test_losses_equal_those_of_a_loop(pairs: Pairs, subwords: Subwords, tiny_backbone: Path) -> None:
    network, (batch,) = network_of(tiny_backbone), batches_of(pairs, subwords)
    reported = compute_losses(network, batch, ("masked_lm", "next_utterance"))
    outputs, total, n = network(batch.tokens), 0.0, 0
    table = network.backbone.network.get_input_embeddings().weight  # type: ignore[operator]
    for b in range(len(batch.targets)):
        for t in range(batch.targets.shape[1]):
            if batch.targets[b, t] != NO_TARGET:
                inner = network.norm(torch.nn.functional.gelu(network.transform(outputs[b, t])))
                logits = [float(inner @ row + bias) for row, bias in zip(table, network.bias, strict=True)]
                total += math.log(sum(map(math.exp, logits))) - logits[int(batch.targets[b, t])]
                n += 1
    assert n == reported["masked_lm"].n == count_targets(batch)["masked_lm"] > 5
    assert float(reported["masked_lm"].loss) == pytest.approx(total, rel=1e-5)


def test_losses_equal_those_of_transformers(pairs: Pairs, subwords: Subwords, tiny_backbone: Path) -> None:
    network, (batch,) = network_of(tiny_backbone), batches_of(pairs, subwords)
    config = transformers.BertConfig.from_pretrained(tiny_backbone)
    reference = transformers.BertForPreTraining(config).eval()
    own = network.state_dict()
    names = {
        "transform": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm",
        "pooler": "bert.pooler.dense", "relationship": "cls.seq_relationship", "backbone.network": "bert",
    }  # fmt: skip
    weights = {"cls.predictions.bias": own.pop("bias")}
    for name, tensor in own.items():
        (prefix,) = (key for key in names if name.startswith(f"{key}."))
        weights[names[prefix] + name.removeprefix(prefix)] = tensor
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    missing, unexpected = reference.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all("position_ids" in name for name in missing)
    with torch.no_grad():
        reported = compute_losses(network, batch, ("masked_lm", "next_utterance"))
        theirs = reference(
            input_ids=batch.tokens.ids,
            attention_mask=batch.tokens.mask.long(),
            token_type_ids=batch.tokens.segments,
            labels=batch.targets,
            next_sentence_label=batch.random,
        )
    own_losses = [float(reported[name].loss) / reported[name].n for name in ("masked_lm", "next_utterance")]
    words = torch.nn.functional.cross_entropy(theirs.prediction_logits.flatten(0, 1), batch.targets.flatten())
    pair = torch.nn.functional.cross_entropy(theirs.seq_relationship_logits, batch.random)
    assert own_losses == pytest.approx([float(words), float(pair)], rel=1e-5)
    assert sum(own_losses) == pytest.approx(float(theirs.loss), rel=1e-5)


@pytest.mark.parametrize("objectives", ["masked_lm", "next_utterance", "joint"])
def test_micro_batches_change_no_gradient(
    pairs: Pairs, subwords: Subwords, tiny_backbone: Path, objectives: str
) -> None:
    """Also if one of the parts has no masked word."""
    source = reading(pairs, subwords, f"train.objectives={objectives}")
    names, (batch,) = PretrainStep(network_of(tiny_backbone), CPU, source).prepare(*source.rows(0))
    batch.targets[0] = NO_TARGET
    several = batch.parts(batch.tokens.mask.sum(1).numpy(), 1)
    assert len(several) > 1
    assert (several[0].targets == NO_TARGET).all()
    gradients, figures = [], []
    for parts in ([batch], several):
        network = network_of(tiny_backbone)
        for loss in PretrainStep(network, CPU, source).losses(PairBatch(names, parts), 0):
            loss.mean.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        figures.append(loss.figures)
        gradients.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
    whole, summed = gradients
    assert figures[1] == pytest.approx(figures[0], rel=1e-5)
    assert whole.keys() == summed.keys()
    assert all(torch.allclose(summed[name], gradient, rtol=1e-4, atol=1e-6) for name, gradient in whole.items())


def test_a_new_bert_has_the_requested_sizes_and_berts_initialization() -> None:
    sizes = ScratchModel(layers=3, hidden=64, heads=4, ffn=96, positions=50)
    network = new_bert(sizes, 700, padding=5, dropout=0.25, seed=1).network
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    assert shapes["embeddings.word_embeddings.weight"] == (700, 64)
    assert shapes["embeddings.position_embeddings.weight"] == (50, 64)
    assert shapes["encoder.layer.2.intermediate.dense.weight"] == (96, 64)
    assert not any(name.startswith("encoder.layer.3.") for name in shapes)
    assert network.config.num_attention_heads == 4
    assert {module.p for module in network.modules() if isinstance(module, torch.nn.Dropout)} == {0.25}
    drawn = torch.cat([p.detach().flatten() for p in network.parameters() if p.ndim > 1])
    assert float(drawn.std()) == pytest.approx(0.02, rel=0.02)  # 200,000 numbers
    words = network.embeddings.word_embeddings.weight  # type: ignore[union-attr]
    assert [i for i, row in enumerate(words) if not row.any()] == [5]
    for seed, same in ((1, True), (2, False)):
        other = new_bert(sizes, 700, padding=5, dropout=0.25, seed=seed).network
        assert torch.equal(other.embeddings.word_embeddings.weight, words) == same  # type: ignore[union-attr, arg-type]


def test_out_of_memory_suggests_half_of_the_tokens(
    pairs: Pairs, subwords: Subwords, tiny_backbone: Path, tmp_path: Path
) -> None:
    network, source = network_of(tiny_backbone), reading(pairs, subwords, "train.batch_tokens=300")
    network.transform.register_forward_pre_hook(lambda *_: torch.empty(2**60))
    learner = Learner(model=network, settings=NetworkTraining(), folder=tmp_path, save_best=lambda _: None)
    with pytest.raises(ResourceError, match=r"tokens do not fit into memory; try train\.micro_batch_tokens=150, "):
        fit([learner], PretrainStep(network, CPU, source), source, PretrainSteps(), seed=1, folder=tmp_path, device=CPU)
    parts = reading(pairs, subwords, "train.batch_tokens=300", "train.micro_batch_tokens=80")
    rows, _ = parts.rows(0)
    for lengths in ([4, 7, 9], [9, 9, 9]):  # three rows, padded to the longest one
        some = rows._replace(chosen=replace(rows.chosen, lengths=np.array(lengths)))
        assert parts.too_large(some).startswith("27 tokens do not fit into memory; try train.micro_batch_tokens=40")


def test_the_optimizer_follows_the_recipe(tiny_backbone: Path) -> None:
    recipe = plan(Path("x"), Path("x"), "train.betas=[0.8, 0.9]", "train.weight_decay=0.1")
    network = network_of(tiny_backbone)
    new = {*map(id, network.new_parameters())}
    for name, parameter in network.named_parameters():
        assert (id(parameter) in new) == (not name.startswith("backbone.")), name
    groups = make_optimizer(network, recipe.train.of_network).param_groups
    plain, decaying = sorted(groups, key=lambda group: group["weight_decay"])
    assert (plain["betas"], plain["weight_decay"]) == ((0.8, 0.9), 0.0)
    assert (decaying["betas"], decaying["weight_decay"], len(groups)) == ((0.8, 0.9), 0.1, 2)
    assert all(p.ndim > 1 for p in decaying["params"])
    assert all(p.ndim == 1 for p in plain["params"])


# runs


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_s")} for row in rows]


def outcome(folder: Path) -> tuple[Any, ...]:
    """All observable results of a run except times."""
    tensors, notes = read_file(folder / "checkpoint.safetensors")
    progress = {**json.loads(notes["progress"]), "seconds": None}
    state = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    files = [folder / "tokenizer.json", *sorted((folder / "model").rglob("*.*"))]
    return records(folder), progress, state, {file.name: file.read_bytes() for file in files}


class StopError(Exception):
    """Ends a run from its report callback, like a crash."""


@pytest.mark.deep
def test_a_resumed_run_equals_the_uninterrupted_one(dialogues: Path, tmp_path: Path) -> None:
    pretrain(plan(dialogues, tmp_path / "whole"))
    for crash_at in (1, 3, 6, 7):
        cut = tmp_path / f"cut {crash_at}"

        def crash(record: dict[str, Any], crash_at: int = crash_at) -> None:
            if record["step"] == crash_at and "valid" not in record:
                raise StopError

        with pytest.raises(StopError):
            pretrain(plan(dialogues, cut), report=crash)
        before = read_progress(cut / CHECKPOINT)["seconds"] if (cut / CHECKPOINT).exists() else 0
        fit = pretrain(plan(dialogues, cut), resume=True).fit
        assert outcome(cut) == outcome(tmp_path / "whole"), crash_at
        lines = map(json.loads, (cut / "metrics.jsonl").read_text("utf-8").splitlines())
        clock = [row["seconds"] for row in lines if "seconds" in row]
        assert clock == sorted(clock)
        assert before < clock[-1] <= fit.seconds


@pytest.mark.deep
def test_a_run_that_its_time_limit_ended_resumes_to_the_same_bits(dialogues: Path, tmp_path: Path) -> None:
    pretrain(plan(dialogues, tmp_path / "whole"))
    limited, lines = plan(dialogues, tmp_path / "cut", "train.minutes=1e-9"), list[str]()
    for done in (1, 2):
        fit = pretrain(limited, resume=True, notify=lines.append).fit
        assert (fit.finished, fit.n_steps, fit.best_step) == (False, done, done)
    assert (tmp_path / "cut" / "model" / "config.json").exists()
    assert lines[-1] == "stopped after 1e-09 minutes (train.minutes) at step 2; continue with `resume=True`"
    assert pretrain(plan(dialogues, tmp_path / "cut"), resume=True).fit.finished
    assert outcome(tmp_path / "cut")[1:] == outcome(tmp_path / "whole")[1:]  # its records have two more validations


def _pretrain(dialogues: str, output: str) -> None:
    torch.set_num_threads(1)
    pretrain(plan(Path(dialogues), Path(output), "train.steps=30"))


@pytest.mark.deep
def test_a_killed_run_resumes_to_the_same_bits(dialogues: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    pretrain(plan(dialogues, tmp_path / "whole", "train.steps=30"))
    metrics = tmp_path / "cut" / "metrics.jsonl"
    child = processes.start(_pretrain, str(dialogues), str(tmp_path / "cut"))
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and child.is_alive():
        if metrics.exists() and metrics.read_bytes().count(b"\n") > 8:
            break
        child.join(0.01)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    pretrain(plan(dialogues, tmp_path / "cut", "train.steps=30"), resume=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_a_run_follows_its_recipe(dialogues: Path, tmp_path: Path) -> None:
    """Its schedule, vocabulary, cache, dropout, and the bad rows that it skips."""
    dialogues.write_text(dialogues.read_text("utf-8") + '{"turns": 3}\n', "utf-8")
    changes = ["train.steps=4", "train.schedule.warmup_steps=2", "vocabulary.lower_case=false", "data.skip_bad=true"]
    recipe, said = plan(dialogues, tmp_path / "run", *changes, f"data.cache={tmp_path / 'cache'}"), list[str]()
    made = pretrain(recipe, notify=said.append)
    model, stored = made.model, read_document(tmp_path / "run", PRETRAINING.result)
    assert {key: stored[key] for key in asdict(made.fit)} == asdict(made.fit)
    rates = [record["lr"] for record in records(tmp_path / "run") if "lr" in record]
    assert rates[:2] == pytest.approx([0.5e-3, 1e-3])
    subwords, n_parameters = load_subwords(model), sum(p.numel() for p in load_backbone(model).parameters())
    assert subwords.encode("WIFI") != subwords.encode("wifi")
    assert said[0] == "learning 150 subwords"
    assert any(line.startswith(f"{dialogues}: 120 pairs, ") for line in said)
    assert any(line.startswith(f"{n_parameters:,} parameters, {len(subwords)} subwords, on ") for line in said)
    assert [path.is_dir() for path in (tmp_path / "cache").iterdir()] == [True]
    assert not (tmp_path / "run" / "tokens").exists()
    for options, rate in (((), 0.1), (("train.dropout=0.3",), 0.3), (("train.dropout=0.0",), 0.0)):
        backbone, _, _ = _start(plan(dialogues, tmp_path / "run", *options), tmp_path / "run", said.append)
        assert {module.p for module in backbone.modules() if isinstance(module, torch.nn.Dropout)} == {rate}
    assert said.count("learning 150 subwords") == 1
    for kind in ("bpe", "wordpiece"):
        (folder := tmp_path / kind).mkdir()
        _, learned, _ = _start(
            plan(dialogues, folder, f"vocabulary.kind={kind}", "data.skip_bad=true"), folder, said.append
        )
        assert type(learned.tokenizer.model).__name__.lower() == kind
    with pytest.raises(DataError, match=r"dialogues\.jsonl:61: "):
        pretrain(plan(dialogues, tmp_path / "strict", "train.steps=4"))


def test_a_resumed_run_may_change_its_length_and_its_memory_alone(tmp_path: Path) -> None:
    earlier = to_dict(plan(Path("a"), tmp_path))
    may_differ: dict[str, dict[str, Any]] = {
        "data": {"cache": "b"},
        "train": {"steps": 9, "minutes": 9.0, "checkpoint_steps": 9, "micro_batch_tokens": 99, "tensorboard": True},
    }
    other = {"data": {"max_valid": 9}, "train": {"batch_tokens": 301, "seed": 9}, "text": {"max_tokens": 23}}
    PRETRAINING.check_same(tmp_path, earlier, {**earlier, "output": "b"})
    for changes, refused in ((may_differ, False), (other, True)):
        for table, values in changes.items():
            for key, value in values.items():
                now = {**earlier, table: {**earlier[table], key: value}}
                refusal = pytest.raises(ConfigError, match=rf"{table}\.{key} = {earlier[table][key]} \(now {value}\)")
                with refusal if refused else nullcontext():
                    PRETRAINING.check_same(tmp_path, earlier, now)


@pytest.mark.deep
def test_a_finished_run_can_have_more_steps(dialogues: Path, tmp_path: Path) -> None:
    whole, cut = (plan(dialogues, tmp_path / name, "train.evaluate_steps=4") for name in ("whole", "cut"))
    pretrain(plan(dialogues, tmp_path / "whole", "train.evaluate_steps=4", "train.steps=8"))
    short = plan(dialogues, tmp_path / "cut", "train.evaluate_steps=4", "train.steps=4")
    pretrain(short)
    said: list[str] = []
    assert pretrain(short, resume=True, notify=said.append).fit.n_steps == 4
    assert said == [f"{tmp_path / 'cut'} is finished"]
    pretrain(cut, resume=True)
    states = [outcome(Path(recipe.output))[1:] for recipe in (cut, whole)]  # records hold the planned steps
    assert states[0] == states[1]
    with pytest.raises(ConfigError, match=r"train.lr = 0.001 \(now 0.1\)"):
        pretrain(plan(dialogues, tmp_path / "cut", "train.evaluate_steps=4", "train.lr=0.1"), resume=True)
    linear = 'train.schedule={kind="linear"}'
    pretrain(plan(dialogues, tmp_path / "linear", linear))
    with pytest.raises(ConfigError, match="rates"):
        pretrain(plan(dialogues, tmp_path / "linear", linear, "train.steps=9"), resume=True)


def test_other_texts_are_not_resumed(dialogues: Path, tmp_path: Path) -> None:
    """Neither texts to train on, nor those that choose the best step."""
    text, valid = dialogues.read_text("utf-8"), tmp_path / "valid.jsonl"
    valid.write_text(text, "utf-8")
    longer = plan(dialogues, tmp_path / "run", f"data.valid={valid}")
    recipe = plan(dialogues, tmp_path / "run", f"data.valid={valid}", "train.steps=4")
    pretrain(recipe)
    for name, file in (("train", dialogues), ("valid", valid)):
        file.write_text(text + text, "utf-8")
        for resumed in (recipe, longer):
            with pytest.raises(ConfigError, match=rf"data\.{name} changed since .*run was started: from "):
                pretrain(resumed, resume=True)
        file.unlink()
        with pytest.raises(DataError, match=rf"{file.name}: no such file"):
            pretrain(recipe, overwrite=True)
        assert (tmp_path / "run" / CHECKPOINT).exists()  # the earlier run stays
        file.write_text(text, "utf-8")
    assert pretrain(longer, resume=True).fit.n_steps == 8


def test_a_backbone_with_another_vocabulary_is_not_continued(
    dialogues: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """Its new weights do not count, because the checkpoint holds all weights."""
    backbone = Path(shutil.copytree(tiny_backbone, tmp_path / "backbone"))
    tables = {"model": {"backbone": str(backbone)}, "vocabulary": None}
    pretrain(plan(dialogues, tmp_path / "run", "train.steps=1", **tables))
    weights, vocabulary = backbone / "model.safetensors", backbone / "tokenizer.json"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0" * 4)
    longer, said = plan(dialogues, tmp_path / "run", "train.steps=2", **tables), list[int]()
    # with both options, the run is resumed
    fit = pretrain(longer, resume=True, overwrite=True, report=lambda record: said.append(record["step"])).fit
    assert (fit.n_steps, {*said}) == (2, {2})
    vocabulary.write_bytes(vocabulary.read_bytes() + b" ")
    with pytest.raises(ConfigError, match=rf"{backbone} changed since .*run was started: from "):
        pretrain(longer, resume=True)


def test_earlier_runs_and_others_folders_are_safe(dialogues: Path, tmp_path: Path) -> None:
    recipe = plan(dialogues, tmp_path / "run", "train.steps=2")
    pretrain(recipe)
    with pytest.raises(UsageError, match="pass `resume=True`"):
        pretrain(recipe)
    pretrain(recipe, overwrite=True)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    pretrain(recipe, overwrite=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes.txt"):
        pretrain(plan(dialogues, tmp_path / "other", "train.steps=2"))
    (model := tmp_path / "new" / "model").mkdir(parents=True)
    (model / "notes.txt").write_text("mine")
    said: list[str] = []
    with pytest.raises(UsageError, match=r"notes.txt"):
        pretrain(plan(dialogues, tmp_path / "new", "train.steps=2"), notify=said.append)
    assert said == []  # before any work


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_the_result_is_a_backbone_for_polyrank_and_transformers(
    kind: str, dialogues: Path, tmp_path: Path, task: dict[str, Path]
) -> None:
    recipe = plan(
        dialogues,
        tmp_path / "run",
        f"vocabulary.kind={kind}",
        "text.turn_separator=[NEWLINE]",
    )
    model = pretrain(recipe).model
    subwords, theirs = load_subwords(model), transformers.AutoTokenizer.from_pretrained(model)
    for text in ("My WiFi is down, please!", "unbelievably misunderstood[NEWLINE]hello"):
        ids = subwords.encode(text)
        assert theirs(text)["input_ids"] == [subwords.start_id, *ids, subwords.end_id]
    assert subwords.tokenizer.token_to_id("[NEWLINE]") in subwords.encode("a[NEWLINE]b")
    assert theirs.mask_token == "[MASK]"
    pair = theirs("hello", "red light", return_tensors="pt")
    assert pair["token_type_ids"][0].tolist() == [0] * (len(subwords.encode("hello")) + 2) + [1] * (
        len(subwords.encode("red light")) + 1
    )
    network = transformers.AutoModel.from_pretrained(model, add_pooling_layer=False).eval()
    with torch.no_grad():
        reference = network(**pair).last_hidden_state
        own = load_backbone(model).eval().network(**pair).last_hidden_state
    assert torch.allclose(own, reference, atol=1e-5)
    for what in ({"kind": "bi"}, {"kind": "poly", "n_codes": 4}, {"kind": "cross"}):
        (run,) = train(
            {
                "output": str(tmp_path / what["kind"]),
                "model": {**what, "backbone": str(model)},
                "data": {"train": str(task["train"])},
                "text": {"max_context_tokens": 16, "max_candidate_tokens": 12, "turn_separator": "[NEWLINE]"},
                "train": {"max_steps": 1, "batch_size": 4}
                | ({"method": {"kind": "listwise"}, "negatives": {"n": 2}} if what["kind"] == "cross" else {}),
            }
        )
        assert np.isfinite(load(run.model).score([["hello", "my wifi"]], [["hi", "thanks"]])).all()


def test_a_backbone_is_pretrained_further(mean_pooled_backbone: Path, dialogues: Path, tmp_path: Path) -> None:
    tables = {"model": {"backbone": str(mean_pooled_backbone)}}
    longest = load_backbone(mean_pooled_backbone).max_positions
    above = plan(dialogues, tmp_path / "x", f"text.max_tokens={longest + 1}", **tables, vocabulary=None)
    with pytest.raises(
        ConfigError, match=rf"max_tokens = {longest + 1} is above the backbone's longest input, {longest};"
    ):
        pretrain(above)
    recipe = load_pretrain_recipe(
        {
            "output": str(tmp_path / "run"),
            "data": {"train": str(dialogues)},
            "text": {"max_tokens": longest, "max_response_tokens": 10, "turn_separator": "[EOT]"},
            "train": {"steps": 4, "batch_tokens": 300, "precision": "fp32", "objectives": "joint", "dropout": 0.0},
            **tables,
        }
    )
    model = pretrain(recipe).model
    old, new = load_subwords(mean_pooled_backbone), load_subwords(model)
    assert (len(old), len(new)) == (len(old), len(old) + 1)
    assert new.encode("my wifi") == old.encode("my wifi")
    assert json.loads((model / "1_Pooling" / "config.json").read_text("utf-8"))["pooling_mode_mean_tokens"]
    before, after = (load_backbone(folder).network.state_dict() for folder in (mean_pooled_backbone, model))
    moved = {k: float((after[k][: len(v)] - v).abs().max()) for k, v in before.items()}
    assert 0 < max(moved.values()) < 0.01
    said = records(tmp_path / "run")
    assert {"masked_lm_loss", "masked_lm_accuracy", "next_utterance_loss", "next_utterance_accuracy"} <= said[0].keys()


def test_every_seed_is_validated_on_the_same_pairs_masks_and_random_responses(
    dialogues: Path,
    pairs: Pairs,
    subwords: Subwords,
    tiny_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a learning rate of 0, so the new heads, which depend on the seed, stay as they are."""
    changes = ["train.steps=1", "train.lr=0.0", "train.objectives=joint"]
    for seed in (1, 2):
        tables = {"model": {"backbone": str(tiny_backbone)}, "vocabulary": None}
        recipe = plan(dialogues, tmp_path / str(seed), *changes, f"train.seed={seed}", **tables)
        with monkeypatch.context() as patch:
            patch.setenv("POLYRANK_PRECISION", "bf16")  # the recipe sets another
            pretrain(recipe)
        same = PairBatches(pairs.first(20), subwords, recipe, VALID_SEED)
        expected = validate(pretraining_network(load_backbone(tiny_backbone), seed), same, CPU)
        assert expected["loss"] == pytest.approx(expected["masked_lm_loss"] + expected["next_utterance_loss"])
        assert records(tmp_path / str(seed))[-1]["valid"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.deep
def test_pretraining_learns(dialogues: Path, tmp_path: Path) -> None:
    recipe = plan(
        dialogues, tmp_path / "run", "train.steps=60", "train.lr=6e-3", "train.evaluate_steps=30", "train.dropout=0.0",
        "train.batch_tokens=1000", "train.schedule.warmup_steps=10",
    )  # fmt: skip
    pretrain(recipe)
    valid = [row["valid"] for row in records(tmp_path / "run") if "valid" in row]
    assert valid[-1]["masked_lm_accuracy"] > 0.2  # the most frequent token has a share of 1/20
    assert valid[-1]["masked_lm_loss"] < valid[0]["masked_lm_loss"]
    losses = [row["masked_lm_loss"] for row in records(tmp_path / "run") if "masked_lm_loss" in row]
    assert losses[0] == pytest.approx(math.log(150), abs=0.4)  # like a uniform guess among all subwords


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.heads=5", "hidden = 32 is not a multiple of heads = 5"),
        ("text.max_tokens=40", "above model.positions = 32"),
        ("text.max_tokens=13", "leaves no tokens for a context"),
        ("train.batch_tokens=10", "is less than one input"),
        ("train.betas=[0.9, 1.0]", "below 1"),
        ("train.schedule.kind=plateau", "is not one of"),
        ("train.epochs=3", "unknown key"),
        ("model.backbone=embedded", "model.layers applies to a network from scratch"),
    ],
)
def test_impossible_recipes(change: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(Path("a"), Path("b"), change)


@pytest.mark.parametrize("name", ["output", "data"])
def test_a_recipe_without_files_names_the_missing_key(name: str) -> None:
    values = {"output": "run", "data": {"train": "a.jsonl"}}
    del values[name]
    with pytest.raises(ConfigError, match=f'missing key "{name}"; add it'):
        load_pretrain_recipe(values)


def test_a_saved_backbone_names_no_folder_and_its_own_type(tiny_backbone: Path, tmp_path: Path) -> None:
    """Others read the weights in the type that the file states, and a path shows where it was made."""
    copied = Path(shutil.copytree(tiny_backbone, tmp_path / "copy"))
    values = json.loads((copied / "config.json").read_text("utf-8"))
    for kind in ("gelu", "relu"):  # polyrank's network, and that of transformers
        changes = {"_name_or_path": str(copied), "dtype": "float16", "hidden_act": kind}
        (copied / "config.json").write_text(json.dumps(values | changes), "utf-8")
        save_backbone(tmp_path / "m", load_backbone(copied), load_subwords(copied))
        saved = json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))
        assert (saved["dtype"], saved["architectures"], str(copied) in str(saved)) == ("float32", ["BertModel"], False)
        texts = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text("utf-8"))
        assert "token_type_ids" in texts["model_input_names"]


@pytest.mark.parametrize("dropout", [None, 0.3])
def test_new_words_of_a_continued_backbone_depend_on_the_seed(tiny_backbone: Path, dropout: float | None) -> None:
    words = []
    for seed in (1, 2, 2):
        backbone, subwords, _ = continued_backbone(
            ContinuedModel(backbone=str(tiny_backbone)), "[EOT]", dropout=dropout, seed=seed
        )
        assert {module.p for module in backbone.modules() if isinstance(module, torch.nn.Dropout)} == {dropout or 0.1}
        table: Any = backbone.embeddings()
        words.append(table.weight[subwords.id_of("[EOT]")].tolist())
    assert words[0] != words[1] == words[2]


@pytest.mark.deep
def test_the_command(dialogues: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'output = "run"\n[model]\nlayers = 1\nhidden = 16\nheads = 1\nffn = 16\npositions = 32\n'
        '[vocabulary]\nsize = 150\n[data]\ntrain = "dialogues.jsonl"\n'
        "[text]\nmax_tokens = 24\nmax_response_tokens = 10\n[train]\nsteps = 50\n"
        "batch_tokens = 200\n"
    )
    done = processes.run("pretrain", recipe, "--json", "--threads", "1")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["n_steps"], Path(result["model"])) == (50, tmp_path / "run" / "model")
    assert "step 50/50: words" in done.stderr
    assert "tokens/s" in done.stderr
    again = processes.run("pretrain", recipe)
    assert (again.returncode, "Traceback" in again.stderr) == (2, False)
    assert processes.run("pretrain", recipe, "--resume").returncode == 0
    wrong = processes.run("pretrain", recipe, "--overwrite", "--set", "data.train=nothing.jsonl")
    assert wrong.returncode == 3
    assert "nothing.jsonl" in wrong.stderr


def test_a_saved_backbone_replaces_only_a_backbone(tiny_backbone: Path, tmp_path: Path) -> None:
    backbone, subwords = load_backbone(tiny_backbone), load_subwords(tiny_backbone)
    save_backbone(tmp_path / "m", backbone, subwords)
    save_backbone(tmp_path / "m", backbone, subwords)
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes.txt"):
        save_backbone(tmp_path / "m", backbone, subwords)
