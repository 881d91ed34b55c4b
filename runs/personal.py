"""Measure which generated personal data an import replaces, by kind and country, and which other texts stay.

    python runs/personal.py [--n 200]

Prints the shares of docs/data.md. Phone numbers are random valid ones of phonenumbers' metadata, in the national way of
writing, with blanks or without, in a sentence of the country's language; cards and accounts have valid check digits.
"""

import argparse
import random
import unicodedata
import uuid
from collections.abc import Callable, Iterator

import phonenumbers
from stdnum import iban, luhn

from polyrank_chats.names import NAMES
from polyrank_chats.people import slots_of
from polyrank_chats.redact import Redactor

SENTENCES = {  # with a word for a phone, and without one
    "US": ("You can call me on {} today.", "Is it {}? That is what you have for me."),
    "GB": ("You can ring me on {} today.", "Is it {}? That is what you have for me."),
    "IN": ("My mobile is {} please call.", "Is it {}? That is what you have for me."),
    "FR": ("Vous pouvez m'appeler au {} le matin.", "Oui, c'est le {} et je suis là pour vous."),
    "DE": ("Sie können mich unter der Telefonnummer {} erreichen.", "Das ist die {} und ich bin nicht da."),
    "ES": ("Mi teléfono es el {} por la tarde.", "Sí, es el {} y no está en la otra."),
    "PT": ("O meu telefone é {} para falar.", "Sim, é o {} e não está em casa para você."),
    "PL": ("Mój telefon to {} proszę dzwonić.", "Tak, to jest {} i nie ma go na stronie."),
    "IT": ("Il mio cellulare è {} per favore.", "Sì, è il {} e non sono in casa per la sera."),
    "NL": ("Mijn telefoon is {} van het werk.", "Ja, het is {} en ik ben niet op het werk."),
    "CN": ("我的电话是{}，请打给我。", "是{}，我们一直用这个。"),
    "JP": ("電話は{}です。", "はい、{}でお願いします。"),
    "BR": ("O meu telefone é {} para falar.", "Sim, é o {} e não está em casa para você."),
}
Made = Iterator[tuple[str, str, str, str]]
"""The kind, the country or form, the secret text and the whole text."""


def phones(random_: random.Random, n: int) -> Made:
    """Random valid numbers: the example of phonenumbers with other last digits."""
    for country, sentences in SENTENCES.items():
        for kind in (phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE):
            example = phonenumbers.example_number_for_type(country, kind)
            held = 0
            while held < n // 2:
                digits = phonenumbers.national_significant_number(example)
                own = digits[:3] + "".join(random_.choices("0123456789", k=len(digits) - 3))
                number = phonenumbers.parse(own, country)
                if not phonenumbers.is_valid_number(number):
                    continue
                held += 1
                written = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.NATIONAL)
                for form, text in (("grouped", written), ("digits only", own)):
                    for where, sentence in zip(("after a word for a phone", "without one"), sentences, strict=True):
                        yield f"phone, {form}, {where}", country, text, sentence.format(text)
                abroad = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.INTERNATIONAL)
                yield "phone with country code", country, abroad, sentences[1].format(abroad)


def others(random_: random.Random, n: int) -> Made:
    """Cards, accounts, addresses, links, passwords and tokens."""

    def digits(k: int) -> str:
        return "".join(random_.choices("0123456789", k=k))

    def letters(k: int) -> str:
        return "".join(random_.choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=k - 2)) + "a7"

    def card() -> str:
        body = random_.choice("45") + digits(14)
        number = body + luhn.calc_check_digit(body)
        return random_.choice((number, " ".join(number[i : i + 4] for i in range(0, 16, 4))))

    def account(country: str, k: int) -> str:
        while True:
            bban = digits(k)
            number = f"{country}{98 - int(bban + ''.join(str(int(c, 36)) for c in country) + '00') % 97:02}{bban}"
            if iban.is_valid(number, check_country=False):
                return iban.format(number)

    makers: dict[tuple[str, str], tuple[Callable[[], str], str]] = {
        ("mail address", ""): (
            lambda: f"{letters(6).lower()}.{letters(5).lower()}@mail.example",
            "write to {}, please",
        ),
        ("card", ""): (card, "my card is {}, thanks"),
        ("account", "DE"): (lambda: account("DE", 18), "meine IBAN ist {}"),
        ("link", "with a token"): (lambda: f"https://shop.example/reset?token={letters(20)}", "it shows {}"),
        ("link", "without https"): (lambda: f"shop.example/track/{digits(8)}", "I opened {} today"),
        ("IP address", "v4"): (lambda: ".".join(str(random_.randrange(1, 255)) for _ in range(4)), "it is {}"),
        ("IP address", "v6"): (lambda: ":".join(f"{random_.randrange(4096, 65536):x}" for _ in range(8)), "from {}"),
        ("password", "en"): (lambda: letters(10), "my password is {}"),
        ("password", "de"): (lambda: letters(10), "Passwort: {}"),
        ("password", "fr"): (lambda: letters(10), "mon mot de passe est {}"),
        ("password", "es"): (lambda: letters(10), "mi contraseña es {}"),
        ("password", "zh"): (lambda: letters(10), "密码是{}"),
        ("password", "PIN"): (lambda: digits(4), "my PIN is {}"),
        ("token", "sk-"): (lambda: f"sk-{letters(32)}", "I use {} in the call"),
        ("token", "JWT"): (lambda: f"eyJ{letters(20)}.eyJ{letters(40)}.{letters(30)}", "header {}"),
        ("token", "hexadecimal"): (lambda: uuid.UUID(int=random_.getrandbits(128)).hex, "the key {} fails"),
    }
    for (kind, form), (make, sentence) in makers.items():
        for _ in range(n):
            text = make()
            yield kind, form, text, sentence.format(text)


