"""The page at ``/`` in a real browser, with a real server."""

import getpass
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

import polyrank
from polyrank.config.models import CrossConfig, PolyConfig, TextPolicy
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.ranking.abstention import Abstention
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Term
from polyrank.serving.page import FOLDER, POLICY
from servers import Running, serving

api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.deep, pytest.mark.skipif(CHROMIUM is None, reason="apt install chromium")]

SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
PATIENCE_MS = 30_000
NASTY = '<img src=x onerror="window.bad = 1"> <script>window.bad = 1</script> & "quotes"'
REPLIES = ["restart the router", "pay the bill", "the light is red", "hello hi", "thanks", "did that", NASTY]
LONG = "wifi" * 60
expect = api.expect
expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Watched:
    """A page, and its recorded problems.

    Args:
        page: the page in a new window.
        url: URL of the server.
        problems: script errors, and requests to other servers.
        expected: parts of errors that the test causes, which the browser may report at any time until the end.
    """

    page: Any
    url: str = ""
    problems: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("request", self._watch)

    def _watch(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.problems.append(request.url)

    def open(self, server: Running, view: str = "chat") -> Any:
        """Open the address that the server prints, then a view, and wait until the list of models is loaded."""
        self.url = server.url
        self.page.goto(f"{server.url}/#key={server.key}")
        self.page.wait_for_url(f"{server.url}/")  # without the key
        self.page.goto(f"{server.url}/#{view}")
        expect(self.page.locator("#model option").first).to_be_attached()
        return self.page


@pytest.fixture(scope="module")
def paths(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Indexes of a Bi- and a Poly-encoder and of a ranker whose threshold rejects every answer, and a model."""
    folder = tmp_path_factory.mktemp("page")
    candidates = [
        polyrank.Candidate(f"r{i}", text, {"team": "billing" if "bill" in text else "tech"})
        for i, text in enumerate(REPLIES)
    ]
    polyrank.build_index(folder / "support", polyrank.load(f"untuned:{tiny_backbone}"), candidates)
    policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=12)
    for name, kind in (("cross", CrossConfig), ("codes", PolyConfig)):
        model, texts, config = new_model(kind(backbone=str(tiny_backbone)), policy, seed=1, sample=REPLIES)
        save_model(folder / name, model, texts, config)
    polyrank.build_index(folder / "poly", folder / "codes", candidates)
    first, second = (polyrank.load(name) for name in (f"untuned:{tiny_backbone}", str(folder / "cross")))
    terms: list[tuple[Term, list[float]]] = [(EncoderTerm(first), [1.0]), (CrossTerm(second), [1.0])]
    polyrank.Ranker(terms, n_retrieved=4, abstention=Abstention("score", 1e9)).save(folder / "best")
    polyrank.build_index(folder / "stages", folder / "best", candidates)
    served = {name: str(folder / name) for name in ("support", "poly", "stages")}
    return served | {"ranker": f"untuned:{tiny_backbone}"}


@pytest.fixture(scope="module")
def server(paths: dict[str, str]) -> Iterator[Running]:
    with serving(*(f"{name}={path}" for name, path in paths.items())) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    """A page 1280 pixels wide that must end without problems."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    watched = Watched(context.new_page())
    yield watched
    context.close()
    assert [problem for problem in watched.problems if not any(part in problem for part in watched.expected)] == []


NGINX = """user {user}; daemon off; pid {folder}/pid; error_log stderr; events {{}}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port};
    location /support/ {{ proxy_pass {server}/; }}
    location /desk/ {{ proxy_pass http://unix:{socket}; }}
  }}
}}
"""


@pytest.fixture(scope="module")
def proxy(server: Running, paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """nginx, which removes one prefix from paths, and keeps another for a server at a Unix socket."""
    if (nginx := shutil.which("nginx")) is None:
        pytest.skip("apt install nginx-light")
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "serve.toml").write_text(f'prefix = "/desk"\nhost = "unix:{folder}/polyrank.sock"\n', "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = NGINX.format(
        user=getpass.getuser(), folder=folder, port=port, server=server.url, socket=folder / "polyrank.sock"
    )
    (folder / "nginx.conf").write_text(text, "utf-8")
    with (
        serving(f"support={paths['support']}", "--config", folder / "serve.toml"),
        subprocess.Popen([nginx, "-c", folder / "nginx.conf"], stderr=subprocess.DEVNULL) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=60) as client:
            client.get(f"{url}/support/live").raise_for_status()
        yield url
        process.terminate()


@pytest.mark.parametrize("prefix", ["support", "desk"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_below_a_prefix(watched: Watched, proxy: str, prefix: str, width: int) -> None:
    watched.page.set_viewport_size({"width": width, "height": 800})
    page, watched.url = watched.page, f"{proxy}/{prefix}"
    page.goto(f"{watched.url}/#chat")
    expect(page.locator("#model option").first).to_be_attached()
    send_turn(page, "hello")
    page.get_by_role("button", name="Why reply 1").click()
    expect(page.locator(".why")).to_be_visible()
    for view, shown_first in (("Catalogue", ".candidate"), ("Figures", ".served")):
        page.get_by_role("link", name=view).click()
        expect(page.locator(shown_first).first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        httpx.post(f"{proxy}/{prefix}/v1/score", json={"context": "hi", "candidates": ["a"]}, timeout=60).status_code
        == 200
    )


def send_turn(page: Any, text: str) -> None:
    """Send a customer's turn and wait for the answer."""
    page.get_by_label("Customer message").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#turns li").last.locator("p")).to_have_text(text)
    expect(page.locator(".panel[aria-busy]")).to_have_count(0, timeout=90_000)  # other tests may keep the cores busy
    expect(page.locator(".take").first).to_be_visible()


def shown(page: Any, panel: int = 0) -> list[str]:
    """The replies of a panel, best first."""
    texts: list[str] = page.locator(".panel").nth(panel).locator(".take .text").all_inner_texts()
    return texts


def turns(page: Any) -> list[str]:
    """The texts of all turns."""
    texts: list[str] = page.locator("#turns p").all_inner_texts()
    return texts


def best(path: str, context: list[str], k: int = 5) -> list[str]:
    """The library's answer."""
    with polyrank.open(path) as replies:
        return [reply.text for reply in replies.answer(context, k, diverse=True).ranked]


def test_a_reply_is_sent_and_taken_back(watched: Watched, server: Running, paths: dict[str, str]) -> None:
    page = watched.open(server)
    send_turn(page, "my wifi is down")
    replies = shown(page)
    assert replies == best(paths["support"], ["my wifi is down"])
    expect(page.locator(".facts")).to_contain_text("exact")
    page.get_by_role("button", name=f"Take reply 2 {replies[1]}").click()
    expect(page.locator("#turns li")).to_have_count(2)
    assert turns(page) == ["my wifi is down", replies[1]]
    expect(page.locator(".note")).to_have_text("It is the customer's turn.")
    expect(page.get_by_label("Customer message")).to_be_focused()
    send_turn(page, "the light is red")
    assert shown(page) == best(paths["support"], ["my wifi is down", replies[1], "the light is red"])
    page.get_by_role("button", name="Remove turn 2").click()
    expect(page.locator("#turns li")).to_have_count(2)
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#turns li")).to_have_count(2)
    assert turns(page) == ["my wifi is down", replies[1]]
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.locator("#turns li")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#turns li")).to_have_count(2)


def test_a_reply_is_edited_before_it_is_sent(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    send_turn(page, "my wifi is down")
    (first, *_) = shown(page)
    page.get_by_role("button", name="Edit reply 1").click()
    expect(page.get_by_label("Agent message")).to_have_value(first)
    page.get_by_label("Agent message").press_sequentially(" please")
    page.keyboard.press("Enter")
    expect(page.locator("#turns li.agent p")).to_have_text(f"{first} please")
    expect(page.get_by_label("Customer message")).to_have_value("")


def test_a_reply_with_gaps_is_sent_when_they_are_filled(
    watched: Watched, paths: dict[str, str], tmp_path: Path
) -> None:
    text = "{customer}, {order} comes on {date}"
    pool = [polyrank.Candidate("slots", text, {"gaps": ["date"]})]
    polyrank.build_index(tmp_path / "index", "shipped:convert", pool)
    (tmp_path / "serve.toml").write_text('[feedback]\nfile = "feedback.db"\nkeep_text = true\n', "utf-8")
    with serving(f"index={tmp_path / 'index'}", "--config", tmp_path / "serve.toml") as running:
        page = watched.open(running)
        send_turn(page, "I'm Zoe, where is AR-12345?")
        assert shown(page) == ["Zoe, AR-12345 comes on {date}"]
        expect(page.locator(".take mark")).to_have_text("{date}")
        page.get_by_role("button", name="Take reply 1").click()
        field = page.get_by_label("Agent message")
        expect(page.locator("#gaps")).to_contain_text("Fill {date}")
        page.keyboard.press("Enter")  # not before the gap is filled
        expect(page.locator("#turns li")).to_have_count(1)
        page.keyboard.type("3 May")  # over the selected gap
        expect(field).to_have_value("Zoe, AR-12345 comes on 3 May")
        with page.expect_request("**/v1/feedback") as sent:
            page.keyboard.press("Enter")
        assert sent.value.post_data_json["action"] == "taken"
        expect(page.locator("#turns li.agent p")).to_have_text("Zoe, AR-12345 comes on 3 May")
        send_turn(page, "and AR-12346?")
        page.get_by_role("button", name="Take reply 1").click()
        page.get_by_role("button", name="send it as it is").click()
        expect(page.locator("#turns li.agent p").last).to_have_text("Zoe, {order} comes on {date}")


def test_why_colours_the_librarys_tokens(watched: Watched, server: Running, paths: dict[str, str]) -> None:
    context = [
        "hi 🙂🙂",
        "🙂 my wifi is down 🙂 please restart it",
    ]  # UTF-16 offsets differ from code points
    page = watched.open(server)
    send_turn(page, context[0])
    send_turn(page, context[1])
    page.get_by_role("button", name="Why reply 1").click()
    expect(page.locator(".why")).to_be_visible()
    with polyrank.open(paths["support"]) as replies:
        why = replies.explain(context, shown(page)[0])
    for row, turn in enumerate(why.turns):
        texts = page.locator(".why-turns li").nth(row).locator(".token").all_inner_texts()
        assert texts == [token.text for token in turn.tokens]
        assert page.locator(".why-turns li").nth(row).locator(".heat").inner_text() == turn.text
    kinds = [
        "raises" if "raises" in one else "lowers"
        for one in page.locator(".why-turns .token").evaluate_all("all => all.map(one => one.className)")
    ]
    assert kinds == ["lowers" if token.share < 0 else "raises" for turn in why.turns for token in turn.tokens]
    expect(page.locator(".why-total")).to_contain_text(f"Score {why.score:.3f}")
    page.get_by_text("As a table").click()
    n_tokens = sum(len(turn.tokens) for turn in why.turns) + len(why.candidate.tokens)
    expect(page.locator(".as-table tbody tr")).to_have_count(n_tokens)
    page.get_by_role("button", name="Why reply 1").click()
    expect(page.locator(".why")).to_be_hidden()


def test_of_a_poly_encoder_the_strongest_vectors_are_shown(
    watched: Watched, server: Running, paths: dict[str, str]
) -> None:
    page = watched.open(server)
    page.get_by_label("Model").select_option("poly")
    send_turn(page, "my wifi is down")
    page.get_by_role("button", name="Why reply 1").click()
    vectors = page.locator(".why-turns").nth(1).locator("li")
    expect(vectors).to_have_count(4)
    with polyrank.open(paths["poly"]) as replies:
        why = replies.explain("my wifi is down", shown(page)[0])
    for row, vector in zip(vectors.all(), why.vectors, strict=False):
        expect(row).to_contain_text(f"Vector {vector.index + 1}")
        expect(row).to_contain_text(f"looks at {vector.tokens[0].text or 'boundary'} ")


def test_two_stages_show_both_scores_and_that_no_answer_is_good(
    watched: Watched, server: Running, paths: dict[str, str]
) -> None:
    page = watched.open(server)
    page.get_by_label("Model").select_option("stages")
    send_turn(page, "my wifi is down")
    assert shown(page) == best(paths["stages"], ["my wifi is down"])
    expect(page.locator(".note")).to_contain_text("No good answer")
    page.get_by_role("button", name="Why reply 1").click()
    expect(page.locator(".card").first).to_contain_text("retriever")
    expect(page.locator(".card").first).to_contain_text("re-ranker")
    for number in (1, 2):
        expect(page.get_by_role("heading", name=f"Term {number} ")).to_be_visible()


def test_two_models_answer_side_by_side(watched: Watched, server: Running, paths: dict[str, str]) -> None:
    page = watched.open(server)
    send_turn(page, "hello")
    page.get_by_text("Settings").click()
    page.get_by_label("Compare with").select_option("stages")
    expect(page.locator(".panel h2")).to_have_text(["support", "stages"])
    expect(page.locator(".panel").nth(1).locator(".take").first).to_be_visible()
    expect(page.locator(".panel[aria-busy]")).to_have_count(0)
    assert [shown(page, 0), shown(page, 1)] == [best(paths[name], ["hello"]) for name in ("support", "stages")]
    left, right = (page.locator(".panel").nth(i).bounding_box() for i in (0, 1))
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] == right["y"]
    reply = shown(page, 1)[1]
    page.locator(".panel").nth(1).locator(".take").nth(1).click()
    expect(page.locator("#turns li.agent p")).to_have_text(reply)


def test_a_model_without_a_catalogue_ranks_given_candidates(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    page.get_by_label("Model").select_option("ranker")
    page.get_by_label("Replies to rank").fill("pay the bill\nthanks\n\nthe light is red")
    page.get_by_label("Customer message").fill("the light is green")
    page.keyboard.press("Enter")
    expect(page.locator(".take")).to_have_count(3)
    with server.client() as client:
        texts = ["pay the bill", "thanks", "the light is red"]
        body = {"model": "ranker", "context": "the light is green", "candidates": texts}
        scores = client.post("/v1/score", json=body).json()["scores"]
    assert shown(page) == [text for _, text in sorted(zip(scores, texts, strict=True), reverse=True)]
    page.get_by_role("link", name="Catalogue").click()
    expect(page.locator("#catalogue-error")).to_contain_text("has no catalogue")


def test_the_next_answer_reflects_a_change_of_the_catalogue(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    send_turn(page, "did it restart did it restart")  # near the new reply for any weights, but not equal to it
    page.get_by_role("link", name="Catalogue").click()
    expect(page.locator("#n-candidates")).to_have_text("7 replies")
    page.get_by_role("button", name="Add a reply").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Text").fill("did it restart")
    dialog.get_by_label("Metadata").fill("[1]")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not a JSON object")
    order = 2**53 + 1  # not representable as a JavaScript number
    dialog.get_by_label("Metadata").fill(json.dumps({"order": order, "team": "new"}))
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#n-candidates")).to_have_text("8 replies")
    id_ = page.locator(".candidate.new code").inner_text()

    def stored() -> dict[str, Any]:
        with server.client() as client:
            row: dict[str, Any] = client.get(f"/v1/candidates/{id_}").json()
            return row

    assert stored() == {"id": id_, "text": "did it restart", "metadata": {"order": order, "team": "new"}}
    page.get_by_role("link", name="Chat").click()
    expect(page.locator(".take .text").first).to_have_text("did it restart")
    expect(page.locator(".card").first).to_contain_text("team: new")

    page.get_by_role("link", name="Catalogue").click()
    page.get_by_label("Search").fill("DID restart")
    expect(page.locator(".candidate")).to_have_count(1)
    page.get_by_role("button", name=f"Edit {id_}").click()
    dialog.get_by_label("Text").fill("it did restart, thanks")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator(".candidate .text")).to_have_text("it did restart, thanks")
    assert stored() == {"id": id_, "text": "it did restart, thanks", "metadata": {"order": order, "team": "new"}}

    page.get_by_role("button", name=f"Remove {id_}").click()
    expect(page.locator("#n-candidates")).to_have_text("0 of 7 replies")
    expect(page.get_by_role("button", name=f"Undo removing {id_}")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#n-candidates")).to_have_text("1 of 8 replies")
    assert stored()["metadata"] == {"order": order, "team": "new"}
    page.get_by_role("button", name=f"Remove {id_}").click()
    expect(page.locator("#n-candidates")).to_have_text("0 of 7 replies")
    page.get_by_role("link", name="Chat").click()
    expect(page.locator(".take .text", has_text="did restart")).to_have_count(0)
    assert len(shown(page)) == 5


def test_bars_are_proportional_and_scores_are_in_the_details(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    send_turn(page, "my wifi is down")
    with server.client() as client:
        answer = client.post(
            "/v1/respond", json={"model": "support", "context": ["my wifi is down"], "k": 5, "diverse": True}
        )
        answer = answer.json()
    scores = [reply["score"] for reply in answer["results"]]
    assert min(scores) > 0, "this network's cosines are positive, so that the scale starts at 0"
    widths = page.locator(".card > .meter").evaluate_all(
        "all => all.map(one => one.firstChild.getBoundingClientRect().width / one.getBoundingClientRect().width)"
    )
    assert widths == pytest.approx([score / scores[0] for score in scores], abs=0.01)
    gaps = [(scores[0] - score) / scores[0] for score in scores[1:]]
    words = ["close to" if gap <= 0.05 else "behind" if gap <= 0.3 else "far behind" for gap in gaps]
    expect(page.locator(".standing")).to_have_text(["the best", *(f"{one} the first" for one in words)])
    expect(page.locator(".card").first).not_to_contain_text(f"{scores[0]:.3f}")
    page.get_by_role("button", name="Why reply 1").click()
    expect(page.locator(".why-slot").first).to_contain_text(f"Score {scores[0]:.3f}")


@pytest.mark.parametrize(
    ("scores", "bars"),
    [
        ([12.6, 12.5], [[0, 1], [0, 12.5 / 12.6]]),
        ([-2, -8], [[0.75, 1], [0, 1]]),
        ([3, -1], [[0.25, 1], [0, 0.25]]),
        ([0, 0], [[0, 0], [0, 0]]),
    ],
)
def test_the_scale_of_bars_includes_zero(
    scores: list[float], bars: list[list[float]], watched: Watched, server: Running
) -> None:
    page = watched.open(server)
    drawn = page.evaluate(
        "async all => { const { scaleOf } = await import('/page/replies.js'); return all.map(scaleOf(all)) }", scores
    )
    assert [one == pytest.approx(bar) for one, bar in zip(drawn, bars, strict=True)] == [True] * len(bars)


def test_why_starts_with_the_largest_share_even_of_a_special_token(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    begin = """async ([turns, rest]) => {
        const { explained } = await import('/page/why.js');
        const text = share => ({ text: "hi", share, tokens: [{ text: "hi", start: 0, end: 2, share }] });
        const why = { score: 1, exact: true, turns: turns.map(text), background: [], rest, candidate: text(1) };
        return explained(why).querySelector(".why-total").textContent;
    }"""
    assert "Most comes from no word, such as boundary marks (+0.700)." in page.evaluate(begin, [[0.1, 0.2], 0.7])
    assert "Most comes from turn 2 (+0.700)." in page.evaluate(begin, [[0.1, 0.7], 0.2])


def test_why_shows_the_weight_of_each_part_of_a_sum(watched: Watched, server: Running) -> None:
    sum_of = """async names => {
        const { explained } = await import('/page/why.js');
        const text = { text: "hi", share: 1, tokens: [] };
        const part = { score: 1, turns: [text], background: [], rest: 0, candidate: text };
        const parts = Object.fromEntries(names.map((name, i) => [name, { ...part, weight: [1, 0.25, null][i] }]));
        return [...explained({ ...part, parts }).querySelectorAll(":scope > h4")].map(one => one.textContent);
    }"""
    page = watched.open(server)
    titles = ["Term 1 bi (weight 1)", "Term 2 count (weight 0.25)", "Term 3 other"]
    assert page.evaluate(sum_of, ["1 bi", "2 count", "3 other"])[-3:] == titles


def test_removed_rows_stay_in_place_and_each_comes_back(watched: Watched, server: Running) -> None:
    page = watched.open(server, "catalogue")
    rows = page.locator("#rows > li")
    expect(rows).to_have_count(7)
    before = rows.all_inner_texts()
    page.get_by_role("button", name="Remove r1").dblclick()  # removes only this row, not the next one that moves up
    expect(page.locator("#n-candidates")).to_have_text("6 replies")
    page.get_by_role("button", name="Remove r3").click()
    expect(page.locator("#n-candidates")).to_have_text("5 replies")
    expect(rows).to_have_count(7)
    expect(rows.nth(1)).to_contain_text("Removed r1")
    expect(rows.nth(3)).to_contain_text("Removed r3")
    page.get_by_role("button", name="Undo removing r1").click()
    expect(page.locator("#n-candidates")).to_have_text("6 replies")
    page.get_by_role("button", name="Undo removing r3").click()
    expect(page.locator("#n-candidates")).to_have_text("7 replies")
    assert rows.all_inner_texts() == before


def test_the_catalogue_is_filtered_exported_and_imported(watched: Watched, server: Running, tmp_path: Path) -> None:
    page = watched.open(server, "catalogue")
    expect(page.locator("#n-candidates")).to_have_text("7 replies")
    page.get_by_label("Filter by metadata").fill('team = "billing"')
    expect(page.locator("#n-candidates")).to_have_text("1 of 7 replies")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    row = {"id": "r1", "text": "pay the bill", "metadata": {"team": "billing"}}
    assert [json.loads(line) for line in Path(download.value.path()).read_text("utf-8").splitlines()] == [row]
    page.get_by_label("Filter by metadata").fill("")
    expect(page.locator("#n-candidates")).to_have_text("7 replies")

    long = "please wait " * 60
    file = tmp_path / "more.jsonl"
    file.write_text(json.dumps({"id": "n1", "text": long, "metadata": {"team": "new"}}) + "\n\n", "utf-8")
    page.locator("#import-file").set_input_files(file)
    expect(page.locator("#n-candidates")).to_have_text("8 replies")
    page.get_by_label("Search").fill("n1")
    expect(page.locator("#n-candidates")).to_have_text("1 of 8 replies")
    folded = page.locator(".candidate .text").bounding_box()["height"]
    page.get_by_role("button", name="Show all").click()
    assert page.locator(".candidate .text").bounding_box()["height"] > folded
    page.get_by_role("button", name="Remove n1").click()
    expect(page.locator("#n-candidates")).to_have_text("0 of 7 replies")

    file.write_text('{"text": "fine"}\n{"words": 1}\n', "utf-8")
    page.locator("#import-file").set_input_files(file)
    expect(page.locator("#catalogue-error")).to_contain_text("Line 2 is not a JSON object")
    expect(page.locator("#n-candidates")).to_have_text("0 of 7 replies")
    assert page.locator("#import-file").input_value() == ""  # otherwise the corrected file could not be chosen again


def test_an_edit_does_not_replace_that_of_another_user(watched: Watched, server: Running) -> None:
    def save(text: str) -> None:
        with server.client() as client:
            rows = [{"id": "shared", "text": text, "metadata": {"team": "other"}}]
            client.post("/v1/candidates", json={"candidates": rows, "replace": True}).raise_for_status()

    save("one")
    page = watched.open(server, "catalogue")
    page.get_by_role("button", name="Edit shared").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Text").fill("mine")
    save("theirs")
    dialog.get_by_role("button", name="Save").click()
    changed = 'to “theirs” with the metadata {"team":"other"}. Save again to replace it.'
    expect(dialog.locator("#editor-error")).to_contain_text(changed)
    with server.client() as client:
        assert client.get("/v1/candidates/shared").json()["text"] == "theirs"
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        assert client.get("/v1/candidates/shared").json()["text"] == "mine"
        page.get_by_role("button", name="Edit shared").click()
        client.delete("/v1/candidates/shared")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.locator("#editor-error")).to_contain_text(
            "removed this reply meanwhile. Save again to restore it"
        )
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        assert client.get("/v1/candidates/shared").json()["text"] == "mine"
        client.delete("/v1/candidates/shared")
    watched.expected = ("status of 412", "status of 404")


def test_a_late_answer_does_not_close_the_next_dialog(watched: Watched, server: Running) -> None:
    page = watched.open(server, "catalogue")
    held: list[Any] = []
    page.route("**/v1/candidates", lambda route: held.append(route))
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Edit r1").click()
    with page.expect_request("**/v1/candidates"):
        dialog.get_by_role("button", name="Save").click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Edit r2").click()
    dialog.get_by_label("Text").fill("a long text")
    held[0].fulfill(json={"ids": ["r1"], "n_candidates": 7})
    expect(page.locator("#toast")).to_have_text("Changed.")
    expect(dialog.get_by_label("Text")).to_have_value("a long text")
    expect(dialog).to_be_visible()


def test_a_search_while_a_reply_is_removed(watched: Watched, server: Running) -> None:
    page = watched.open(server, "catalogue")
    held: list[Any] = []
    page.route("**/v1/candidates/remove", lambda route: held.append(route))
    with page.expect_request("**/v1/candidates/remove"):
        page.get_by_role("button", name="Remove r1").click()
    page.get_by_label("Search").fill("r3")
    expect(page.locator("#n-candidates")).to_have_text("1 of 7 replies")
    held[0].fulfill(json={"n_removed": 1, "n_candidates": 6})
    expect(page.locator("#toast")).to_have_text("Removed.")
    expect(page.locator("#n-candidates")).to_have_text("1 of 6 replies")


def test_waiting_for_a_server_ends_with_its_request(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    page.route("**/live", lambda _: None)  # never answers
    begin = """async () => {
        const { whenBack } = await import('/page/api.js');
        const controller = new AbortController();
        setTimeout(() => controller.abort(), 2500); // while the check waits for an answer
        const late = new Promise((resolve) => setTimeout(resolve, 6000, 'still waits'));
        return Promise.race([late, whenBack(controller.signal).catch((error) => error.name)]);
    }"""
    assert page.evaluate(begin) == "AbortError"


def test_no_change_reaches_the_catalogue_of_another_model(watched: Watched, server: Running, tmp_path: Path) -> None:
    page = watched.open(server, "catalogue")
    expect(page.locator("#rows > li")).to_have_count(7)
    imported: list[str] = []

    def choose_another_model(route: Any) -> None:
        body = route.request.post_data_json
        imported.append(body["model"])
        if len(imported) == 1:
            page.evaluate(
                "() => { const model = document.getElementById('model'); model.value = 'poly';"
                " model.dispatchEvent(new Event('change')); }"
            )
        if len(imported) < 3:
            route.fulfill(json={"ids": [], "n_candidates": 7})
        else:
            route.fulfill(status=409, json={"error": {"message": "an id exists already", "code": "exists"}})

    page.route("**/v1/candidates", choose_another_model)
    file = tmp_path / "many.txt"
    file.write_text("".join(f"reply {i}\n\n" for i in range(250)), "utf-8")
    page.locator("#import-file").set_input_files(file)
    expect(page.locator("#catalogue-error")).to_have_text(
        "The first 200 replies were added, the others were not. An id exists already"
    )
    assert imported == ["support"] * 3
    page.route("**/v1/candidates?*", lambda route: route.abort())
    watched.expected = ("ERR_FAILED", "status of 409")
    page.get_by_label("Model").select_option("stages")
    expect(page.locator("#catalogue-error")).to_contain_text("The server does not answer")
    expect(page.locator("#rows > li")).to_have_count(0)


def test_a_first_visit_offers_example_turns(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    examples = page.locator("#example-turns button")
    expect(examples).to_have_count(3)
    text = examples.first.inner_text()
    examples.first.click()
    expect(page.locator(".take").first).to_be_visible()
    assert turns(page) == [text]
    expect(page.locator("#examples")).to_be_hidden()


@pytest.mark.parametrize("by_itself", [False, True])
def test_the_chat_recovers_after_an_outage(by_itself: bool, watched: Watched, server: Running) -> None:
    page = watched.open(server)
    for path in ("**/v1/respond", "**/live"):
        page.route(path, lambda route: route.abort())
    page.get_by_label("Customer message").fill("my wifi is down")
    page.keyboard.press("Enter")
    expect(page.locator(".note")).to_contain_text("does not answer")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    page.unroute("**/v1/respond")
    if by_itself:
        page.unroute("**/live")
    else:
        page.get_by_role("button", name="Retry").click()
    expect(page.locator(".take").first).to_be_visible()
    expect(page.locator(".note")).to_have_text("")
    watched.expected = ("ERR_FAILED",)


def test_markup_in_a_text_is_shown_as_text(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    page.get_by_text("Settings").click()
    page.get_by_label("Number of replies").select_option("10")
    said = f"so {NASTY}"
    send_turn(page, said)
    assert turns(page) == [said]
    assert NASTY in shown(page)
    card = page.locator(".card", has_text="onerror")
    card.get_by_role("button", name="Why reply").click()
    expect(page.locator(".why .heat").first).to_have_text(said)
    page.get_by_role("button", name="Edit reply 1").click()
    page.get_by_role("link", name="Catalogue").click()
    expect(page.locator(".candidate .text", has_text="onerror")).to_have_text(NASTY)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.bad") is None


def test_everything_by_keyboard(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    press = page.keyboard.press
    press("Tab")
    expect(page.get_by_role("link", name="Skip")).to_be_focused()
    press("Enter")
    expect(page.locator("main")).to_be_focused()
    press("Tab")
    expect(page.get_by_label("Customer message")).to_be_focused()
    page.keyboard.type("my wifi is down")
    press("Shift+Enter")
    page.keyboard.type("please 1")
    press("Enter")
    expect(page.locator(".take")).to_have_count(5)
    assert turns(page) == ["my wifi is down\nplease 1"]
    replies = shown(page)
    press("ArrowDown")
    press("ArrowDown")
    expect(page.locator(".take").nth(1)).to_be_focused()
    press("w")
    expect(page.locator(".card").nth(1).locator(".why")).to_be_visible()
    press("Enter")
    expect(page.locator("#turns li.agent p")).to_have_text(replies[1])
    page.keyboard.type("3 lights")
    press("Enter")
    expect(page.locator(".take")).to_have_count(5)
    replies = shown(page)
    press("ArrowDown")
    press("3")
    expect(page.locator("#turns li.agent p").last).to_have_text(replies[2])
    expect(page.locator("#turns li")).to_have_count(4)

    reached = set()
    for _ in range(40):
        press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"skip", "Chat", "Catalogue", "Figures", "model", "theme", "undo", "fresh", "turn", "Settings"} <= reached

    page.get_by_role("link", name="Catalogue").focus()
    press("Enter")
    expect(page.locator(".candidate").first).to_be_visible()
    page.get_by_role("button", name="Add a reply").focus()
    press("Enter")
    page.keyboard.type("by keys alone")
    for _ in range(4):
        press("Tab")
    expect(page.get_by_role("button", name="Save")).to_be_focused()
    press("Enter")
    expect(page.locator(".candidate .text").first).to_have_text("by keys alone")
    expect(page.locator(".candidate.new").get_by_text("Edit")).to_be_focused()
    press("Tab")
    press("Enter")
    expect(page.locator("#toast")).to_contain_text("Removed.")
    page.get_by_role("button", name="Add a reply").focus()
    press("Enter")
    press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name="Add a reply")).to_be_focused()


def test_new_replies_are_announced_and_fields_have_labels(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    send_turn(page, "hello")
    expect(page.locator("[aria-live]")).to_contain_text(f"The best: {shown(page)[0]}")
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea')].filter(one => !one.labels.length).map(one => one.id)"
    )
    assert nameless == []


def test_a_filter_applies_and_a_wrong_one_shows_an_error(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    send_turn(page, "hello")
    page.get_by_text("Settings").click()
    page.get_by_label("Filter", exact=True).fill('team = "billing"')
    page.get_by_label("Filter", exact=True).press("Enter")
    expect(page.locator(".take .text")).to_have_text(["pay the bill"])
    page.get_by_label("Filter", exact=True).fill("team = = 1")
    page.get_by_label("Filter", exact=True).press("Enter")
    expect(page.locator("#filter-error")).to_contain_text("character 8")
    expect(page.locator(".take")).to_have_count(0)
    page.get_by_label("Filter", exact=True).fill("")
    page.get_by_label("Filter", exact=True).press("Enter")
    expect(page.locator(".take")).to_have_count(5)
    expect(page.locator("#filter-error")).to_be_hidden()
    (refused,) = watched.problems  # the browser's log of the status
    assert "400" in refused
    watched.problems.clear()


@pytest.mark.slow
def test_the_page_waits_for_models_and_reports_an_ended_server(watched: Watched, paths: dict[str, str]) -> None:
    page = watched.page
    with serving(f"support={paths['support']}", wait=False) as running:
        watched.url = running.url
        with running.workers_stopped():  # else they may be ready before the page is
            page.goto(running.url)
            expect(page.locator("#banner")).to_contain_text("being opened")
        expect(page.locator("#model option")).to_have_text(["support"])
        expect(page.locator("#banner")).to_be_hidden()
        send_turn(page, "hello")
        assert all("503" in problem for problem in watched.problems)
        running.stop()
        page.get_by_label("Customer message").fill("hi")
        page.keyboard.press("Enter")
        expect(page.locator(".note")).to_contain_text("does not answer")
    watched.problems.clear()


def test_figures_equal_those_of_the_server(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    send_turn(page, "hello")
    page.get_by_role("link", name="Figures").click()
    expect(page.locator(".served h4")).to_have_text(["support", "poly", "stages", "ranker"])
    with server.client() as client:
        models = client.get("/v1/models").json()["data"]
        metrics = client.get("/metrics").text
    for card, model in zip(page.locator(".served").all(), models, strict=True):
        expect(card).to_contain_text(model["fingerprint"][:12])
    asked = 'polyrank_requests_total{route="/v1/respond",'
    lines = [line for line in metrics.splitlines() if line.startswith(asked)]
    n = sum(float(line.split()[-1]) for line in lines if 'status="499"' not in line)  # the page omits clients that left
    drawing = page.get_by_role("img", name="By route: ")
    assert f"/v1/respond {n:.0f}" in (drawing.get_attribute("aria-label") or "")
    assert page.locator(".plot svg").count() > 1


def test_on_a_phone_nothing_is_wider_than_the_screen(watched: Watched, server: Running) -> None:
    watched.page.set_viewport_size({"width": 360, "height": 740})
    page = watched.open(server)
    send_turn(page, LONG)
    page.get_by_role("button", name="Why reply 1").click()
    expect(page.locator(".why")).to_be_visible()
    composer, card = (page.locator(one).first.bounding_box() for one in (".composer", ".card"))
    assert composer["y"] + composer["height"] <= card["y"]
    bar = page.get_by_role("navigation").bounding_box()
    assert bar["y"] + bar["height"] == 740
    page.get_by_text("Settings").click()
    page.get_by_label("Compare with").select_option("stages")
    expect(page.locator(".panel")).to_have_count(2)
    width = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert page.evaluate(width) == [360, 360]
    for view in ("Catalogue", "Figures"):
        page.get_by_role("link", name=view).click()
        expect(page.locator(".candidate, .served").locator("visible=true").first).to_be_visible()
        assert page.evaluate(width) == [360, 360]


def test_light_and_dark(watched: Watched, server: Running) -> None:
    page = watched.open(server)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    toggle = page.get_by_role("button", name="Dark")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    assert page.evaluate(ground) == light
    page.reload()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    assert page.evaluate(ground) == light


@pytest.mark.slow
def test_outcomes_are_sent_to_a_server_that_stores_feedback(
    watched: Watched, paths: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('[feedback]\nfile = "feedback.db"\n', "utf-8")
    with serving(f"support={paths['support']}", "--config", config) as running, running.client() as client:
        if "/v1/feedback" not in client.get("/openapi.json").json()["paths"]:
            pytest.skip("this server does not store feedback")
        page = watched.open(running)
        for text, name in [("hello", "Take reply 2"), ("the light is red", "None fits")]:
            send_turn(page, text)
            with page.expect_response("**/v1/feedback") as response:
                page.get_by_role("button", name=name).click()
            assert response.value.ok, response.value.text()
        report = client.get("/v1/feedback/report").json()
        assert (report["taken"], report["refused"]) == (1, 1)
        page.get_by_role("link", name="Figures").click()
        expect(page.get_by_role("img", name="Taken, by rank")).to_be_visible()


def test_files_have_their_content_types_and_a_strict_policy(server: Running) -> None:
    assert "unsafe" not in POLICY
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    files = sorted(FOLDER.iterdir())
    assert {path.name for path in files} > {"index.html", "page.css", "page.js"}
    with server.client() as client:
        assert client.get("/").text == (FOLDER / "index.html").read_text("utf-8")
        for path in files:
            answer = client.get(f"/page/{path.name}")
            assert answer.content == path.read_bytes()
            assert answer.headers["content-type"].partition(";")[0] == kinds[path.suffix]
            assert answer.headers["content-security-policy"] == POLICY
        assert client.get("/page/__init__.py").status_code == 404
        assert httpx.get(f"{server.url}/page/../app.py").status_code == 404
