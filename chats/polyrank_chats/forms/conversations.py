"""JSON of conversations with lists of messages: OpenAI and ShareGPT records, exports of help desks, and similar files.

Each message becomes a row with the id of its conversation, which is then read like a row of a table. A table may hold a
conversation as JSON in each row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from polyrank_chats.columns import asking_columns, check_columns, flat, keys_of, normal, profiles, time_columns, usual
from polyrank_chats.errors import DataError, row_error
from polyrank_chats.files.file import File
from polyrank_chats.forms.nested import Talk, current_branch, has_next_page, parsed, rows_in, talks_in
from polyrank_chats.forms.programs import in_topics, translated
from polyrank_chats.forms.tables import ANSWERED, CONVERSATION, ID, first_rows, messages_of, some_rows, time_of
from polyrank_chats.forms.transcripts import holds_transcripts, spoken
from polyrank_chats.messages import Messages, Reason, Rows
from polyrank_chats.names import NAMES
from polyrank_chats.options import Options
from polyrank_chats.roles import AGENT, CUSTOMER, part_of
from polyrank_chats.texts import plain
from polyrank_chats.values import Row, objects_in
from polyrank_chats.wording import listed

EXCHANGE = "(question and answer)"


def conversations(file: File) -> Messages | None:
    """Lists of messages are conversations; a single list without an id is a stream, such as a channel."""
    options = file.options
    if has_next_page(some_rows(file)):
        options.report.note(f"{file.path.name} is a page of several; get the others too, and give their folder")
    first = first_rows(some_rows(file))
    spoken_in = [key for key in keys_of(first) if key == options.messages or holds_transcripts(first, key)]
    rows: Rows = [(number, current_branch(parsed(row, spoken_in))) for number, row in some_rows(file)]
    talks = talks_in(rows, options.messages)
    is_nested = any(talk.owner or talk.name or talk.is_tree for talk in talks)
    if not (is_nested or options.form or options.messages):
        return None
    if not talks:
        what = f"no list at {options.messages!r}" if options.messages else "no messages with a text and a sender"
        fields = listed(paths_of(rows))
        raise DataError(f"{file.path}: has {what}, but {fields}; name the list with the option messages")
    return _all_messages(file, rows, talks)


def questions(file: File) -> Messages | None:
    """A row is a conversation: a question of a customer and the answer of an agent."""
    options = file.options
    rows = [(number, flat(row)) for number, row in rows_in(some_rows(file))]
    first = first_rows(rows)
    keys = keys_of(first)
    check_columns(keys, (options.question, options.answer), file.path)
    wanted = options.form or options.question or options.answer
    if not wanted and (options.sender or options.text or options.conversation):
        return None
    answers = [options.answer] if options.answer else asking_columns(first, "answer")
    free = [{key: value for key, value in row.items() if key not in answers} for row in first]
    asked = [options.question] if options.question else asking_columns(free, "question")
    if not (asked and answers):
        if wanted:
            problem = f"no columns of questions and answers among {listed(keys)}"
            raise DataError(f"{file.path}: {problem}; name them with the options question and answer")
        return None
    check_columns(keys, (*options.time, options.conversation), file.path)
    chosen = asked[0], answers[0]
    if not (options.question and options.answer):
        options.report.note(f"guessed by its name: question in {chosen[0]!r}, answer in {chosen[1]!r}")
    return _exchanges(file, rows, chosen)


def _exchanges(file: File, rows: Rows, chosen: tuple[str, str]) -> Messages:
    """Rows with a list of two messages in place of a question and an answer."""
    talks: Rows = []
    for number, row in rows:
        asked, answered = (plain(row.get(key)) for key in chosen)
        if str(row.get("header")).startswith("Gemini"):  # its titles begin with a word such as Prompted
            asked = asked.partition(" ")[2]
        if answered and not asked:
            yield row_error(file.path, number, f"no text in {chosen[0]!r}; fill it in or remove the row")
            continue
        said = spoken(f"{asked} {answered}") if asked.endswith(":") else []  # of a prompt, which names the speakers
        if len(said) < 2 or part_of(said[-1][0]) != AGENT:
            given = plain(row.get("input")) if chosen[0] == "instruction" else ""  # Alpaca's
            said = [(CUSTOMER, asked), (CUSTOMER, given), (AGENT, answered)]
        held = [{"role": role, "text": text} for role, text in said if text]
        talks.append((number, {key: value for key, value in row.items() if key not in chosen} | {EXCHANGE: held}))
    yield from _all_messages(file, talks, talks_in(talks, EXCHANGE))


def paths_of(rows: Rows) -> list[str]:
    """The paths of the lists in rows, with dots, and the fields of their objects; the fields of rows without lists."""
    lists: dict[str, Row] = {}
    todo = [(key, value) for row in first_rows(rows) for key, value in flat(row).items()]
    for path, value in todo:  # grows
        for item in map(flat, objects_in(value)):
            lists.setdefault(path, item)
            todo += [(f"{path}.{key}", inner) for key, inner in item.items()]
    return [f"{path} ({', '.join([*item][:8])})" for path, item in lists.items()] or keys_of(first_rows(rows))


def _all_messages(file: File, rows: Rows, talks: Sequence[Talk]) -> Messages:
    options = file.options
    timed = usual(flat(talks[0].messages[0][0]), "time")
    is_stream = len(talks) == 1 and _id(talks[0], options) in (None, talks[0].name if timed else None)
    messages: Rows = []
    known: dict[tuple[str, object], list[list[Row]]] = {}  # the conversations with each id, and question if it has one
    owners = first_rows([(talk.number, flat(talk.owner)) for talk in talks])
    began = options.time if {*options.time} <= {*keys_of(owners)} else ()
    options = replace(options, time=() if began else options.time)
    began = began or time_columns([*profiles(owners).values()], options)
    if began:
        options.report.note(f"conversations begin at the time in {' and '.join(map(repr, began))}")
    for talk in talks:
        name = _id(talk, options) or f"{file.stem}:{talk.number}"
        held = [item for item, _ in talk.messages]
        same = known.setdefault((name, held[0]["text"] if EXCHANGE in talk.owner else None), [])
        if held in same:
            yield from [Reason.REPEATED] * len(held)
            continue
        same.append(held)
        name = name if len(same) == 1 else f"{name} ({len(same)})"
        talk.messages[:0] = [] if talk.is_tree else [(item, None) for item in _opening(talk.owner, held)]
        items = [translated(row, file) for row in _messages(talk, began)]
        if channel := _channel(talk, talks):
            in_topics(items, channel)
        in_stream = channel or is_stream or not talk.number
        for position, (item, (_, answered)) in enumerate(zip(items, talk.messages, strict=True)):
            own = {} if in_stream else {CONVERSATION: name}
            links = {ID: f"{name}/{position}", ANSWERED: None if answered is None else f"{name}/{answered}"}
            messages.append((talk.number, item | own | (links if talk.is_tree else {})))
    good = {number for number, _ in messages} if talks[0].number else {number for number, _ in rows}
    leading = {key for number, row in rows if number in good for key in row}
    for number, row in rows if len(rows) > 1 else ():
        if number not in good and not leading & {*row}:
            problem = f"holds no messages with a text and a sender, but {listed(row)}; choose its form"
            yield row_error(file.path, number, problem)
    column = _column(messages) if any(CONVERSATION in row for _, row in messages) else options.conversation
    yield from messages_of(file, messages, replace(options, conversation=column))


def _channel(talk: Talk, talks: Sequence[Talk]) -> str | None:
    """The name of a chat of Telegram, which is not a conversation."""
    first, owner = talk.messages[0][0], talk.owner
    if not (first.get("type") in ("message", "service") and "date" in first and {"from", "actor"} & {*first}):
        return None
    names = [each.owner.get("name") for each in talks]
    name = str(owner.get("name") or owner.get("id"))
    return f"{name} ({owner.get('id')})" if names.count(owner.get("name")) > 1 else name


def _column(messages: Rows) -> str:
    """The column of conversations: that of the messages, if a list has messages of several."""
    for key in usual(keys_of(first_rows(messages)), "conversation"):
        pairs = {(row.get(CONVERSATION), row.get(key)) for _, row in messages}
        if len(pairs) > len({talk for talk, _ in pairs}) and all(name not in (None, "") for _, name in pairs):
            return key
    return CONVERSATION


def _id(talk: Talk, options: Options) -> str | None:
    owner = flat(talk.owner)
    keys = [options.conversation] if options.conversation in owner else usual(owner, "conversation_id", "conversation")
    found = _first(owner, keys, str | int)
    return talk.name if found is None else str(found)


def _first(row: Row, keys: Iterable[str], kind: Any) -> Any:
    """The first field of a type that is not empty."""
    return next((row[key] for key in keys if isinstance(row[key], kind) and row[key] != ""), None)


def _messages(talk: Talk, began: Sequence[str]) -> Iterator[Row]:
    """The messages of a conversation as flat rows, with senders and times that the conversation records."""
    owner = flat(talk.owner)
    asked_by = _first(owner, usual(owner, "asked_by"), str | int)
    for position, (item, _) in enumerate(talk.messages):
        values = flat(item)
        sender_ids = [values[key] for key in usual(values, "sender_id", "sender")]
        person = flat(next((talk.people[str(id_)] for id_ in sender_ids if str(id_) in talk.people), {}))
        names = [person[key] for field in NAMES["person_fields"] for key in person if normal(key) == field]
        if person:
            named = {"name": next(iter(names), None), "role": _first(person, usual(person, "role", "kind"), str)}
            values |= {f"author.{key}": value for key, value in named.items() if isinstance(value, str)}
        elif asked_by is not None and sender_ids and not usual(values, "role", "from_customer"):
            values["role"] = "customer" if sender_ids[0] == asked_by else "agent"
        if began and not position and not usual(values, "time"):
            values["time"] = time_of(owner, began)
        yield values


def _opening(row: Row, held: list[Row]) -> list[Row]:
    """The first message of a ticket if it is its description and not in the list, as in exports of Freshdesk."""
    asked_by = _first(row, usual(row, "asked_by"), str | int)
    text = plain(row.get("description_text") or row.get("description")) if asked_by is not None else ""
    first = flat(held[0])
    said = {" ".join(plain(first[key]).split()) for key in usual(first, "text")}
    if not text or " ".join(text.split()) in said:
        return []
    began = {"created_at": row["created_at"]} if "created_at" in row else {}
    return [began | {next(iter(usual(first, "text"))): text, "author_id": asked_by, "role": "customer"}]
