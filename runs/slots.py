"""Searches a catalogue, its answers, the server's log and the feedback for customers' data, on made-up tickets.

    python runs/slots.py [--tickets 300] [--seed 0]

makes tickets in four languages with names, numbers and addresses that are known, imports their replies with and without
slots, answers each ticket's first turn, and prints one JSON object with the number of planted values of other customers
that occur in each place.
"""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

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


def leaks(texts: Iterable[str], planted: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Texts that hold a planted value as a whole word."""
    pattern = re.compile(
        "|".join(rf"(?<!\w){re.escape(value)}(?!\w)" for value in sorted(planted, key=len, reverse=True))
    )
    for text in texts:
        if found := pattern.search(text):
            yield found[0], text
