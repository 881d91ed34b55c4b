"""Requests to rank, score or compare texts, in the formats of other services, and the answers."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import AliasChoices, BaseModel, Discriminator, Field, JsonValue, Tag, model_validator
from pydantic_core import PydanticCustomError

from polyrank.serving.dialects.fields import CohereMeta, Dialect, Document, Flag, Number, text_of
from polyrank.serving.wire import RequestId, ScoreRequest, ServedName, Text, TextList, Usage

Documents = Annotated[
    list[Text | Document],
    Field(
        min_length=1, fail_fast=True, description="Candidates: texts, or objects with a text.", examples=[["pay it"]]
    ),
]
Activation = Annotated[
    Flag,
    Field(
        validation_alias=AliasChoices("activation", "use_activation"),
        description="false: raw scores instead of numbers from 0 to 1.",
    ),
]
TopN = Annotated[Number | None, Field(ge=0, description="Number of results; 0 or null: all.")]
ReturnTexts = Annotated[Flag, Field(description="Whether results include the texts.")]


class Shape(NamedTuple):
    """The shape of a dialect's answers.

    Args:
        rows: the field of the results; empty: the answer is their list.
        score, text: fields of a result.
        nested: whether the text is in an object.
        raw: whether scores are raw.
        more: further fields of the answer.
    """

    rows: str = "results"
    score: str = "relevance_score"
    text: str = "document"
    nested: bool = False
    raw: bool = False
    more: Mapping[str, JsonValue] = {}


class Rerank(Dialect):
    """In the format of Cohere, Jina, vLLM, SiliconFlow and Xinference."""

    shape: ClassVar[Shape] = Shape(nested=True)
    query: Text | Document = Field(description="A context of one turn.", examples=["my wifi is down"])
    documents: Documents
    top_n: TopN = None
    return_documents: ReturnTexts = False
    raw_scores: Flag = Field(
        default=False,
        validation_alias=AliasChoices("raw_scores", "return_raw_scores"),
        description="Return raw scores instead of numbers from 0 to 1.",
    )
    activation: Activation = True
    max_chunks_per_doc: Number | None = Field(None, ge=1, description="Chunks that are read of a long document.")
    rank_fields: list[str] | None = Field(None, description="Must be text, if documents are objects.")

    @model_validator(mode="after")
    def _ranks_texts(self) -> "Rerank":
        if self.rank_fields not in (None, ["text"]) and not all(isinstance(one, str) for one in self.documents):
            raise PydanticCustomError("rank_fields", 'rank_fields ranks other fields than text; send ["text"]')
        return self

    @property
    def raw(self) -> bool:
        """Whether scores are raw."""
        return self.shape.raw or self.raw_scores or not self.activation

    def answer(self, ranked: Sequence[tuple[int, float]], rest: Mapping[str, Any]) -> Any:
        """The answer to positions with their scores; ``rest`` has the fields that do not depend on the dialect."""
        results = self._results(self.shape, ranked)
        if not self.shape.rows:
            return results
        # without a number, Voyage's requests may have the same fields as Cohere's
        both = {"data": self._results(VoyageRerank.shape, ranked)} if type(self) is Rerank and not self.top_n else {}
        return {**self.shape.more, self.shape.rows: results, **both, **rest}

    def _results(self, shape: Shape, ranked: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for row, score in ranked[: self.top_n or None]:
            results.append({"index": row, shape.score: score})
            if self.return_documents:
                text = text_of(self.documents[row])
                results[-1][shape.text] = {"text": text} if shape.nested else text
        return results


class InfinityRerank(Rerank):
    """In the format of Infinity, whose documents are strings."""

    shape: ClassVar[Shape] = Shape()


class TeiRerank(Rerank):
    """In the format of text-embeddings-inference."""

    names_models: ClassVar[bool] = False
    shape: ClassVar[Shape] = Shape("", "score", "text")
    documents: Documents = Field(alias="texts")
    return_documents: ReturnTexts = Field(default=False, alias="return_text")


class VoyageRerank(Rerank):
    """In the format of Voyage."""

    shape: ClassVar[Shape] = Shape("data", more={"object": "list"})
    top_n: TopN = Field(None, alias="top_k")


class MixedbreadRerank(Rerank):
    """In the format of mixedbread."""

    shape: ClassVar[Shape] = Shape("data", "score", "input", more={"object": "list"})
    documents: Documents = Field(alias="input")
    top_n: TopN = Field(None, alias="top_k")
    return_documents: ReturnTexts = Field(default=False, alias="return_input")


class NvidiaRerank(Rerank):
    """In the format of NVIDIA, whose scores are raw."""

    shape: ClassVar[Shape] = Shape("rankings", "logit", "text", raw=True)
    documents: Documents = Field(alias="passages")
    top_n: TopN = Field(None, validation_alias=AliasChoices("top_n", "top_k"))


class DashScopeRerank(Rerank):
    """In the format of DashScope, whose fields and results are nested."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, body: Any) -> Any:
        parts = [{"model": body.get("model")}, body["input"], body.get("parameters")]
        return {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}

    def answer(self, ranked: Sequence[tuple[int, float]], rest: Mapping[str, Any]) -> Any:
        """See ``Rerank``."""
        return {"output": {"results": self._results(self.shape, ranked)}, "request_id": rest["id"], **rest}


