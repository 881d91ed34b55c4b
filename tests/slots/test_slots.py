"""Values and names in texts, and templates that are filled from a context."""

import copy
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import polyrank
from polyrank.cli.commands import app
from polyrank.data.small_talk import small_talk
from polyrank.records import Candidate, Context
from polyrank.serving.served import Served
from polyrank.serving.tasks import RespondTask
from polyrank.slots import data_in, fill, lowered, masked, people_in, sent_template, slots_in, template, values_of
from polyrank.slots.people import mentions, parts_of
from polyrank.slots.templates import READ, TURNS
from polyrank.text import BackboneTexts
from polyrank.text.offsets import candidate_spans


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Your order #4711 has shipped by 1Z999AA10123456784.", "Your order #{order} has shipped by {order_2}."),
        ("ticket INC0012345 was closed", "ticket {order} was closed"),
        ("It is $12.5 or 1.234,5 €, not $1.5k.", "It is {amount} or {amount_2}, not $1.5k."),
        ("Bestellnummer: 55-1234-9, Kundennummer K4711", "Bestellnummer: {order}, Kundennummer {order_2}"),
        ("Die Bestellung Nr. 12345 wurde am 12.05.2024 um 14:30 Uhr versendet",
         "Die Bestellung Nr. {order} wurde am {date} um {time} versendet"),
        ("Ihre Rechnung RE-2024-0815 vom 3. Mai.", "Ihre Rechnung {order} vom {date}."),
        ("Votre commande n° 84512 du 12 mars 2024 de 49,90 € arrivera le 3 avril à 14h30",
         "Votre commande n° {order} du {date} de {amount} arrivera le {date_2} à {time}"),
        ("Appelez le 06 12 34 56 78 ou +33 6 12 34 56 79.", "Appelez le {phone} ou {phone_2}."),
        ("Su pedido PED-00123 del 3 de mayo, 1.249,00 €, llegará a las 10:30.",
         "Su pedido {order} del {date}, {amount}, llegará a las {time}."),
        ("Llame al 612 345 678", "Llame al {phone}"),
        ("Rufen Sie 030/1234567 an, Mo-Fr 9-17 Uhr", "Rufen Sie {phone} an, Mo-Fr 9-17 Uhr"),
        ("We refunded $49.99 on May 3rd, 2024 at 5 pm.", "We refunded {amount} on {date} at {time}."),
        ("See https://shop.example/t/ABC?x=1. Mail ann.lee@example.com!", "See {link}. Mail {email}!"),
        ("It is at 12 Elm Road, Ashford.", "It is at {address}."),
        ("Geliefert an Lindenweg 12a, 10115 Berlin", "Geliefert an {address}"),
        ("La adresse est 6 rue de la Paix, 75002 Paris", "La adresse est {address}"),
        ("Vive en calle Mayor 5, 28013 Madrid", "Vive en {address}"),
        ("IBAN DE89 3704 0044 0532 0130 00, card 4111 1111 1111 1111, 192.168.0.1",
         "IBAN {iban}, card {card}, {ip}"),
        ("{customer} paid {amount}", "{customer} paid {amount}"),
        ("from {date} to {date_2}, or {time}", "from {date} to {date_2}, or {time}"),
        ("AR-12345, ar-12345 or AR-12346 at 5 PM or 5 pm", "{order}, {order} or {order_2} at {time} or {time}"),
    ],
)  # fmt: skip
def test_values_of_real_looking_replies(text: str, expected: str) -> None:
    assert template(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "May I help? Option 3 may help within 14 days, 24/7, at 50% off.",
        "1080p, 5000mAh, 24-48h, 3-5 days, 100-day, 2FA, iPhone14, B2B, version 2.10.3, 10,000 points",
        "We march on; the second of 12 boxes. {nick} is not a slot.",
    ],
)
def test_words_that_are_not_values(text: str) -> None:
    assert not data_in(text)


