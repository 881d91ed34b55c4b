"""Static embeddings: a vector for each token, whatever the others are. The fastest encoders, as a network of no layers.

Shapes: B texts, T tokens, D dimensions, V words.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Self

import torch
from torch import Tensor, nn

from polyrank.errors import ArtifactError
from polyrank.models.bert import PlainConfig, empty_table, resize_table
from polyrank.storage.tensors import read_file
from polyrank.text import load_tokenizer

STATIC = "static"  # the type in a model's configuration
LONGEST = 2**16  # tokens of a text: no network limits them


class StaticNetwork(nn.Module):
    """A table of word vectors.

    Args:
        config: its ``hidden_size`` (D), ``vocab_size`` (V), and ``pad_token_id``, whose vector is zero.

    Source: Tulkens and van Dongen, Model2Vec: Fast State-of-the-Art Static Embeddings (2024).
    """

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self.config = config
        self.words = empty_table(config.vocab_size, config.hidden_size, config.pad_token_id)

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """``last_hidden_state`` ``[B, T, D]`` from ids ``[B, T]``."""
        return SimpleNamespace(last_hidden_state=self.words(input_ids))

    def get_input_embeddings(self) -> nn.Embedding:
        """The table."""
        return self.words

    def resize_token_embeddings(self, n_words: int, **_: object) -> None:
        """Resize the table; the caller sets the vectors of new words."""
        resize_table(self.words, n_words)
        self.config.vocab_size = n_words

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The table of a folder of sentence-transformers or model2vec.

        Raises:
            ArtifactError: a file is damaged, or the table does not fit the vocabulary.
        """
        padding: int = load_tokenizer(folder).pad_token_id
        try:
            tensors, _ = read_file(folder / "model.safetensors")
            if (table := tensors.get("embedding.weight")) is None:  # model2vec's names
                table = tensors["embeddings"]
                if (rows := tensors.get("mapping")) is not None:
                    table = table[rows.long()]
                if (weights := tensors.get("weights")) is not None:
                    table = table.float() * weights[:, None]
            if len(table) < padding:
                raise ValueError(f"{len(table)} vectors for {padding} tokens")
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ArtifactError(f"the word vectors in {folder} are damaged ({error}); download them again") from error
        sizes = {"hidden_size": table.shape[1], "vocab_size": max(len(table), padding + 1), "pad_token_id": padding}
        network = cls(PlainConfig(model_type=STATIC, max_position_embeddings=LONGEST, **sizes))
        with torch.no_grad():
            network.words.weight.zero_()[: len(table)] = table
            network.words.weight[padding] = 0.0
        return network.eval()
