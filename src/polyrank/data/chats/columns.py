"""Which column is which: by the names that the user gave, else by usual ones.

A column of JSON is the path to a field, with dots: ``author.name``.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from polyrank.data.chats.messages import ReadOptions
from polyrank.data.rows import Row
from polyrank.errors import DataError, UsageError


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


# usual names, in small letters without blanks and accents; an earlier one is preferred
CONVERSATION = words(
    """
    conversationid conversation convid conv dialogueid dialogid dialogue dialog sessionid session threadid
    threadts thread ticketid ticketnumber ticket caseid casenumber case chatid chat chatname discussionid
    interactionid callid roomid room channelid channel groupid conversationname konversation konversationsid
    unterhaltung gespraech gesprachsid gesprach vorgang ticketnummer conversacion idconversacion conversacionid
    conversazione idconversation
    """
)
TIME = words(
    """
    timestamp timestampms datetime time createdat created creationtime createtime createdtime sentat sent
    senttime sendtime messagetime messagedate messagetimestamp eventtime dateunixtime unixtime epoch date ts when
    createdon postedat zeit
    zeitstempel zeitpunkt datum uhrzeit fecha fechahora hora horodatage heure data dataora dataehora orario
    """
)
DATE = words("date datum fecha data")
CLOCK = words("time uhrzeit hora heure orario clock")
SENDER = words(
    """
    sender sendername senderid speaker speakername speakerid author authorname authorusername authordisplayname
    authoremail authorid from fromname fromuserdisplayname username userdisplayname user userid participant
    participantname displayname who actor actorname agentorcustomer messagefrom sentby createdby name absender von
    sprecher autor remitente emisor expediteur auteur mittente autore remetente handle nick nickname agent party
    """
)
SENDER_ID = words("senderid authorid userid fromid speakerid participantid")
ROLE = words(
    """
    role authorrole authortype senderrole sendertype userrole usertype speakerrole speakertype participantrole
    participanttype fromtype actortype direction rolle rol
    """
)
TEXT = words(
    """
    plainbody bodytext bodyplain textplain text messagetext messagebody message msg content contentparts
    messagecontent body bodycontent contenttext contentbody textbody utterance utterancetext transcript value
    reply htmlbody bodyhtml html nachricht nachrichtentext texto mensaje mensagem texte messaggio testo inhalt
    """
)
KIND = words("type messagetype msgtype kind parttype eventtype subtype contenttype")
ID = words("id messageid tweetid msgid commentid postid uuid")
REPLY_TO = words("inreplyto inreplytoid inresponseto inresponsetotweetid replyto replytoid parentid replytomessageid")
PRIVATE = words("private isprivate internal isinternal internalnote")
PUBLIC = words("public ispublic")
FILES = words("attachments attachment files file photo photos media image images sticker audio video document")
FROM_CUSTOMER = words("incoming isincoming inbound isinbound fromcustomer iscustomer")
FROM_AGENT = words("fromagent isagent isstaff isadmin outgoing isoutgoing outbound isoutbound fromme isfromme")
QUESTION = words(
    """
    question questions questiontext q query prompt instruction userquestion customerquestion frage fragen
    pregunta domanda pergunta title
    """
)
ANSWER = words(
    """
    answer answers answertext a reply response completion output antwort antworten respuesta reponse risposta
    resposta
    """
)


def normal(name: str) -> str:
    """A name without what people write differently.

    >>> normal("Conversation_ID"), normal("Expéditeur"), normal("author.name")
    ('conversationid', 'expediteur', 'authorname')
    """
    plain = unicodedata.normalize("NFKD", name.casefold().replace("ä", "a").replace("ü", "u").replace("ö", "o"))
    return re.sub(r"[\W_]", "", "".join(letter for letter in plain if not unicodedata.combining(letter)))


def flat(row: Row, prefix: str = "") -> Row:
    """Fields of objects as fields of the row.

    >>> flat({"author": {"name": "Ann", "tags": [1]}, "body": "hi"})
    {'author.name': 'Ann', 'author.tags': [1], 'body': 'hi'}
    """
    leaves: Row = {}
    for key, value in row.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def keys_of(rows: Iterable[Row]) -> list[str]:
    """The columns of rows, in the order in which they come."""
    return list(dict.fromkeys(key for row in rows for key in row))


def usual(keys: Iterable[str], names: Iterable[str]) -> list[str]:
    """The columns that have one of the names, in the order of the names."""
    by_name: dict[str, str] = {}
    for key in keys:
        by_name.setdefault(normal(key), key)
    return [by_name[name] for name in names if name in by_name]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table of messages: of each kind, those to look into, the first that is filled counts."""

    conversation: str | None
    time: tuple[str, ...]
    sender: tuple[str, ...]
    text: tuple[str, ...]
    sender_ids: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    from_customer: tuple[str, ...] = ()
    from_agent: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    reply_to: tuple[str, ...] = ()


