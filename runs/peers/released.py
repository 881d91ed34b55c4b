"""Small models with random weights, saved by ParlAI's own code, and the scores that it gives them.

    PYTHONPATH=ParlAI python runs/peers/released.py tests/runs/parlai

Writes a Bi-, a Poly- and a Cross-encoder in the form of ParlAI's files, and expected.json with token ids and scores.
tests/runs/test_parlai.py compares them with those of the imported models. Needs subword-nmt and a checkout of
https://github.com/facebookresearch/ParlAI.
"""

import argparse
import collections
import io
import json
from pathlib import Path
from typing import Any

import torch
from parlai.agents.transformer.crossencoder import CrossEncoderModule
from parlai.agents.transformer.modules import TransformerMemNetModel
from parlai.agents.transformer.polyencoder import PolyEncoderModule
from parlai.core.dict import DictionaryAgent
from parlai.core.opt import Opt
from parlai.utils.torch import concat_without_padding, padded_tensor
from subword_nmt import learn_bpe

WORDS = """my wifi is down hello hi thanks the router light red green please restart it did that bill too high how can
i help you today have restarted your due on monday we are open from nine to five what time do close closed"""
CONTEXTS = [
    ["Hi", "my WIFI is down!"],
    ["hello there, how can I help?", "the router's light is red", "did you restart it?", "I did, thanks. 42 times…"],
    ["naïve Zürich 東京", "when do you close on Monday?" * 8],
]
CANDIDATES = ["Have you restarted the router?", "Your bill is due on monday.", "we close at five", "thanks"]
SETTINGS = {
    "embedding_size": 16, "ffn_size": 24, "n_layers": 2, "n_heads": 2, "n_positions": 64, "n_segments": 2,
    "variant": "xlm", "activation": "gelu", "embeddings_scale": False, "learn_positional_embeddings": True,
    "learn_embeddings": True, "share_encoders": False, "share_word_embeddings": False, "output_scaling": 0.5,
    "dropout": 0.1, "attention_dropout": 0.1, "relu_dropout": 0.0, "memory_attention": "sqrt",
    "normalize_sent_emb": False, "use_memories": False, "wrap_memory_encoder": False, "text_truncate": 30,
    "label_truncate": 16, "polyencoder_type": "codes", "poly_n_codes": 5, "poly_attention_type": "basic",
    "poly_attention_num_heads": 4, "codes_attention_type": "basic", "codes_attention_num_heads": 4,
    "dict_tokenizer": "bpe", "dict_lower": True, "dict_endtoken": "__start__",
}  # fmt: skip
KINDS: dict[str, Any] = {"bi": TransformerMemNetModel, "poly": PolyEncoderModule, "cross": CrossEncoderModule}


def write_vocabulary(path: Path) -> None:
    """Merges learned from the words above, and a dictionary of their tokens that lacks some, by count."""
    text = " ".join([WORDS, *(" ".join(context) for context in CONTEXTS), *CANDIDATES, "__newln__ " * 4]).lower()
    words = DictionaryAgent.re_tokenize(text)
    merges = io.StringIO()
    learn_bpe.learn_bpe(io.StringIO(" ".join(words)), merges, 60, min_frequency=2)
    Path(f"{path}.codecs").write_text(merges.getvalue(), "utf-8")
    path.write_text("", "utf-8")
    dictionary = DictionaryAgent(Opt({"dict_file": str(path), "dict_tokenizer": "bpe", "dict_lower": True}))
    counts = collections.Counter(token for word in words for token in dictionary.tokenize(word))
    listed = [f"{token}\t{n}\n" for token, n in counts.most_common() if n > 1]
    path.write_text("".join(["__null__\t4\n", "__start__\t3\n", "__unk__\t1\n", *listed]), "utf-8")


def ids(dictionary: Any, text: str, truncate: int, *, context: bool) -> list[int]:
    """As ParlAI's agents cut: a context before its boundary tokens are added, a candidate afterwards."""
    start, tokens = dictionary["__start__"], dictionary.txt2vec(text)
    return [start, *tokens[-truncate:], start] if context else [start, *tokens, start][:truncate]


def score(kind: str, model: Any, contexts: list[list[int]], candidates: list[list[int]]) -> torch.Tensor:
    """``[B, K]``: each context with every candidate."""
    left, right = padded_tensor(contexts)[0], padded_tensor(candidates)[0]
    if kind == "bi":
        one, other = model(left, None, right)
        return one @ other.T  # type: ignore[no-any-return]  # ParlAI is untyped
    if kind == "poly":
        vectors, mask, _ = model(ctxt_tokens=left)
        _, _, encoded = model(cand_tokens=right[:, None])
        each = encoded.expand(len(right), len(left), -1).transpose(0, 1).contiguous()
        return model(ctxt_rep=vectors, ctxt_rep_mask=mask, cand_rep=each)  # type: ignore[no-any-return]  # untyped
    pairs = left.repeat_interleave(len(right), 0), right.repeat(len(left), 1)
    return model(*concat_without_padding(*pairs, False, 0)).view(len(left), len(right))  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    expected: dict[str, Any] = {"contexts": CONTEXTS, "candidates": CANDIDATES}
    write_vocabulary(folder / "bi.dict")
    for number, (kind, network) in enumerate(KINDS.items()):
        path = folder / kind
        for ending in (".dict", ".dict.codecs"):
            Path(f"{path}{ending}").write_bytes((folder / f"bi{ending}").read_bytes())
        settings = SETTINGS | {"reduction_type": "first" if kind == "cross" else "mean"}
        dictionary = DictionaryAgent(Opt({**settings, "dict_file": f"{path}.dict"}))
        torch.manual_seed(number)
        model = network(Opt(settings), dictionary, 0) if kind != "bi" else network(Opt(settings), dictionary)
        with torch.no_grad():
            for parameter in model.parameters():  # normalisations and biases too differ from what they start as
                parameter.add_(0.3 * torch.randn_like(parameter))
            for table in (module for module in model.modules() if isinstance(module, torch.nn.Embedding)):
                if table.padding_idx is not None:
                    table.weight[table.padding_idx] = 0
            model.eval()
            left = [ids(dictionary, "\n".join(turns), settings["text_truncate"], context=True) for turns in CONTEXTS]
            right = [ids(dictionary, text, settings["label_truncate"], context=False) for text in CANDIDATES]
            expected[kind] = {"contexts": left, "candidates": right, "scores": score(kind, model, left, right).tolist()}
        torch.save({"model": model.state_dict()}, path)
        Path(f"{path}.opt").write_text(json.dumps(settings, indent=1), "utf-8")
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
