"""A common hand-written server for reranking and embeddings around sentence-transformers; see ``serving.py``.

Start it in this folder: uvicorn usual_app:app
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
def rerank(request: Rerank) -> dict[str, object]:
    scores = ranker.predict([(request.query, document) for document in request.documents])
    order = scores.argsort()[::-1]
    return {"results": [{"index": int(row), "relevance_score": float(scores[row])} for row in order]}


@app.post("/v1/embeddings")
def embeddings(request: Embeddings) -> dict[str, object]:
    vectors = encoder.encode(request.input)
    return {"data": [{"index": row, "embedding": vector.tolist()} for row, vector in enumerate(vectors)]}
