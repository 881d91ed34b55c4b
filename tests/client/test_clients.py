"""Unmodified third-party clients with a real server, alone and inside their frameworks."""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import polyrank
from polyrank.scorers.open import load_encoder
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.encoder import EncoderTerm
from servers import Running, serving

pytestmark = [
    pytest.mark.deep,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # the libraries' own warnings
]

os.environ.update(HF_HUB_OFFLINE="1", HAYSTACK_TELEMETRY_ENABLED="False")  # before their import
KEY = "a-key-that-is-long-enough"
DOCUMENTS = ["hello hi", "restart the router", "pay the bill"]
QUERY = "my wifi is down"
SIDES = "shipped:convert"  # with different networks for contexts and candidates
ASKED = "i need help"
REPLIES = [
    "did you restart the router ?", "is the light red ?", "my wifi is down too", "you can pay the bill online",
    "thanks , bye", "how can i help you ?", "i love pizza", "the wifi is down in your street", "ok , i will try that",
    "sorry to hear that",
]  # fmt: skip


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Collect garbage, since clients leave sockets open: their warnings belong to this test, not the next."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def backbone(tiny_backbone: Path) -> str:
    return f"untuned:{tiny_backbone}"


@pytest.fixture(scope="module")
def server(backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "keys.txt").write_text(f"# of the tests\n{KEY}\n")
    encoder = load_encoder(SIDES, device="cpu")
    Ranker([(EncoderTerm(encoder), [5.0])] * 2).save(folder / "sum")
    served = (f"support={backbone}", f"sides={SIDES}", f"sum={folder / 'sum'}")
    with serving(*served, "--api-key-file", folder / "keys.txt") as running:
        yield running


@pytest.fixture(scope="module")
def scores(backbone: str) -> list[float]:
    return polyrank.load(backbone).score([QUERY], [DOCUMENTS])[0].tolist()


@pytest.fixture(scope="module")
def order(scores: list[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda row: -scores[row])


def relevances(scores: list[float], order: list[int]) -> "pytest.approx":  # type: ignore[valid-type]
    return pytest.approx([0.5 + scores[row] / (2 + 2 * abs(scores[row])) for row in order], abs=1e-5)


def test_cohere(server: Running, scores: list[float], order: list[int], backbone: str) -> None:
    import cohere

    client = cohere.ClientV2(api_key=KEY, base_url=server.url)
    ranked = client.rerank(model="support", query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [result.index for result in ranked.results] == order[:2]
    assert [result.relevance_score for result in ranked.results] == relevances(scores, order[:2])
    vectors = client.embed(
        model="support", texts=DOCUMENTS, input_type="search_document", embedding_types=["float"]
    ).embeddings.float_
    expected = polyrank.load(backbone).encode_candidates(DOCUMENTS)  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.array(vectors), expected, atol=1e-5)
    with pytest.raises(cohere.core.api_error.ApiError) as error:
        cohere.ClientV2(api_key="wrong", base_url=server.url).rerank(model="support", query="a", documents=["b"])
    assert error.value.status_code == 401


def test_the_first_version_of_cohere(server: Running, order: list[int]) -> None:
    import cohere

    ranked = cohere.Client(api_key=KEY, base_url=server.url).rerank(
        model="support", query=QUERY, documents=[{"text": text} for text in DOCUMENTS], return_documents=True
    )
    assert [result.document.text for result in ranked.results] == [DOCUMENTS[row] for row in order]


def test_openai(server: Running, backbone: str) -> None:
    import openai

    client = openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1")
    rows = client.embeddings.create(model="support", input=DOCUMENTS).data
    expected = polyrank.load(backbone).encode_candidates(DOCUMENTS)  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.array([row.embedding for row in rows]), expected, atol=1e-5)
    assert [model.id for model in client.models.list()] == ["support", "sides", "sum"]
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.embeddings.create(model="nobody", input="a")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(api_key="wrong", base_url=f"{server.url}/v1").models.list()


