"""A server for reranking and embeddings as people write it around sentence-transformers; ``speed.py`` has its rivals.

uvicorn usual_app:app, in this folder.
"""

from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import CrossEncoder, SentenceTransformer

from polyrank.loading.backbones import resolve_backbone

FOLDER = str(resolve_backbone("embedded").folder)
encoder = SentenceTransformer(FOLDER, device="cpu")
ranker = CrossEncoder(FOLDER, num_labels=1, device="cpu")
app = FastAPI()


class Rerank(BaseModel):
    query: str
    documents: list[str]


class Embeddings(BaseModel):
    input: list[str]


@app.get("/ready")
def ready() -> str:
    return "ready"


@app.post("/v1/rerank")
def rerank(asked: Rerank) -> dict[str, object]:
    scores = ranker.predict([(asked.query, document) for document in asked.documents])
    order = scores.argsort()[::-1]
    return {"results": [{"index": int(row), "relevance_score": float(scores[row])} for row in order]}


@app.post("/v1/embeddings")
def embeddings(asked: Embeddings) -> dict[str, object]:
    vectors = encoder.encode(asked.input)
    return {"data": [{"index": row, "embedding": vector.tolist()} for row, vector in enumerate(vectors)]}
