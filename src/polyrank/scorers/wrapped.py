"""An Encoder around another one, which reads the texts."""

from pathlib import Path
from typing import Any

from polyrank.errors import ArtifactError
from polyrank.records import ContextLike
from polyrank.scorers.network import NetworkScorer
from polyrank.scorers.protocols import Encoder
from polyrank.text.cut import Cut


class WrappedEncoder(Encoder):
    """Reports what ``encoder``, the one inside, reads and truncates."""

    encoder: Encoder

    def n_context_tokens(self, context: ContextLike) -> int | None:
        """How many tokens of a context the inner encoder reads."""
        return self.encoder.n_context_tokens(context)

    @property
    def networks(self) -> tuple[NetworkScorer[Any], ...]:
        """The networks of the inner encoder."""
        return self.encoder.networks

    @property
    def cut(self) -> tuple[Cut, ...]:
        """The texts that the inner encoder truncated."""
        return self.encoder.cut


def check_encoder(path: Path, encoder: Encoder, fingerprint: str, remedy: str) -> None:
    """Refuse the inner encoder of a folder if it has changed since.

    Args:
        path: the folder.
        encoder: the one that the folder names.
        fingerprint: of the encoder for which the folder was made.
        remedy: what the user can do, for the message.

    Raises:
        ArtifactError: the fingerprints differ.
    """
    if encoder.fingerprint != fingerprint:
        raise ArtifactError(
            f"{path} was made for encoder {fingerprint[:12]}, {encoder.name} is {encoder.fingerprint[:12]}; {remedy}"
        )
