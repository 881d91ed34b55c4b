"""Slots: the places of a reply that hold data of one conversation, such as ``{order}``.

``data`` recognizes values by their form, ``people`` the names of a conversation's participants by their place, and
``templates`` puts slots into texts and fills them from a context. Nothing here knows files or models.
"""

from polyrank.slots.data import KINDS as KINDS, NUMBER as NUMBER, SEVERAL as SEVERAL, Found as Found, data_in as data_in
from polyrank.slots.people import lowered as lowered, parts_of as parts_of, people_in as people_in
from polyrank.slots.templates import (
    GAPS_FIELD as GAPS_FIELD,
    SLOT as SLOT,
    fill as fill,
    masked as masked,
    sent_template as sent_template,
    slots_in as slots_in,
    template as template,
    values_of as values_of,
)
