"""Slots: the places of a reply that hold data of one conversation, such as ``{order}``.

``data`` recognizes values by their form, ``people`` the names of a conversation's participants by their place, and
``templates`` puts slots into texts and fills them from a context. Nothing here knows files or models.
"""

from polyrank.slots.data import KINDS, NUMBER, SEVERAL, Found, data_in, normalized
from polyrank.slots.people import parts_of, people_in
from polyrank.slots.templates import GAPS_FIELD, SLOT, fill, masked, sent_template, slots_in, template, values_of

__all__ = [
    "GAPS_FIELD",
    "KINDS",
    "NUMBER",
    "SEVERAL",
    "SLOT",
    "Found",
    "data_in",
    "fill",
    "masked",
    "normalized",
    "parts_of",
    "people_in",
    "sent_template",
    "slots_in",
    "template",
    "values_of",
]
