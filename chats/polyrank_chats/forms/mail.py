"""Mail: mbox files, single messages (.eml) and folders of them; In-Reply-To and References form threads.

Quotations, signatures and automatic mails are left out.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import getaddresses, parseaddr

from polyrank_chats.errors import DataError
from polyrank_chats.files.file import File
from polyrank_chats.messages import Message, Messages, Reason
from polyrank_chats.names import NAMES
from polyrank_chats.quotations import unquoted
from polyrank_chats.texts import from_html

STREAM = "mail"  # one for all files, because a thread has mails in the inbox and in the outbox
MBOX = re.compile(rb"(?:\A|\n\r?\n)From [^\n]*\d\d:\d\d[^\n]*\n")
HEADERS = re.compile(rb"\A(?:[A-Za-z][A-Za-z0-9-]*:[^\n]*\n(?:[ \t][^\n]*\n)*){2,}\r?\n?")
MAIL_HEADERS = re.compile(rb"(?im)^(?:from|message-id|received|mime-version|return-path|date):")
_PREFIX = rf"(?:{'|'.join(NAMES['answer_prefixes'])})(?:\[\d+\])?\s*[:：]\s*"
ANSWERS = re.compile(rf"((?:{_PREFIX})*)(.*)", re.IGNORECASE | re.DOTALL)
TICKET = re.compile(r"[\[(#][^\])]*\d{2,}")
ID = re.compile(r"<([^<>\s]+)>")


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
        try:
            if raw.count(b"\n--") > 10_000:
                raise ValueError("more than 10,000 parts")
            yield _message(message_from_bytes(re.sub(rb"(?m)^>(>*From )", rb"\1", raw), policy=policy.default), where)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # raised by the library for hostile mails
            yield DataError(f"{where}: cannot be read ({error}); remove it")


def _message(mail: EmailMessage, where: str) -> Message | Reason:
    """The message, or the reason for leaving it out."""
    name, address = parseaddr(str(mail.get("From", "")))
    if str(mail.get("Auto-Submitted", "no")).lower() != "no" or address.lower().startswith("mailer-daemon@"):
        return Reason.SYSTEM
    text = unquoted(_body(mail))
    if not text:
        return Reason.ATTACHMENT if any(mail.iter_attachments()) else Reason.EMPTY
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
        subject=str(mail.get("Subject", "")),
        recipients=tuple(to for _, to in getaddresses([str(mail.get(header, "")) for header in ("To", "Cc")])),
    )


def by_subject(mails: Sequence[Message]) -> list[Message]:
    """Mails with a parent: one without a known message in its headers answers the last mail of the same subject.

    This counts if the subject begins like that of an answer, or has the number of a ticket, and the two mails have a
    person in common, apart from those of the mail domain of the most mails.
    """

    def domain_of(address: str) -> str:
        return address.rpartition("@")[2]

    known = {each.id for each in mails}
    people = [{address.lower() for address in (each.sender_id, *each.recipients) if address} for each in mails]
    n_mails = Counter(domain for own in people for domain in {domain_of(address) for address in own})
    n_people = Counter(map(domain_of, set().union(*people)))
    staff = max(n_mails, key=lambda domain: (n_mails[domain], -n_people[domain]), default="")
    last: dict[tuple[str, str], str] = {}
    linked = [*mails]
    for position in sorted(range(len(mails)), key=lambda position: mails[position].time or datetime.min):
        message = mails[position]
        found = ANSWERS.match(message.subject.strip())
        prefix, subject = found.groups() if found else ("", "")
        others = [(subject.casefold(), address) for address in people[position] if domain_of(address) != staff]
        others = others or [(subject.casefold(), address) for address in people[position]]
        earlier = next((last[other] for other in others if other in last), None)
        if earlier and not known.intersection(message.answers) and (prefix or TICKET.search(subject)):
            linked[position] = replace(message, answers=(*message.answers, earlier))
        last |= dict.fromkeys(others, message.id or "")
    return linked


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
