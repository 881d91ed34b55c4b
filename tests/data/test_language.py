"""The language of texts."""

import pytest

from polyrank.data.language import language_of


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["Where is my order?", "It is on the way, we have sent it"], "en"),
        (["Wo ist meine Bestellung?", "Die ist auf dem Weg, wir haben sie verschickt"], "de"),
        (["Où est ma commande ?", "Elle est dans le camion, vous avez une date"], "fr"),
        (["¿Dónde está mi pedido?", "El pedido está en camino y no tarda"], "es"),
        (["Gdzie jest moja paczka?", "Proszę czekać, już się robi"], "pl"),
        (["Где мой заказ?", "Он в пути, order 12"], "ru"),
        (["注文はどこですか", "配送中です"], "ja"),
        (["주문이 어디에 있나요?", "배송 중입니다"], "ko"),
        (["ok", "1234", ""], None),
        (["Where is my order?", "Wo ist meine Bestellung?"], None),  # half of them
        (
            ["Wo ist meine Bestellung?", "Where is my order?", "ok", "Die ist auf dem Weg, wir haben sie verschickt"],
            "de",
        ),
    ],
)
def test_languages_are_distinguished(texts: list[str], language: str | None) -> None:
    assert language_of(texts) == language