def _dialect(body: Any) -> str:
    sent = set(body) if isinstance(body, dict) else set()
    if isinstance(body, dict) and isinstance(body.get("input"), dict):
        return "DashScope"
    told_by = {"texts": "Tei", "passages": "Nvidia", "input": "Mixedbread", "top_k": "Voyage"}
    if "documents" in sent:
        told_by = {"top_n": "Cohere", "top_k": "Voyage", "truncation": "Voyage", "documents": "Cohere"}
    return next((dialect for field, dialect in told_by.items() if field in sent), "Cohere")


Reranks = Annotated[
    Annotated[TeiRerank, Tag("Tei")]
    | Annotated[DashScopeRerank, Tag("DashScope")]
    | Annotated[NvidiaRerank, Tag("Nvidia")]
    | Annotated[MixedbreadRerank, Tag("Mixedbread")]
    | Annotated[VoyageRerank, Tag("Voyage")]
    | Annotated[Rerank, Tag("Cohere")],
    Discriminator(_dialect),
]


class VllmScore(Dialect):
    """In the format of vLLM: a text and texts, or pairs of texts."""

    first: Text | TextList = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"), description="A context, or one for each text_2."
    )
    second: Text | TextList = Field(
        validation_alias=AliasChoices("text_2", "documents", "items", "data_2"), description="Candidates."
    )
    activation: Activation = True


def _scores(body: Any) -> str:
    return "Vllm" if isinstance(body, dict) and {"text_1", "queries", "data_1"} & set(body) else "Own"


Scores = Annotated[Annotated[ScoreRequest, Tag("Own")] | Annotated[VllmScore, Tag("Vllm")], Discriminator(_scores)]


class Sentences(Dialect):
    """A text, and texts to compare with it."""

    source_sentence: Text = Field(description="A context of one turn.")
    sentences: TextList = Field(min_length=1, description="Candidates.")


class TeiSimilarity(Dialect):
    """In the format of text-embeddings-inference."""

    names_models: ClassVar[bool] = False
    inputs: Annotated[Sentences, Field(description="A text, and texts to compare with it.")]


class CohereResult(BaseModel):
    """A document and its score."""

    index: int = Field(description="Position in the request's documents, from 0.")
    relevance_score: float = Field(description="From 0 to 1, in the order of the scores; with raw_scores, the score.")
    document: dict[str, JsonValue] | None = Field(None, description="Its text, with return_documents.")


class CohereRerankAnswer(BaseModel):
    """Documents, best first."""

    id: RequestId
    model: ServedName
    results: list[CohereResult] = Field(description="Best first.")
    meta: CohereMeta
    usage: Usage


class TeiResult(BaseModel):
    """A text and its score."""

    index: int = Field(description="Position in the request's texts, from 0.")
    score: float = Field(description="From 0 to 1, in the order of the scores; with raw_scores, the score.")
    text: str | None = Field(None, description="Its text, with return_text.")
