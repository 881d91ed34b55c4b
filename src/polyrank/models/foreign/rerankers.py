"""Language models that rank: by the logit of a token after a prompt, which a plain folder does not state.

Two are known by name. Others are read as sentence-transformers reads them: "yes" against "no" after a chat template
with the roles query and document.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompting:
    """How a language model ranks a pair.

    Args:
        token: whose logit is the score.
        against: whose logit is subtracted; None: none.
        template: a chat template of the pair; None: the tokenizer's own.
        prefixes: instead of a template: of the context and of the candidate.
        parts: with prefixes: texts between the two texts and after them, each tokenized alone.
        activation: of the score.
    """

    token: str = "yes"
    against: str | None = "no"
    template: str | None = None
    prefixes: tuple[str, str] = ("", "")
    parts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    activation: str = "torch.nn.modules.activation.Sigmoid"


KNOWN = {
    ("qwen3", "qwen3-reranker"): Prompting(
        template="""\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer \
can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {{ messages[0].content }}
<Document>: {{ messages[1].content }}<|im_end|>
<|im_start|>assistant
<think>

</think>{{ '\\n\\n' }}"""
    ),
    ("gemma", "bge-reranker-v2-gemma"): Prompting(
        token="Yes",
        against=None,
        prefixes=("A: ", "B: "),
        parts=(
            ("\n",),
            (
                "\n",
                "Given a query A and a passage B, determine whether the passage contains an answer to the query by"
                " providing a prediction of either 'Yes' or 'No'.",
            ),
        ),
        activation="torch.nn.modules.linear.Identity",
    ),
}
"""By their type and a part of their names. Sources: the models' cards on the Hugging Face Hub."""


def prompting_of(folder: Path, config: Mapping[str, Any]) -> Prompting | None:
    """The prompting of a model by its type, and by the name of its folder, of its cache or in its config.json.

    >>> prompting_of(Path("Qwen3-Reranker-0.6B"), {"model_type": "qwen3"}).token
    'yes'
    """
    where, kind = folder.resolve(), config.get("model_type")
    places = f"{where.name} {where.parent.parent.name} {config.get('_name_or_path')}".lower()
    return next((how for (of, name), how in KNOWN.items() if of == kind and name in places), None)