def test_errors_are_those_of_the_real_services(server: Running) -> None:
    import cohere
    import openai

    client = openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0)
    stranger = openai.OpenAI(api_key="another-key-that-is-long", base_url=f"{server.url}/v1", max_retries=0)
    for fields in ({"input": [1, 2]}, {"input": ["a"] * 2_049}, {"input": "a", "encoding_format": "int8"}):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="support", **fields)  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError, match="is not served"):
        client.embeddings.create(model="nobody", input="a")
    with pytest.raises(openai.AuthenticationError):
        stranger.embeddings.create(model="support", input="a")
    long = {"model": "support", "input_type": "search_document", "texts": ["hello " * 2_000]}
    for reranker in (cohere.Client(KEY, base_url=server.url), cohere.ClientV2(KEY, base_url=server.url)):
        with pytest.raises(cohere.NotFoundError):
            reranker.rerank(model="nobody", query=QUERY, documents=DOCUMENTS)
        with pytest.raises(cohere.BadRequestError, match="exceeds the limit"):
            reranker.embed(**long, truncate="NONE")


def test_many_requests_at_once(server: Running, order: list[int]) -> None:
    import asyncio

    import cohere

    async def rerank() -> list[list[int]]:
        async with cohere.AsyncClientV2(KEY, base_url=server.url) as client:
            calls = (client.rerank(model="support", query=QUERY, documents=DOCUMENTS) for _ in range(12))
            return [[result.index for result in answer.results] for answer in await asyncio.gather(*calls)]

    assert asyncio.run(rerank()) == [order] * 12


def test_langchain(server: Running, order: list[int], backbone: str) -> None:
    from langchain_cohere import CohereRerank
    from langchain_core.documents import Document
    from langchain_openai import OpenAIEmbeddings

    compressor = CohereRerank(cohere_api_key=KEY, base_url=server.url, model="support", top_n=2)
    kept = compressor.compress_documents([Document(text) for text in DOCUMENTS], QUERY)
    assert [document.page_content for document in kept] == [DOCUMENTS[row] for row in order[:2]]
    settings = {"api_key": KEY, "base_url": f"{server.url}/v1", "model": "support"}
    embeddings = OpenAIEmbeddings(check_embedding_ctx_length=False, **settings)
    expected = polyrank.load(backbone).encode_candidates(DOCUMENTS)  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.array(embeddings.embed_documents(DOCUMENTS)), expected, atol=1e-5)


def test_llama_index(server: Running, order: list[int]) -> None:
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.embeddings.openai import OpenAIEmbedding
    from llama_index.postprocessor.cohere_rerank import CohereRerank

    nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
    ranker = CohereRerank(api_key=KEY, base_url=server.url, model="support", top_n=2)
    kept = ranker.postprocess_nodes(nodes, query_str=QUERY)
    assert [node.node.text for node in kept] == [DOCUMENTS[row] for row in order[:2]]  # type: ignore[attr-defined]
    embedding = OpenAIEmbedding(api_key=KEY, api_base=f"{server.url}/v1", model_name="support")
    assert len(embedding.get_text_embedding("hello")) == 32


def test_haystack(server: Running, order: list[int]) -> None:
    from haystack import Document
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.cohere import CohereRanker

    ranker = CohereRanker(model="support", api_key=Secret.from_token(KEY), api_base_url=server.url, top_k=10)
    ranked = ranker.run(query=QUERY, documents=[Document(content=text) for text in DOCUMENTS])["documents"]
    assert [document.content for document in ranked] == [DOCUMENTS[row] for row in order]


def test_hugging_face(server: Running) -> None:
    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=f"{server.url}/embed", token=KEY)
    assert client.feature_extraction("hello").shape == (1, 32)


def test_inside_langchain(order: list[int], backbone: str, tmp_path: Path) -> None:
    from langchain_core.documents import Document

    from polyrank.integrations.langchain import PolyrankReranker, PolyrankRetriever

    reranker = PolyrankReranker(scorer=polyrank.load(backbone), top_n=2)
    documents = [Document(text, id=f"d{row}", metadata={"row": row}) for row, text in enumerate(DOCUMENTS)]
    kept = reranker.compress_documents(documents, QUERY)
    assert [document.metadata["row"] for document in kept] == order[:2]
    assert [document.id for document in kept] == [f"d{row}" for row in order[:2]]
    polyrank.build_index(tmp_path / "index", backbone, [{"text": t, "metadata": {"row": t[0]}} for t in DOCUMENTS])
    with polyrank.open(tmp_path / "index") as replies:
        expected = [reply.text for reply in replies.answer(QUERY, 2).ranked]
        retriever = PolyrankRetriever(replies=replies, k=2)
        assert [document.page_content for document in retriever.invoke(QUERY)] == expected
        retriever = PolyrankRetriever(replies=replies, filter='row = "p"')
        assert [document.page_content for document in retriever.invoke(QUERY)] == ["pay the bill"]