@pytest.mark.parametrize(
    ("text", "name", "whose"),
    [
        ("Hi Zoe! Your order", "Zoe", "listener"),
        ("Hello Mrs. Miller, thanks", "Miller", "listener"),
        ("Guten Tag Herr Dr. Schmidt, Ihre", "Schmidt", "listener"),
        ("Sehr geehrte Frau von Berg, wir", "Berg", "listener"),
        ("Bonjour Madame Dupont, votre", "Dupont", "listener"),
        ("Buenos días Sr. García: su", "García", "listener"),
        ("Hi Jean-Pierre I have checked", "Jean-Pierre", "listener"),
        ("My name is Zoe Miller and", "Zoe Miller", "speaker"),
        ("Ich bin Anna, meine", "Anna", "speaker"),
        ("Je m'appelle Léa.", "Léa", "speaker"),
        ("Me llamo Iñigo y", "Iñigo", "speaker"),
        ("Viele Grüße\nSam", "Sam", "speaker"),
        ("Thanks,\nZoe", "Zoe", "speaker"),
        ("It is late. Thanks, Zoe", "Zoe", "either"),
    ],
)
def test_names_at_the_places_of_names(text: str, name: str, whose: str) -> None:
    found = [one for one in people_in(text) if one.sure]
    assert (name, whose) in [(one.name, one.whose) for one in found]
    assert all(text[one.start : one.end].endswith(one.name.split()[-1]) for one in found)


@pytest.mark.parametrize(
    "text",
    [
        "Hi there!",
        "Hello Team,",
        "Hi There's a problem",
        "Hi team’s",
        "Sure, please wait",
        "Dear Sir or Madam, thanks",
        "ok",
    ],
)
def test_greetings_without_a_name(text: str) -> None:
    assert not [*people_in(text)]


@pytest.mark.parametrize(
    ("turns", "known"),
    [
        (["Where is AR-12345? I'm Zoe"], {"order": "AR-12345", "customer": "Zoe"}),
        (["Where is AR-12345?", "Is it AR-12345?", "No, AR-12346, sorry"], {}),
        (["Where is AR-12345?", "ar12345?", "yes, ar-12345"], {"order": "AR-12345"}),
        (["Hi Sam, my mail is a@b.example", "Hi Zoe, I'm Sam", "thanks"],
         {"email": "a@b.example", "customer": "Zoe", "agent": "Sam"}),
        (["Mon numéro est le 06 12 34 56 78, je m'appelle Zoe\u0308."], {"phone": "06 12 34 56 78", "customer": "Zoë"}),
        (["My order is {order}"], {}),
        (["It is late. Thanks, Zoe"], {}),  # of either side
        (["Zoe, it is here"], {}),  # maybe another word
        (["Lindenstraße 5, 10115 Berlin", "ok", "LINDENSTRASSE 5, 10115 Berlin"],
         {"address": "Lindenstraße 5, 10115 Berlin"}),
        (["Where is AR-12345?", *["ok"] * (TURNS - 1)], {"order": "AR-12345"}),
        (["Where is AR-12345?", *["ok"] * TURNS], {}),
        (["ok"] * TURNS + ["Where is AR-12345?"], {"order": "AR-12345"}),
        (["AR-12345 " + "." * READ, "." * READ + " on 3 May"], {"date": "3 May"}),
        (["I'm Zoe", "I'm Sam", "ok", "ok", "I'm Zoe Miller", "Sam Lee here. I'm Sam Lee", "ok"],
         {"customer": "Zoe", "agent": "Sam"}),
        (["I'm ZOE", "ok", "I'm Zoe Miller"], {"customer": "ZOE"}),
    ],
)  # fmt: skip
def test_the_values_that_a_context_tells(turns: list[str], known: dict[str, str]) -> None:
    assert values_of(Context(turns)) == known
    others = {kind: value for kind, value in known.items() if kind not in ("customer", "agent")}
    assert values_of(Context(["hi"], turns)) == others  # facts have values, and the names of nobody


