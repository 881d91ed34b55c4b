"""Mail: mbox files, single messages (.eml) and folders of them; In-Reply-To and References form threads.

Quotations, signatures and automatic mails are left out.
"""

import re
from contextlib import suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import parseaddr
from itertools import dropwhile

from polyrank_chats.errors import DataError
from polyrank_chats.files.file import File
from polyrank_chats.messages import ATTACHMENT, EMPTY, SYSTEM, Message, Messages
from polyrank_chats.texts import from_html

STREAM = "mail"  # one for all files, because a thread has mails in the inbox and in the outbox
MBOX = re.compile(rb"(?:\A|\n\r?\n)From [^\n]*\d\d:\d\d[^\n]*\n")
HEADERS = re.compile(rb"\A(?:[A-Za-z][A-Za-z0-9-]*:[^\n]*\n(?:[ \t][^\n]*\n)*){2,}\r?\n?")
MAIL_HEADERS = re.compile(rb"(?im)^(?:from|message-id|received|mime-version|return-path|date):")
ID = re.compile(r"<([^<>\s]+)>")
QUOTED = re.compile(r"^\s*>")
WROTE = r"(?:wrote|schrieb|a écrit|escribió|ha scritto|schreef|escreveu|skrev)"
ABOVE_QUOTE = re.compile(  # "On Monday, Ann wrote:", over up to three lines, of limited length to take linear time
    rf"^[ \t]*(?:(?:On|Am|Le|El|Il|Op|Em|Den)\b[^\n]{{0,300}}(?:\n(?!>)[^\n]{{0,300}}?)?"
    rf"|[^\n]{{0,300}}<[^<>\s]{{1,300}}>[^\n]{{0,300}}?)"
    rf"{WROTE}[^\n]{{0,300}}(?:\n(?!>)[^\n]{{0,80}})?:[ \t]*$",
    re.MULTILINE,
)
DATED = re.compile(r"\d:\d\d|\b20\d\d\b|@")
FORWARDED = re.compile(r"^[ \t]*(?:-{3,}[^\n-]*[^\W\d_][^\n-]*-{3,}|_{10,})[ \t]*$", re.MULTILINE)
HEADER_BLOCK = re.compile(
    r"^[ \t*]*(?:From|Von|De|Da|Van)[ *]*:[^\n]+\n(?:[^\n]*\n)?"
    r"[ \t*]*(?:Sent|Date|To|Gesendet|Datum|An|Envoyé|À|Enviado|Fecha|Para|Inviato|A|Verzonden|Aan)[ *]*:",
    re.MULTILINE,
)
SIGNATURE = re.compile(
    r"^(?:-- ?|\s*(?:Sent from my |Get Outlook for |Von meinem .* gesendet|Envoyé de mon |Enviado desde mi ).*)$",
    re.MULTILINE,
)


def mail(file: File) -> Messages | None:
    """Each mail is a message; threads may extend over all files of a folder."""
    data = file.data
    head = data[:20_000].replace(b"\r\n", b"\n")
    if MBOX.match(head):
        return _messages(file, MBOX.split(data)[1:])
    headers = HEADERS.match(head)
    n_known = len(set(map(bytes.lower, MAIL_HEADERS.findall(headers[0])))) if headers else 0
    return _messages(file, [data]) if n_known > 1 else None


def _messages(file: File, mails: list[bytes]) -> Messages:
    for number, raw in enumerate(mails, 1):
        where = f"{file.path}: mail {number}" if len(mails) > 1 else str(file.path)
        found: Message | str | DataError
        try:
            message = message_from_bytes(re.sub(rb"(?m)^>(>*From )", rb"\1", raw), policy=policy.default)
            found = _message(message, where)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # raised by the library for hostile mails
            found = DataError(f"{where}: cannot be read ({error}); remove it")
        yield found


def _message(mail: EmailMessage, where: str) -> Message | str:
    """The message, or the reason for leaving it out."""
    name, address = parseaddr(str(mail.get("From", "")))
    if str(mail.get("Auto-Submitted", "no")).lower() != "no" or address.lower().startswith("mailer-daemon@"):
        return SYSTEM
    text = unquoted(_body(mail))
    if not text:
        return ATTACHMENT if any(mail.iter_attachments()) else EMPTY
    if not (name or address):
        raise ValueError("no sender")
    own = ID.search(str(mail.get("Message-ID", "")))
    answers = [found for header in ("References", "In-Reply-To") for found in ID.findall(str(mail.get(header, "")))]
    return Message(
        where=where,
        stream=STREAM,
        sender=name or address,
        text=text,
        conversation=str(mail["X-GM-THRID"]).strip() if mail["X-GM-THRID"] else None,
        time=str(mail["Date"]) if mail["Date"] else None,
        role=address.partition("@")[0] or None,
        sender_id=address or None,
        id=own[1] if own else where,
        answers=tuple(dict.fromkeys(answers)),
    )


def _body(mail: EmailMessage) -> str:
    part = mail.get_body(("plain", "html"))
    if part is None:
        return ""
    payload = part.get_payload(decode=True)
    text = _decoded(payload if isinstance(payload, bytes) else b"", part.get_content_charset("utf-8"))
    if part.get_content_subtype() == "html":
        return from_html(f"<html>{text}</html>")
    if part.get_param("format") == "flowed":
        text = re.sub(r"(?<!^--) \r?\n(?![>\s])", " ", text, flags=re.MULTILINE)
    return text


def _decoded(payload: bytes, encoding: str) -> str:
    for name in (encoding, "utf-8"):
        with suppress(LookupError, UnicodeDecodeError):
            return payload.decode(name)
    return payload.decode("cp1252", "replace")


def unquoted(text: str) -> str:
    """Remove quotations, forwarded mails and signatures.

    >>> unquoted("Yes.\\n\\nOn Mon, 6 May 2024, Ann\\n<ann@x.org> wrote:\\n> Is it on?\\n\\nAll of it.\\n-- \\nBen")
    'Yes.\\n\\nAll of it.'
    >>> unquoted("Thanks!\\n\\nFrom: Ann\\nSent: Monday\\nTo: Ben\\nSubject: it\\n\\nIs it on?")
    'Thanks!'
    """
    text = text.replace("\r\n", "\n").replace("\xa0", " ")
    for mark in (FORWARDED, HEADER_BLOCK):
        if found := mark.search(text):
            text = text[: found.start()]
    while found := next((each for each in ABOVE_QUOTE.finditer(text) if DATED.search(each[0])), None):
        rest = text[found.end() :]
        marked = any(map(QUOTED.match, rest.strip().split("\n")[:1]))
        text = text[: found.start()] + (rest if marked else "")
    if found := SIGNATURE.search(text):
        below = text[found.end() :].split("\n")  # keep what follows a quotation after the signature
        text = text[: found.start()] + "\n".join(dropwhile(lambda line: not QUOTED.match(line), below))
    lines = (line.rstrip() for line in text.split("\n") if not QUOTED.match(line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
