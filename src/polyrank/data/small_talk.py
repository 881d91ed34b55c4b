"""Recognize greetings and thanks by their words, in English, French, German and Spanish."""

from typing import Literal

from polyrank.data.same_words import same_words
from polyrank.slots import SLOT

SmallTalk = Literal["greeting", "thanks"]
KIND_FIELD = "kind"
"""The metadata field of replies that are greetings or thanks."""
_THANKS = (
    "thanks thank thx welcome pleasure bye goodbye danke dankeschön tschüss wiedersehen gern gerne merci "
    "revoir gracias adiós nada rien"
)
_GREETINGS = "hi hello hey hiya greetings hallo moin servus grüezi guten bonjour bonsoir salut hola buenos buenas buen"
_OTHERS = (
    "you so very much a lot many good great nice lovely morning afternoon evening day night weekend there dear "
    "sir madam how can may could i we help assist today are is it what do for to no problem at all my your re "
    "have anything else with any other questions glad happy contacting reaching out us waiting patience the "
    "that and now team see take care vielen herzlichen auf tag morgen abend nachmittag wie kann ich ihnen dir "
    "helfen heute schönen einen noch sehr bitte für ihre ihren nachricht geduld comment puis je vous aider "
    "beaucoup de votre bonne journée soirée au aujourd hui message muchas en qué puedo ayudarle ayudarte días "
    "tardes noches día por su mensaje paciencia que tenga un una tarde"
)


def small_talk(text: str) -> SmallTalk | None:
    """Whether a text is nothing but a greeting or thanks.

    >>> small_talk("Hi {customer}! How can I help you today?"), small_talk("You're welcome, have a nice day!")
    ('greeting', 'thanks')
    >>> small_talk("Thanks, your order is on its way"), small_talk("Can I help you?")
    (None, None)
    """
    words = set(same_words(SLOT.sub(" ", text)).split())
    thanks, greetings, others = (set(known.split()) for known in (_THANKS, _GREETINGS, _OTHERS))
    if not words <= thanks | greetings | others:
        return None
    return "thanks" if words & thanks else "greeting" if words & greetings else None