@pytest.mark.parametrize(
    "unit",
    ["A-", "A'", "A ", "A1", "1 ", "1-", "1,", "a@", "order", "nr ", "nr. ", "\n", " ", ". ", "Hi A", "best\n", "de ",
     "Mr ", "calle A ", "Zoe, ", "(1)", "{", "-", "#1"],
)  # fmt: skip
def test_the_time_is_proportional_to_the_length_of_a_text(unit: str) -> None:
    started = time.process_time()
    text = unit * (8_000 // len(unit))
    values_of(Context(["Hi Zoe, ok", text]))
    sent_template(text, [text[:100], "{order} is {date}, {order}"], Context("I'm Zoe"))
    assert time.process_time() - started < 2  # about 0.04 s; quadratic patterns take half a minute


def test_a_model_may_read_slots_in_place_of_values(tiny_backbone: Path) -> None:
    """Its ids are those of texts with slots, and their spans are the values' characters."""
    encoder = polyrank.load(f"untuned:{tiny_backbone}")
    plain = encoder.texts
    assert isinstance(plain, BackboneTexts)
    slotted = BackboneTexts(plain.subwords, replace(plain.policy, slots=True), plain.max_positions)
    raw, made = ("Hi Zoe, AR-12345 is here", "Hi {customer}, {order} is here")
    assert slotted.candidate_ids(raw) == slotted.candidate_ids(made) == plain.candidate_ids(made)
    assert slotted.context_ids(Context(["5 pm", raw])) == plain.context_ids(Context(["{time}", made]))
    assert slotted.all_candidate_ids([raw] * 70) == plain.all_candidate_ids([made] * 70)
    ids, spans = candidate_spans(slotted, raw)
    assert ids == slotted.candidate_ids(raw)
    read = {raw[span.start : span.end] for span in spans if span is not None}
    assert {"Zoe", "AR-12345"} <= read
    again = BackboneTexts(slotted.subwords, plain.policy, plain.max_positions)
    assert again.candidate_ids(raw) == plain.candidate_ids(raw)
    assert copy.deepcopy(slotted).candidate_ids(raw) == plain.candidate_ids(made)
    assert slotted.key != plain.key


@pytest.mark.parametrize(
    ("sent", "shown", "made"),
    [
        ("AR-12345: 3 May.", ["Hi.", "{order}: {date}."], "{order}: {date}."),
        (": 3 May.", ["{order}: {date}."], ": {date}."),  # nothing is in the first slot
        ("AR-12345: .", ["{order}: {date}."], "{order}: ."),
        ("Call 0800 123 456 or 0800 123 457, or 0800 123 458.", ["Or 0800 123 457?", "Call 0800 123 456."],
         "Call 0800 123 456 or 0800 123 457, or {phone}."),
        ("Hi Al, it is sent. Regards\nBo", ["Sent."], "Hi {customer}, it is sent. Regards\n{agent}"),
        ("AR-12345, 5 pm", ["{order}, {date}, {time}"], "{order}, {time}"),  # one of its parts is not there twice
        ("AR-12345, 3 May, 5 pm", ["{order}, {date}, {time}"], "{order}, {date}, {time}"),
        ("Room 4711 or 4712 or 4713", ["It is 4711 or so", "It is 4712"], "Room 4711 or 4712 or {number}"),
    ],
)  # fmt: skip
def test_a_sent_reply_is_the_shown_one_or_has_slots(sent: str, shown: list[str], made: str) -> None:
    assert sent_template(sent, shown) == sent_template(sent, iter(shown)) == made


def test_names_of_a_context_are_slots_wherever_they_are_sent() -> None:
    context = Context(["Hi, this is Zoe Miller", "Hello, I'm Sam Lee", "ok"])
    assert sent_template("I asked zoe; Miller, Sam or Lee?", [], context) == (
        "I asked {customer}; {customer}, {agent} or {agent}?"
    )
    assert sent_template("I asked zoe or Sam", []) == "I asked zoe or Sam"
    assert sent_template("It is from Mrs Miller.", []) == "It is from {customer}."  # of either side
    for name, kind in (("Miller", "customer"), ("Lee", "agent")):  # the context shows whose it is
        assert sent_template(f"It is from Mrs {name}.", [], context) == f"It is from {{{kind}}}."
    assert sent_template("hi zoe, it is here", []) == "hi {customer}, it is here"


def test_slots_are_values_of_their_kind() -> None:
    assert [(one.kind, one.value) for one in data_in("{date_2}, {order}, 3 May")] == [
        ("date", "{date_2}"), ("order", "{order}"), ("date", "3 May"),
    ]  # fmt: skip
    assert template("{date_2} or 3 May, {order}") == "{date} or {date_2}, {order}"


def test_a_name_within_another_value_is_a_part_of_it() -> None:
    people = {"zoe": "customer", "miller": "customer"}
    assert template("Ask Mrs zoe@x.example, or zoe Miller", people) == "Ask Mrs {email}, or {customer}"
    shown, context = ["Mail zoe@shop.example."], Context(("I'm Zoe",))  # a value that stays text
    assert sent_template("Zoe, mail zoe@shop.example", shown, context) == "{customer}, mail zoe@shop.example"


@pytest.mark.parametrize(("name", "parts"), [("Zoe's", ["Zoe"]), ("Zoe Miller’s", ["Zoe", "Miller"]), ("Mr B", [])])
def test_a_name_may_stand_in_the_genitive(name: str, parts: list[str]) -> None:
    assert parts_of(name) == parts


@pytest.mark.parametrize(("sign", "starts"), [(".", True), ("!", True), ("?", True), (":", True), ("\n", True),
                                              (",", False), (";", False), ("", False)])  # fmt: skip
def test_a_word_that_is_also_a_name_is_none_at_the_start_of_a_sentence(sign: str, starts: bool) -> None:
    text = f"I know{sign} May can help"
    assert len([*mentions(text, {"may": "agent"}, ["may"])]) == (not starts)
    assert len([*mentions(text, {"may": "agent"})]) == 1
    for genitive in ("May's", "May’s"):
        text = f"I know{sign} {genitive} case is open"
        assert [one[0] for one in mentions(text, {"may": "agent"}, ["may"])] == ["May"]
        assert not [*mentions(text.lower(), {"may": "agent"}, ["may"])]


def test_a_name_has_up_to_six_words_each_after_two_titles_and_the_first_after_three() -> None:
    people = {"zoe": "customer", "ann": "customer", "miller": "customer"}
    for sign in " -":
        for n in range(1, 7):
            name = sign.join(["Zoe", "Ann", "Miller"][place % 3] for place in range(n))
            assert [one[0] for one in mentions(f"I asked {name}: no", people)] == [name]
            assert template(f"I asked {name}: no", people) == "I asked {customer}: no"
    for first in ("", "Mrs ", "Mrs Dr ", "Frau Prof. Dr. "):
        for between in ("", "von ", "van der "):
            name = f"{first}Zoe {between}Ann {between}Miller"
            assert [one[0] for one in mentions(f"I asked {name}", people)] == [name]


def test_people_are_named_by_each_word_and_numbered_by_kind() -> None:
    people = {"zoe": "customer", "zoe-ann": "customer", "al": "agent", "may": "agent", "will": "customer"}
    text = (
        "Zoe-Ann, 3 May to 4 May: Al's here. May's too. May I? Ask May, will she?"
        " Mail zoe@x.example at 5 pm, 6 pm, 5 pm"
    )
    found = [one[0] for one in mentions(text, people, ["may", "will"])]
    assert found == ["Zoe-Ann", "May", "May", "Al", "May", "May", "zoe"]
    assert template(text, people, common=["may", "will"]) == (
        "{customer}, {date} to {date_2}: {agent}'s here. {agent}'s too. May I? Ask {agent}, will she?"
        " Mail {email} at {time}, {time_2}, {time}"
    )


@pytest.mark.parametrize(
    ("one", "other", "kind", "same"),
    [
        ("1.25 €", "12.5 €", "amount", False),
        ("20 €", "$20", "amount", False),
        ("20 €", "€20", "amount", True),
        ("1.11.24", "11.1.24", "date", False),
        ("3 May", "May 3", "date", True),
        ("11:10", "1:11", "time", False),
        ("5 pm", "5PM", "time", True),
    ],
)
def test_values_are_equal_if_their_numbers_are(one: str, other: str, kind: str, same: bool) -> None:
    text = f"It is {one} and then {other}"
    assert values_of(Context([text])) == ({kind: one} if same else {})
    assert template(text) == f"It is {{{kind}}} and then {{{kind}{'' if same else '_2'}}}"


def test_more_than_nine_values_have_slots() -> None:
    times = [f"{hour}:15" for hour in range(8, 20)]
    made = template("Free slots: " + ", ".join(times))
    assert slots_in(made) == ["time", *(f"time_{n}" for n in range(2, 13))]
    assert [(one.kind, one.value) for one in data_in("{time_12}")] == [("time", "{time_12}")]
    assert fill(made, {}) == (made, dict.fromkeys(slots_in(made)))


def test_names_are_found_in_any_case_of_their_letters() -> None:
    for name, again in (("Işık", "IŞIK"), ("İbrahim", "İBRAHİM"), ("Sam", "ſam"), ("Νίκος", "ΝΊΚΟΣ")):
        context = Context([f"My name is {name}.", "Hi!", f"I am {name}"])
        for sent in (name, again):
            assert sent_template(f"I asked {sent}", [], context) == "I asked {customer}"
            assert template(f"Ask {sent}", {lowered(name): "agent"}) == "Ask {agent}"
    assert sent_template("Hi İbrahim, it is sent", []) == "Hi {customer}, it is sent"
    assert masked("Hi İbrahim, 5 pm")[0] == "Hi {customer}, {time}"


def test_a_model_reads_a_word_before_a_comma_as_it_is() -> None:
    """It may be a name, which only a sent text is searched for."""
    for text in ("Berlin, here we come", "Zoe, it is here"):
        assert masked(text)[0] == text


def test_signs_that_look_like_others_stay_as_they_are() -> None:
    """Only letters and their marks are composed."""
    signs = "½ ™ ① ﬁ ２ … \u00a0 \u2003 x² Å"
    assert template(f"{signs}: AR-12345") == sent_template(f"{signs}: AR-12345", []) == f"{signs}: {{order}}"
    assert template("e\u0301te\u0301, le 3 avril") == "\u00e9t\u00e9, le {date}"
    for sent, value in (("a²-ﬁ½", "a²-ﬁ½"), ("e\u0301te\u0301", "\u00e9t\u00e9")):
        assert values_of(Context([f"see https://x.example/{sent} please"])) == {"link": f"https://x.example/{value}"}


def test_gaps_stay_visible() -> None:
    text, slots = fill("{order} comes between {date} and {date_2}", {"order": "7", "date": "3 May"})
    assert (text, slots) == ("7 comes between {date} and {date_2}", {"order": "7", "date": None, "date_2": None})


def test_a_context_gets_replies_in_its_language_and_one_greeting(tmp_path: Path) -> None:
    texts = {
        "de": ["Guten Tag!", "Hallo, wie kann ich helfen?", "Ihr Paket ist unterwegs.", "Die Rechnung ist bezahlt."],
        "en": ["Good day, hello!", "Hi, how can I help?", "Your parcel is on its way.", "Thanks, bye!"],
    }
    pool = [
        Candidate(text, text, {"language": code} | ({"kind": kind} if (kind := small_talk(text)) else {}))
        for code, some in texts.items()
        for text in some
    ]
    polyrank.build_index(tmp_path / "index", "shipped:convert", [*pool, Candidate("x", "ok")])
    with polyrank.open(tmp_path / "index") as replies:
        german, english, unclear = (
            {reply.id for reply in answer.ranked}
            for answer in replies.answer_all(["Wo ist denn mein Paket?", "Where is my parcel?", "1234"], 9)
        )
        assert (german, english) == ({*texts["de"], "x"}, {*texts["en"], "x"})
        assert unclear == {*texts["de"], *texts["en"], "x"}
        assert len(replies.answer("Where is my parcel?", 9, any_language=True).ranked) == 9
        assert len(replies.respond(["Where is my parcel?"], 9, any_language=True)[0]) == 9
        question = Context(("Where is my parcel?",))
        asked = [RespondTask(question, 9, any_language=every) for every in (True, False, True)]
        together = Served("m", str(tmp_path / "index")).respond(asked)  # requests that arrive at once
        assert [len(one.rows) for one in together] == [9, 5, 9]
        for options, n in ((["-k", "9"], 5), (["-k", "9", "--any-language"], 9), (["--any-language"], 5)):
            command = ["respond", str(tmp_path / "index"), "Where is my parcel?", *options]
            assert len(json.loads(CliRunner().invoke(app, command).stdout)["results"]) == n
        assert [len(replies.respond(["ok"], 9, allow_echo=echo)[0]) for echo in (False, True)] == [8, 9]
        assert {r.id for r in replies.answer("Where is it now?", 9, filter='kind = "greeting"').ranked} < {*texts["en"]}
        french = replies.answer("Où est donc mon colis ?", 9).ranked  # in no language of the catalogue
        assert len(french) == 9
        turns = [["Wo ist denn mein Paket?", "1234"], ["1234", "Where is my parcel?"]]  # all turns show the language
        for code, answer in zip(("de", "en"), replies.answer_all(turns, 9), strict=True):
            assert {reply.id for reply in answer.ranked} == {*texts[code], "x"}
        for condition in ('id_ = 1 or kind = "greeting"', 'kind = "greeting" or id_ = 1'):
            greetings = replies.answer_all(["Wo ist denn mein Paket?", "Where is my parcel?"], 9, filter=condition)
            assert [{reply.id for reply in one.ranked} for one in greetings] == [{*texts[c][:2]} for c in texts]
        thanks = replies.answer_all(["Wo ist denn mein Paket?", "Where is my parcel?"], 9, filter='kind = "thanks"')
        assert [[reply.id for reply in one.ranked] for one in thanks] == [["Thanks, bye!"]] * 2  # none in German
        few = replies.answer("Where is my parcel?", 9, diverse=True).ranked
        assert sum("kind" in reply.metadata for reply in few) == 1
        assert sum("kind" in reply.metadata for reply in replies.answer("Hello!", 9, diverse=True).ranked) > 1
        replies.remove(texts["de"])
        assert {reply.id for reply in replies.answer("Wo ist denn mein Paket?", 9).ranked} == {*texts["en"], "x"}


def test_answers_are_filled_and_ranked_as_templates(tmp_path: Path) -> None:
    pool = [
        Candidate("a", "Hi {customer}, parcel {order} comes on {date}.", {"gaps": ["date"]}),
        Candidate("b", "The parcel is here"),
        Candidate("c", "Odd metadata: {order}", {"gaps": 3}),
    ]
    context = "I'm Zoe. My parcel AR-12345 of 3 May comes when?"
    polyrank.build_index(tmp_path / "index", "shipped:convert", pool)
    with polyrank.open(tmp_path / "index") as replies:
        (answer,) = replies.answer_all([context], 3)
        diverse = replies.answer(context, 3, diverse=True)
        (scores,) = replies.scorer.score([Context(context)], [[each.text for each in pool]])
    found = {reply.id: reply for reply in answer.ranked}
    assert found["a"].text == "Hi Zoe, parcel AR-12345 comes on {date}."
    assert found["a"].template == pool[0].text
    assert found["a"].slots == {"customer": "Zoe", "order": "AR-12345", "date": None}
    assert (found["b"].text, found["b"].template, found["b"].slots) == (pool[1].text, pool[1].text, {})
    assert found["c"].text == "Odd metadata: AR-12345"
    assert [found[each.id].score for each in pool] == pytest.approx(scores, abs=1e-4)
    assert {reply.id: reply.text for reply in diverse.ranked}["a"] == found["a"].text


@pytest.mark.parametrize(
    "text",
    ["not 0800 123", "Call 0800 555, not 0800 123!", "I noted 1200 of them", "We have no 500 pieces", "now 1000 people",
     "You ordered 3000 pieces", "It refused 1200 times", "noch 1200 Stück", "nummer 0800 123", "Wir bestellten 300"],
)  # fmt: skip
def test_words_that_begin_like_a_word_for_a_number_do_not_mark_an_order(text: str) -> None:
    assert not [found for found in data_in(text) if found.kind == "order"]


@pytest.mark.parametrize(
    "text",
    ["order no 1234", "No. 1234", "n° 1234", "Nr. 1234", "Bestellnummer 1234", "Kundennr. 1234", "ticket-no 1234",
     "Auftragsbestätigung 1234", "pedido no 1234", "numéro de commande: 1234", "orders 1234 and others", "#1234"],
)  # fmt: skip
def test_words_for_a_number_mark_an_order(text: str) -> None:
    assert [(found.kind, found.value) for found in data_in(text)] == [("order", "1234")]