def innocent(random_: random.Random, n: int) -> Made:
    """Order numbers, prices, dates, times and versions, which must stay."""

    def number(k: int) -> str:
        return str(random_.randrange(10 ** (k - 1), 10**k))

    def below(n: int) -> int:
        return random_.randrange(1, n)

    makers: dict[tuple[str, str], Callable[[], str]] = {
        ("order number", "8 digits"): lambda: f"My order {number(8)} has not arrived.",
        ("order number", "10 digits"): lambda: f"order number is {number(10)}, please check",
        ("order number", "with letters"): lambda: f"It is AR-{number(5)} of the shop",
        ("order number", "de"): lambda: f"Die Bestellung {number(9)} ist nicht da.",
        ("order number", "es"): lambda: f"Mi pedido {number(9)} no está.",
        ("order number", "fr"): lambda: f"Ma commande {number(10)} n'est pas là.",
        ("order number", "pl"): lambda: f"Moje zamówienie {number(9)} nie jest gotowe.",
        ("order number", "zh"): lambda: f"我的订单{number(11)}没有到。",
        ("bare number", "en"): lambda: f"It is {number(10)}, is it not?",
        ("price", ""): lambda: f"You have to pay {below(999)},{number(3)}.{number(2)} for it",
        ("price", "de"): lambda: f"Das ist mit {below(99)}.{number(3)}.{number(3)},00 € zu teuer.",
        ("price", "fr"): lambda: f"Le prix est de {number(2)} {number(3)} {number(3)} € pour vous.",
        ("date", "ISO"): lambda: f"on 202{number(1)}-{below(12):02}-{below(28):02} and not before",
        ("date", "with points"): lambda: (
            f"am {below(28):02}.{below(12):02}.202{number(1)} {9 + below(14)}:{number(2)[0]}0"
        ),
        ("date", "with blanks"): lambda: f"le {below(28):02} {below(12):02} 202{number(1)} pour vous",
        ("time", ""): lambda: f"from {9 + below(14)}:{9 + below(14)}:{9 + below(14)} on",
        ("version", ""): lambda: f"version {below(28)}.{below(12)}.{number(2)} of the app",
        ("version", "of four numbers"): lambda: f"version {below(28)}.{below(12)}.{below(28)}.{number(2)} of the app",
        ("size", ""): lambda: f"it has {number(4)}x{number(4)} points and {number(7)} colours, I think",
    }
    for (kind, form), make in makers.items():
        for _ in range(n):
            text = make()
            yield f"stays: {kind}", form, text, text


NAMED = ("Ann Lee", "José Núñez", "Łukasz Wójcik", "Anne-Marie O'Neil", "Jürgen von der Heide", "Mark Young", "王小明")
CALLS = ("Hi {}, thanks", "Thanks {}!", "it is for {} and me", "I spoke to {}'s boss", "{} here", "Dear {}")
AS_WORDS = (
    "Mark the box and hope for the best",
    "the young man will grant it",
    "I will bill you in May",
    "Will it rise?",
)


def names(random_: random.Random, n: int) -> Made:
    """Names of participants in texts, and words that are names."""
    for name in NAMED:
        first = name.split()[0]
        forms = {"full": name, "first": first, "decomposed": unicodedata.normalize("NFD", first)}
        forms |= {} if name in ("Mark Young", "王小明") else {"small letters": first.lower()}
        for form, own in forms.items():
            for call in CALLS:
                yield "name", form, own, call.format(own)
    for text in AS_WORDS:
        yield "stays: word that is a name", "", text, text


def main() -> None:
    """Print a row for each kind and country."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=int, default=200, help="strings for each kind and country")
    n = parser.parse_args().n
    people = dict.fromkeys((*NAMED, "Will May", "Grant Hope"), "customer")
    slots, ordinary = slots_of(people), set(NAMES["word_names"])
    redactor = Redactor(ordinary=ordinary)
    shares: dict[str, dict[str, list[bool]]] = {}
    for made in (phones, others, names, innocent):
        for kind, form, personal, text in made(random.Random(1), n):
            shown = redactor(text, slots)
            right = shown == text if kind.startswith("stays") else personal not in shown
            shares.setdefault(kind, {}).setdefault(form, []).append(right)
    print("| kind | right |\n|---|---|")
    for kind, forms in shares.items():
        by_share: dict[str, list[str]] = {}
        for form, held in forms.items():
            by_share.setdefault(f"{100 * sum(held) / len(held):.0f}%", []).append(form)
        cells = [f"{', '.join(filter(None, each))} {share}".strip() for share, each in by_share.items()]
        print(f"| {kind} | {'; '.join(cells)} |")


if __name__ == "__main__":
    main()
