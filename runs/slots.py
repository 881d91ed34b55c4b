"""Searches a catalogue, its answers, the server's log and the feedback for customers' data, on made-up tickets.

    python runs/slots.py [--tickets 300] [--seed 0] | python runs/record.py slots/leaks
    python runs/slots.py --examples LISTS --model MODEL | python runs/record.py slots/NAME

The first command makes tickets in four languages with names, numbers and addresses that are known, imports their
replies without and with slots, serves the catalogue with slots, answers each ticket's first turn, sends feedback, and
prints one JSON object: how many replies and lines of the log hold a planted value, and how many answers and texts of
the feedback hold one of another ticket.

The second one prints R@1 of a model on lists of candidates as they are, with slots in the candidates, and with slots in
contexts too, and the 95% intervals of the differences.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polyrank
from polyrank.data import frequent_replies, read_examples
from polyrank.feedback import FeedbackStore
from polyrank.records import Candidate, Example
from polyrank.scorers.protocols import Scorer
from polyrank.slots import masked

FIRST = {
    "en": [
        "Zoe",
        "Ben",
        "Ann",
        "Liam",
        "Olivia",
        "Noah",
        "Emma",
        "Will",
        "Grace",
        "Mark",
        "Priya",
        "Wei",
        "Kwame",
        "Siobhán",
        "May",
    ],
    "de": ["Jürgen", "Anna", "Lukas", "Mia", "Björn", "Heike", "Uwe", "Sabine", "Çağla", "Max"],
    "fr": ["Zoë", "Léa", "Hugo", "Chloé", "Luc", "Inès", "Étienne", "Amélie", "Rémy", "Jean-Pierre"],
    "es": ["Lucía", "Ana", "José", "Martín", "Sofía", "Iñigo", "Carmen", "Pablo", "Belén", "Ángel"],
}
LAST = {
    "en": ["Miller", "O'Brien", "Patel", "Nguyen", "Clarke", "Adeyemi", "Whitfield", "Harrow", "Kowalski", "Bexley"],
    "de": ["Schmidt", "Müller", "Weiß", "Özdemir", "Brandt", "Köhler", "Vogelsang", "Lindner"],
    "fr": ["Dupont", "Lefèvre", "Moreau", "Rousseau", "Garnier", "Benoît", "Charpentier"],
    "es": ["García", "Muñoz", "Ibáñez", "Ortega", "Salgado", "Peñalver", "Quiroga"],
}
AGENTS = ("Sam", "Nadia", "Oskar")
STREETS = ("Elm", "Birch", "Quarry", "Tulpen", "Linden", "Rivoli", "Alcalá", "Magnolia", "Harbour", "Foundry")
MONTHS = {
    "en": [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
    "de": [f"{n}." for n in range(1, 13)],
    "fr": [
        "janvier",
        "février",
        "mars",
        "avril",
        "mai",
        "juin",
        "juillet",
        "août",
        "septembre",
        "octobre",
        "novembre",
        "décembre",
    ],
    "es": [
        "enero",
        "febrero",
        "marzo",
        "abril",
        "mayo",
        "junio",
        "julio",
        "agosto",
        "septiembre",
        "octubre",
        "noviembre",
        "diciembre",
    ],
}
DATES = {"en": "{} {}", "de": "{}.{}", "fr": "{} {}", "es": "{} de {}"}
TOWNS = ("Ashford", "Brackley", "Wismar", "Kempten", "Annecy", "Cahors", "Toledo", "Huesca", "Morpeth", "Selby")

ASKED = {
    "en": (
        "Hi, my parcel {order} has not arrived. {name}",
        "hello, i'm {first} and my parcel is late",
        "My name is {first} {last}. I want to return order {order}.",
        "Hi {agent}, where is my refund? You can call me on {phone} or write to {mail}.\nThanks,\n{first}",
        "I moved to {street}, please change the address of {order}",
        "Is there any news about my ticket?",
    ),
    "de": (
        "Guten Tag, mein Paket {order} ist nicht angekommen. Viele Grüße\n{first} {last}",
        "Hallo, ich bin {first} und möchte Bestellung {order} zurückgeben",
        "Meine Nummer ist {phone}, meine Adresse {mail}. Mein Name ist {first} {last}.",
        "Ich bin umgezogen: {street}. Bitte ändern Sie die Adresse.",
    ),
    "fr": (
        "Bonjour, mon colis {order} n'est pas arrivé. Cordialement, {first} {last}",
        "Bonjour, je m'appelle {first}. Je voudrais renvoyer la commande {order}.",
        "Vous pouvez m'appeler au {phone} ou écrire à {mail}.",
    ),
    "es": (
        "Hola, mi paquete {order} no ha llegado. Saludos, {first}",
        "Buenos días, me llamo {first} {last}. Quiero devolver el pedido {order}.",
        "Mi teléfono es {phone} y mi correo {mail}.",
    ),
}
ANSWERED = {
    "en": (
        "Hi {first}! Could you give me the order number?",
        "hi {lower}, could you give me the order number",
        "Thanks for the number. {order} is at the local depot",
        "Dear {first} {last}, order {order} will arrive on {date}.",
        "{first}, thank you for your patience. Your refund of {amount} is on its way.",
        "I have called {first} at {phone} about {order}.",
        "You're welcome, {first}!",
        "Thanks {first}. We will write to {mail}.\n\nKind regards,\n{agent}",
        "I've changed {first}'s address to {street}.",
        "You can reach us on 0800 123 456, and returns are free within 14 days.",
        "Mr {last}, your orders {order} and {other} are both on the way.",
        "Your ticket is {ticket} and the PIN of your parcel is {pin}.",
        "Your parcel was left with your neighbour at {street}.",
        "Please restart the router, then open the page again.",
        "Please restart the ruoter, then open the page again.",
        "This is {agent} from support. How can I help you, {first}?",
        "Anything else I can do for you today?",
    ),
    "de": (
        "Hallo {first}, Ihre Bestellung {order} kommt am {date}",
        "Guten Tag Frau {last}, vielen Dank für die Nummer. {order} liegt im Depot.",
        "Sehr geehrter Herr {last}, wir haben Ihnen {amount} erstattet.\n\nMit freundlichen Grüßen\n{agent}",
        "Danke {first}! Wir rufen Sie unter {phone} an.",
        "Die neue Adresse ist {street}.",
        "Sie erreichen uns unter 0800 123 456. Die Rückgabe ist 14 Tage kostenlos.",
    ),
    "fr": (
        "Bonjour {first}, votre commande {order} arrivera le {date}.",
        "Bonjour Madame {last}, merci pour le numéro. {order} est au dépôt.",
        "Merci {first} ! Nous vous appelons au {phone}.",
        "Nous avons remboursé {amount} à {first} {last}.",
        "La nouvelle adresse est {street}. Cordialement, {agent}",
    ),
    "es": (
        "Hola {first}, su pedido {order} llegará el {date}.",
        "Buenas tardes Sr. {last}: gracias por el número. {order} está en el almacén.",
        "Gracias {first}. Le llamamos al {phone}.",
        "Le hemos enviado un correo a {mail}, {first}.",
        "La dirección nueva es {street}. Un saludo, {agent}",
    ),
}


@dataclass(frozen=True)
class Ticket:
    """A conversation, and the values of its customer."""

    name: str
    turns: list[tuple[str, str]]
    planted: set[str] = field(default_factory=set)

    def row(self) -> dict[str, Any]:
        """As a line of a file of dialogues."""
        return {"id": self.name, "turns": [{"speaker": who, "text": text} for who, text in self.turns]}


def tickets(n: int, seed: int = 0) -> list[Ticket]:
    """Made-up tickets of a shop, with three exchanges each."""
    chance = random.Random(seed)
    return [_ticket(f"t{number}", chance) for number in range(n)]


def _ticket(name: str, chance: random.Random) -> Ticket:
    language = chance.choices(("en", "de", "fr", "es"), (6, 2, 1, 1))[0]
    first, last = chance.choice(FIRST[language]), chance.choice(LAST[language])
    digits = "".join(chance.choices("0123456789", k=12))
    values = {
        "first": first,
        "last": last,
        "order": chance.choice(("AR-{}", "#{}", "ORD{}", "{}")).format(f"{chance.randint(1, 9)}{digits[:5]}"),
        "other": f"AR-{chance.randint(10000, 99999)}",
        "ticket": f"INC00{digits[5:10]}",
        "pin": str(chance.randint(2100, 9899)),
        "mail": f"{first.casefold()}.{last.casefold()}{digits[:2]}@mail.example".replace("'", ""),
        "phone": {
            "en": f"+44 20 7{digits[:3]} {digits[3:7]}",
            "de": f"0{chance.randint(151, 179)} {digits[:7]}",
            "fr": f"06 {digits[:2]} {digits[2:4]} {digits[4:6]} {digits[6:8]}",
            "es": f"6{digits[:2]} {digits[2:5]} {digits[5:8]}",
        }[language],
        "street": {
            "en": f"{chance.randint(1, 99)} {chance.choice(STREETS)} Road, {chance.choice(TOWNS)}",
            "de": f"{chance.choice(STREETS)}weg {chance.randint(1, 99)}, 1{digits[:4]} {chance.choice(TOWNS)}",
            "fr": f"{chance.randint(1, 99)} rue {chance.choice(STREETS)}, {chance.choice(TOWNS)}",
            "es": f"calle {chance.choice(STREETS)} {chance.randint(1, 99)}, {chance.choice(TOWNS)}",
        }[language],
    }
    planted = set(values.values()) | set(values["street"].split(", "))
    day, pounds = chance.randint(1, 28), chance.randint(5, 300)
    values |= {
        "lower": first.casefold(),
        "name": chance.choice((f"Thanks, {first}", f"Best, {first} {last}", "")),
        "agent": chance.choice(AGENTS),
        "amount": f"£{pounds}.{chance.randint(10, 99)}" if language == "en" else f"{pounds},{chance.randint(10, 99)} €",
        "date": DATES[language].format(day, chance.choice(MONTHS[language])),
    }
    turns = []
    for _ in range(3):
        turns.append(("customer", chance.choice(ASKED[language]).format(**values)))
        turns.append(("agent", chance.choice(ANSWERED[language]).format(**values)))
    return Ticket(name, turns, planted)


def leaks(texts: Iterable[str], planted: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """Texts that hold a planted value as a whole word, apart from their ticket's values."""

    def any_of(values: Iterable[str]) -> re.Pattern[str]:
        longest_first = sorted(values, key=len, reverse=True)
        return re.compile("|".join(rf"(?<!\w){re.escape(value)}(?!\w)" for value in longest_first) or "(?!)")

    others, known = any_of(planted), any_of(own)
    return [text for text in texts if others.search(known.sub(" ", text))]


