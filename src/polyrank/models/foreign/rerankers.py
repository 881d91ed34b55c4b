"""Language models that rank: by the logit of a token after a prompt, which a plain folder does not state.

Some are known by name. Others are read as sentence-transformers reads them: "yes" against "no" after a chat template
with the roles query and document.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompting:
    """How a language model ranks a pair.

    Args:
        model_type: of the network; empty: any.
        token: whose logit is the score.
        against: whose logit is subtracted; empty: none.
        template: a chat template of the pair; None: the tokenizer's own.
        prefixes: instead of a template: of the context and of the candidate.
        parts: with prefixes: texts before, between and after the two texts, each tokenized alone.
        activation: of the score.
    """

    model_type: str = ""
    token: str = "yes"
    against: str = "no"
    template: str | None = None
    prefixes: Sequence[str] = ("", "")
    parts: Sequence[Sequence[str]] = ()
    activation: str = "torch.nn.modules.activation.Sigmoid"


KNOWN = {
    name: Prompting(**values)
    for name, values in tomllib.loads((Path(__file__).parent / "rerankers.toml").read_text("utf-8")).items()
}
"""By a part of their names: published re-rankers whose folders do not state the prompt."""


def prompting_of(folder: Path, config: Mapping[str, Any]) -> Prompting | None:
    """The prompting of a model by its type, and by the name of its folder, of its cache or in its config.json.

    >>> prompting_of(Path("Qwen3-Reranker-0.6B"), {"model_type": "qwen3"}).token
    'yes'
    """
    where, kind = folder.resolve(), config.get("model_type")
    places = f"{where.name} {where.parent.parent.name} {config.get('_name_or_path')}".lower()
    return next((how for name, how in KNOWN.items() if how.model_type == kind and name in places), None)