def columns(keys: list[str], options: ReadOptions, where: object) -> Columns:
    """Settle which column is which, and note what was guessed.

    Args:
        keys: the columns there are.
        options: what the user named.
        where: the file, for messages.

    Raises:
        DataError: no column can be taken for the sender's or the text's.
        UsageError: a column that was named is not there.
    """
    named_ones = [options.conversation, *options.time, options.sender, options.text]
    for name in named_ones:
        if name is not None and name not in keys:
            raise UsageError(f"{where} has no column {name!r}; it has {listed(keys)}")
    free = [key for key in keys if key not in named_ones]
    role = usual(free, ROLE)
    columns = {
        "conversation": [options.conversation] if options.conversation else usual(free, CONVERSATION)[:1],
        "time": list(options.time) or _time(free),
        "sender": [options.sender] if options.sender else usual(free, SENDER) or role,
        "text": [options.text] if options.text else usual(free, TEXT),
    }
    for what in ("sender", "text"):
        if not columns[what]:
            raise DataError(
                f"{where}: no column has a usual name for the {what} among {listed(keys)};"
                f" name it with the option {what}, or add a heading if there is none"
            )
    guessed = [
        f"{what} in {columns[what][0]!r}" if what != "time" else f"time in {' and '.join(map(repr, columns[what]))}"
        for what in columns
        if columns[what] and not getattr(options, what)
    ]
    roles = [
        key for key in (*role, *usual(free, FROM_CUSTOMER), *usual(free, FROM_AGENT)) if key not in columns["sender"]
    ][:1]
    guessed += [f"role in {key!r}" for key in roles]
    if guessed:
        options.log.note(f"guessed by its name: {', '.join(guessed)}")
    taken = {*columns["text"], *columns["sender"][:1], *columns["conversation"]}
    rest = [key for key in free if key not in taken]
    return Columns(
        conversation=next(iter(columns["conversation"]), None),
        time=tuple(columns["time"]),
        sender=tuple(columns["sender"]),
        text=tuple(columns["text"]),
        sender_ids=tuple(usual(free, SENDER_ID)),
        role=tuple(role),
        from_customer=tuple(usual(rest, FROM_CUSTOMER)),
        from_agent=tuple(usual(rest, FROM_AGENT)),
        kind=tuple(usual(rest, KIND)),
        private=tuple(usual(rest, PRIVATE)),
        public=tuple(usual(rest, PUBLIC)),
        files=tuple(usual(rest, FILES)),
        ids=tuple(usual(rest, ID)),
        reply_to=tuple(usual(rest, REPLY_TO)),
    )


def _time(keys: list[str]) -> list[str]:
    """The column of times, or one of dates and one of the time of day."""
    dates, clocks = usual(keys, DATE), usual(keys, CLOCK)
    if dates and clocks:
        return [dates[0], clocks[0]]
    return usual(keys, TIME)[:1]


def listed(keys: Iterable[str]) -> str:
    """Columns in words, the first twenty of them."""
    names = [repr(key[:40]) for key in keys]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