def said_as_is(examples: Iterable[Example]) -> list[str]:
    """A catalogue without slots: the distinct replies."""
    return list(dict.fromkeys(example.candidates[0] for example in examples))


def search(made: list[Ticket], catalogue: list[Candidate], folder: Path, model: str) -> dict[str, int]:
    """How many texts of each place hold a planted value; in answers, those of the ticket itself are allowed."""
    planted = set().union(*(ticket.planted for ticket in made))
    polyrank.build_index(folder / "index", model, catalogue)
    (folder / "serve.toml").write_text('[feedback]\nfile = "feedback.db"\nkeep_text = true\n', "utf-8")
    command = [
        sys.executable,
        "-m",
        "polyrank",
        "serve",
        f"index={folder / 'index'}",
        "--config",
        folder / "serve.toml",
    ]
    answers = 0
    with subprocess.Popen([*command, "--config", folder / "serve.toml"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None, "stderr is a pipe"
        lines = [server.stderr.readline()]
        try:
            (url,) = re.findall(r"listening at (\S+);", lines[0])
            with polyrank.Client(url, timeout_s=600, retries=100) as client:  # also while the models are opened
                for number, ticket in enumerate(made):
                    answer = client.respond(ticket.turns[0][1], k=3, diverse=True)
                    answers += len(leaks((reply.text for reply in answer.ranked), planted, ticket.planted))
                    best, sent = answer.ranked[0], ticket.turns[1][1]
                    if number % 2:
                        client.feedback(answer, "taken", candidate_id=best.id)
                    else:
                        client.feedback(answer, "edited", candidate_id=best.id, final_text=sent)
        finally:
            server.terminate()
            lines += server.stderr.readlines()
    with FeedbackStore(folder / "feedback.db", write=False) as store:
        requests = list(store.requests())
    feedback = 0
    for ticket, request in zip(made, requests, strict=True):
        texts = [reply.text or "" for reply in request.shown.replies]
        texts.append(request.outcome.final_text or "" if request.outcome else "")
        feedback += len(leaks(texts, planted, ticket.planted))
    return {
        "catalogue": len(leaks((reply.text for reply in catalogue), planted)),
        "answers": answers,
        "log": len(leaks(lines, planted)),
        "feedback": feedback,
    }


def with_slots(example: Example, *, contexts: bool = True) -> Example:
    """An example whose texts have slots; candidates that became equal to the right one are right, too."""
    candidates = [masked(text)[0] for text in example.candidates]
    right = {candidates[i] for i in example.relevant}
    relevant = tuple(i for i, text in enumerate(candidates) if text in right)
    turns = tuple(masked(turn)[0] for turn in example.context) if contexts else example.context
    return Example(turns, tuple(candidates), relevant, example.id)


def hits(scorer: Scorer, examples: list[Example]) -> NDArray[np.float64]:
    """Whether a right candidate is first; of candidates with equal scores, each is first equally often."""
    scores = scorer.score([each.query for each in examples], [each.candidates for each in examples])
    first = [np.flatnonzero(row == row.max()) for row in scores]
    return np.array([np.isin(rows, each.relevant).mean() for rows, each in zip(first, examples, strict=True)])


def recalls(model: str, examples: list[Example]) -> dict[str, Any]:
    """R@1 in percent without and with slots, and the intervals of the differences."""
    scorer = polyrank.load(model)
    plain = hits(scorer, examples)
    result: dict[str, Any] = {"n": len(examples), "plain": round(float(100 * plain.mean()), 2)}
    for name, contexts in (("slots in candidates", False), ("slots", True)):
        found = hits(scorer, [with_slots(each, contexts=contexts) for each in examples])
        gain = found - plain
        half = 196 * gain.std(ddof=1) / len(gain) ** 0.5
        middle = 100 * gain.mean()
        result[name] = [round(value, 2) for value in (100 * found.mean(), middle - half, middle + half)]
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tickets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", help="lists of candidates, to measure R@1")
    parser.add_argument("--model", default="shipped:convert")
    parser.add_argument("--limit", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.examples:
        read = read_examples(arguments.examples).examples[: arguments.limit]
        result = recalls(arguments.model, read)
    else:
        made = tickets(arguments.tickets, arguments.seed)
        examples = read_examples([ticket.row() for ticket in made], speaker="agent").examples
        planted = set().union(*(ticket.planted for ticket in made))
        plain = said_as_is(examples)
        result = {
            "tickets": len(made),
            "without slots": {"replies": len(plain), "catalogue": len(leaks(plain, planted))},
        }
        for least in (1, 2):
            catalogue = frequent_replies(examples, min_count=least)
            with tempfile.TemporaryDirectory() as folder:
                found = search(made, catalogue, Path(folder), arguments.model)
            result[f"count from {least}"] = {"replies": len(catalogue)} | found
    print(json.dumps(result))


if __name__ == "__main__":
    main()
