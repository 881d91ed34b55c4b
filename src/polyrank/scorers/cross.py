"""A Cross-encoder bound to its text policy, device and precision: a Scorer."""

from collections.abc import Sequence

import numpy as np
import torch

from polyrank.models import CrossEncoder
from polyrank.models.exported import ExportedCross
from polyrank.records import Context
from polyrank.scorers.encoder import inference, token_batches, tokens_per_batch
from polyrank.scorers.protocols import Floats
from polyrank.text import Texts, pad


class CrossScorer:
    """A Cross-encoder as a Scorer. Small batches of pairs stay in the processor's cache.

    Args:
        model: the network.
        texts: its text policy at work.
        fingerprint: names the model; empty while training.
        device: where to compute.
        dtype: of the large products; results are fp32.
        max_tokens: padded tokens per batch; None: what suits the device.
    """

    def __init__(
        self,
        model: CrossEncoder | ExportedCross,
        texts: Texts,
        *,
        fingerprint: str = "",
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        max_tokens: int | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.model, self.texts, self.fingerprint = model, texts, fingerprint
        self.dtype, self.max_tokens = dtype, max_tokens or tokens_per_batch(self.device)

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        pairs = [(c, text) for c, texts in zip(contexts, candidates, strict=True) for text in texts]
        rows = [self.texts.pair_ids(context, text) for context, text in pairs]
        flat = np.empty(len(rows), np.float32)
        for batch in token_batches([len(ids) for ids, _ in rows], self.max_tokens):
            ids, segments = [rows[i][0] for i in batch], [rows[i][1] for i in batch]
            tokens = pad(ids, segments, pad_id=self.texts.subwords.pad_id)
            with inference(self.model, self.device, self.dtype):
                flat[batch] = self.model(tokens.to(self.device)).float().cpu().numpy()
        ends = np.cumsum([len(texts) for texts in candidates])
        return [flat[end - len(texts) : end] for end, texts in zip(ends, candidates, strict=True)]

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``. Costs B x N passes of the network."""
        return np.stack([self.score([context], [pool])[0] for context in contexts])

    def forget(self) -> None:
        """Nothing is remembered."""