def test_inside_haystack(order: list[int], backbone: str, tmp_path: Path) -> None:
    from haystack import Document, Pipeline

    from polyrank.integrations.haystack import PolyrankRanker, PolyrankRetriever

    polyrank.build_index(tmp_path / "index", backbone, DOCUMENTS)
    with polyrank.open(tmp_path / "index") as opened:
        pipeline = Pipeline()
        pipeline.add_component("retriever", PolyrankRetriever(opened, top_k=3))
        pipeline.add_component("ranker", PolyrankRanker(polyrank.load(backbone), top_k=2))
        pipeline.connect("retriever", "ranker")
        result = pipeline.run({"retriever": {"query": QUERY}, "ranker": {"query": QUERY}})["ranker"]["documents"]
    assert [document.content for document in result] == [DOCUMENTS[row] for row in order[:2]]
    ranked = PolyrankRanker(polyrank.load(backbone)).run(QUERY, [Document(content=text) for text in DOCUMENTS])
    assert [document.content for document in ranked["documents"]] == [DOCUMENTS[row] for row in order]
    with pytest.raises(polyrank.UsageError, match="k = 0"):
        PolyrankRanker(polyrank.load(backbone), top_k=2).run(QUERY, [Document(content="hi")], top_k=0)


def ordered(query: Sequence[float], candidates: Sequence[Sequence[float]]) -> list[str]:
    """Replies ordered by the products of the two sides' vectors."""
    return [REPLIES[row] for row in np.argsort(-(np.array(candidates) @ np.array(query)), kind="stable")]


def by_openai(url: str) -> list[str]:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(api_key=KEY, base_url=f"{url}/v1")
    query = client.embeddings.create(model="sides:query", input=ASKED).data[0].embedding
    rows = client.embeddings.create(model="sides:candidate", input=REPLIES).data
    return ordered(query, [row.embedding for row in rows])


def by_cohere(url: str) -> list[str]:
    cohere = pytest.importorskip("cohere")
    client = cohere.ClientV2(api_key=KEY, base_url=url)
    query = client.embed(model="sides", texts=[ASKED], input_type="search_query", embedding_types=["float"])
    rows = client.embed(model="sides", texts=REPLIES, input_type="search_document", embedding_types=["float"])
    return ordered(query.embeddings.float_[0], rows.embeddings.float_)


def by_the_first_cohere(url: str) -> list[str]:
    cohere = pytest.importorskip("cohere")
    client = cohere.Client(api_key=KEY, base_url=url)
    query = client.embed(model="sides", texts=[ASKED], input_type="search_query")
    rows = client.embed(model="sides", texts=REPLIES, input_type="search_document")
    return ordered(query.embeddings[0], rows.embeddings)


def by_langchain_openai(url: str) -> list[str]:
    OpenAIEmbeddings = pytest.importorskip("langchain_openai").OpenAIEmbeddings
    settings = {"api_key": KEY, "base_url": f"{url}/v1", "check_embedding_ctx_length": False}
    rows = OpenAIEmbeddings(model="sides:candidate", **settings).embed_documents(REPLIES)
    return ordered(OpenAIEmbeddings(model="sides:query", **settings).embed_query(ASKED), rows)


def by_langchain_cohere(url: str) -> list[str]:
    embeddings = pytest.importorskip("langchain_cohere").CohereEmbeddings
    stores = pytest.importorskip("langchain_core.vectorstores")
    store = stores.InMemoryVectorStore(embeddings(cohere_api_key=KEY, base_url=url, model="sides"))
    store.add_texts(REPLIES)
    return [document.page_content for document in store.similarity_search(ASKED, k=len(REPLIES))]


