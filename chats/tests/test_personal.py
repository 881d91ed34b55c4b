"""Personal data become slots; numbers, dates and words that only look like them stay."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyrank_chats import import_chats
from polyrank_chats.redact import Redactor

Write = Callable[[str, Any], Path]


def said(write: Write, *rows: str, **options: Any) -> list[list[str]]:
    """The texts of each conversation of rows ``conversation,sender,text``."""
    found = import_chats(write("x.csv", "conversation,sender,text\n" + "\n".join(rows)), **options)
    return [[turn["text"] for turn in row["turns"]] for row in found.dialogues]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Vous pouvez m'appeler au 06 12 34 56 78 le matin", "Vous pouvez m'appeler au {phone} le matin"),
        ("c'est le 06 12 24 11 03", "c'est le {phone}"),
        ("Mi móvil es 612 345 678 o el 912345678", "Mi móvil es {phone} o el {phone}"),
        ("O meu número é 912 345 678 para você", "O meu número é {phone} para você"),
        ("Mój numer to 512 345 678, proszę nie dzwonić", "Mój numer to {phone}, proszę nie dzwonić"),
        ("call me on 98765 43210 please", "call me on {phone} please"),
        ("my mobile is 9876543210", "my mobile is {phone}"),
        ("我的电话是13812345678，谢谢", "我的电话是{phone}，谢谢"),
        ("my password is hunter2!", "my password is {secret}"),
        ("Passwort: Sommer2024", "Passwort: {secret}"),
        ("le mot de passe est azerty99", "le mot de passe est {secret}"),
        ("Llámame al 612345678", "Llámame al {phone}"),
        ("mit nummer er 20 12 34 56", "mit nummer er {phone}"),
        ("fe80::1 or ann [at] x.example", "{ip} or {email}"),
        ("PIN 4711", "PIN {secret}"),
        ("密码是abc123", "密码是{secret}"),
        ("key sk-abcDEF123456ghiJKL7890", "key {secret}"),
        ("log in at https://ann:pw@x.example/a", "log in at {link}"),
        ("shop.example/reset?token=abc, please", "{link}, please"),
        ("from 2001:db8:0:1:1:1:1:1 and 203.0.113.7", "from {ip} and {ip}"),
    ],
)
def test_personal_data_of_many_kinds(text: str, wanted: str) -> None:
    assert Redactor()(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "My order 4829103847 is late", "order number is 612345678", "Mi pedido 612345678 no está en la lista",
        "Die Bestellung 0170123456 ist nicht da", "我的订单13812345678没有到", "ticket #0612345678",
        "it costs 12 345 678 €", "$1 234 567 890", "le 05 03 2024 pour vous", "from 2019-2024", "at 15:04:05",
        "version 10.2.3.4 of the app", "Chrome 120.0.6099.109", "the password is wrong", "reset my password please",
        "Password: please change it", "use std::vector", "and/or", "e.g. 3.5 or 1.25", "It is 4829103847, is it not?",
    ],
)  # fmt: skip
def test_texts_that_only_look_personal(text: str) -> None:
    assert Redactor()(text) == text


def test_names_of_participants(write: Write) -> None:
    rows = ['1,Ann Lee,"Hi, ann lee here. Is Bea there?"', '1,Support Bea,"Hi Ann, Ann\'s order is ready"']
    rows += ["2,Will May,I will wait. Will", '2,Support Bea,"Hi Will, will you? Ann isn\'t here"']
    assert said(write, *rows, agent="Support Bea") == [
        ["Hi, {customer} here. Is Bea there?", "Hi {customer}, {customer}'s order is ready"],
        ["I will wait. {customer}", "Hi {customer}, will you? Ann isn't here"],
    ]


def test_names_of_agents_are_replaced_in_every_conversation(write: Write) -> None:
    rows = ["1,Ann,hi", "1,Bea Ray,hello", "2,Cy,is bea there?", '2,Dee,"Bea Ray is, Cy"', "2,Cy,ok"]
    assert said(write, *rows, agent=["Bea Ray", "Dee"])[1] == ["is {agent} there?", "{agent} is, {customer}", "ok"]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_in_every_form_of_unicode(write: Write, form: str) -> None:
    rows = ["1,José Núñez,hola", f"1,agent,{unicodedata.normalize(form, 'Hola José y señor NÚÑEZ y josé')}"]
    assert said(write, *rows) == [["hola", "Hola {customer} y señor {customer} y {customer}"]]
    rows = ["1,王小明,你好", "1,agent,王小明您好"]
    assert said(write, *rows) == [["你好", "{customer}您好"]]


def test_a_word_in_small_letters_elsewhere_is_not_a_name(write: Write) -> None:
    rows = ["1,Sky Blue,hi", '1,agent,"Hi Sky, your blue shoes are here"', "2,Cy,the blue one", "2,agent,Yes"]
    assert said(write, *rows)[0] == ["hi", "Hi {customer}, your blue shoes are here"]


def test_names_of_roles_and_addresses(write: Write) -> None:
    rows = ["1,ann.lee@x.example,I am Ann", "1,Acme Support,Support is here for you Ann"]
    assert said(write, *rows) == [["I am {customer}", "Support is here for you {customer}"]]
    rows = ["1,Ann,is the shop open", '1,Ben Shop,"Our Shop is open, Ann"']
    assert said(write, *rows, agent="Ben Shop") == [["is the shop open", "Our Shop is open, {customer}"]]
    rows = ["1,ann.lee@x.example,I am Ann", "1,Acme Support,Support is here for you Ann"]
    assert said(write, *rows, keep_personal=True) == [["I am Ann", "Support is here for you Ann"]]


@pytest.mark.parametrize(
    ("name", "short"),
    [("Elizabeth Harrow", "Liz"), ("Benjamin Cole", "Ben"), ("Bob Stone", "Robert"), ("Екатерина", "Катя"),
     ("Katarzyna Nowak", "Kasia"), ("Francisco Gil", "Paco"), ("Johannes Berg", "Hannes"), ("Catherine", "Kate")],
)  # fmt: skip
def test_short_forms_of_the_participants_names_are_replaced(write: Write, name: str, short: str) -> None:
    rows = [f"1,{name},hello this is {short}", f"1,Zoe,Hi {short}!", f"1,{name},thanks", "2,Cy,hi", f"2,Zoe,{short}?"]
    assert said(write, *rows, agent=["Zoe"]) == [
        ["hello this is {customer}", "Hi {customer}!", "thanks"], ["hi", f"{short}?"],
    ]  # fmt: skip


def test_a_short_form_that_is_a_word_stays_a_word(write: Write) -> None:
    rows = ["1,William Fox,Will you send the bill? I will wait. Bill", '1,Zoe,"Bill, the bill is here, OK Will?"']
    assert said(write, *rows, agent=["Zoe"]) == [
        ["Will you send the bill? I will wait. {customer}", "{customer}, the bill is here, OK {customer}?"]
    ]