def by_llama_index(url: str) -> list[str]:
    core = pytest.importorskip("llama_index.core")
    embedding = pytest.importorskip("llama_index.embeddings.openai").OpenAIEmbedding
    settings = {"api_key": KEY, "api_base": f"{url}/v1"}
    nodes = [core.schema.TextNode(text=text) for text in REPLIES]
    index = core.VectorStoreIndex(nodes, embed_model=embedding(model_name="sides:candidate", **settings))
    query = embedding(model_name="sides:query", **settings)
    return [node.text for node in index.as_retriever(embed_model=query, similarity_top_k=len(REPLIES)).retrieve(ASKED)]


def in_haystack(query: "object", candidates: "object") -> list[str]:
    from haystack import Document
    from haystack.components.retrievers import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore()
    store.write_documents(candidates.run([Document(content=text) for text in REPLIES])["documents"])  # type: ignore[attr-defined]
    vector = query.run(ASKED)["embedding"]  # type: ignore[attr-defined]
    found = InMemoryEmbeddingRetriever(store, top_k=len(REPLIES)).run(vector)["documents"]
    return [document.content for document in found]


def by_haystack_openai(url: str) -> list[str]:
    embedders = pytest.importorskip("haystack.components.embedders")
    from haystack.utils import Secret

    settings = {"api_key": Secret.from_token(KEY), "api_base_url": f"{url}/v1"}
    return in_haystack(
        embedders.OpenAITextEmbedder(model="sides:query", **settings),
        embedders.OpenAIDocumentEmbedder(model="sides:candidate", progress_bar=False, **settings),
    )


def by_haystack_cohere(url: str) -> list[str]:
    embedders = pytest.importorskip("haystack_integrations.components.embedders.cohere")
    from haystack.utils import Secret

    settings = {"api_key": Secret.from_token(KEY), "api_base_url": url, "model": "sides"}
    documents = embedders.CohereDocumentEmbedder(progress_bar=False, **settings)
    return in_haystack(embedders.CohereTextEmbedder(truncate="START", **settings), documents)


def by_hugging_face(url: str) -> list[str]:
    client = pytest.importorskip("huggingface_hub").InferenceClient(base_url=f"{url}/embed?model=sides", token=KEY)
    query = client.feature_extraction(ASKED, prompt_name="query", truncate=True, truncation_direction="left")
    return ordered(query[0], client.feature_extraction(REPLIES))


@pytest.mark.parametrize(
    "ranked",
    [
        by_openai, by_cohere, by_the_first_cohere, by_langchain_openai, by_langchain_cohere, by_llama_index,
        by_haystack_openai, by_haystack_cohere, by_hugging_face,
    ],
)  # fmt: skip
def test_vectors_of_both_sides_rank_like_the_model(server: Running, ranked: Callable[[str], list[str]]) -> None:
    """Encoding a query like a candidate would result in another order."""
    model = polyrank.load(SIDES)
    scores = model.score([ASKED], [REPLIES])[0]
    expected = [REPLIES[row] for row in np.argsort(-scores)]
    candidates = model.encode_candidates([ASKED, *REPLIES])  # type: ignore[attr-defined]
    assert ordered(candidates[0], candidates[1:]) != expected
    assert ranked(server.url) == expected


def test_large_scores_keep_their_order_and_differences(server: Running) -> None:
    """A sigmoid would map all of them to 1.0, so that the answer would keep the request's order."""
    cohere = pytest.importorskip("cohere")
    scores = 10 * polyrank.load(SIDES).score([ASKED], [REPLIES])[0]
    assert (1 / (1 + np.exp(-scores.astype(np.float32))) == 1).all()
    documents = [REPLIES[row] for row in np.argsort(scores)]  # the worst first
    ranked = cohere.ClientV2(api_key=KEY, base_url=server.url).rerank(model="sum", query=ASKED, documents=documents)
    assert [result.index for result in ranked.results] == list(range(len(REPLIES)))[::-1]
    shares = [result.relevance_score for result in ranked.results]
    assert shares == sorted(set(shares), reverse=True)
    back = [(share - 0.5) / (1 - share) for share in shares]  # inverse of 1/2 + x / (2 + 2x)
    np.testing.assert_allclose(np.array(back), np.sort(scores)[::-1], rtol=1e-3)
