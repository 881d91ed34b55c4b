"""Exports of many programs with the dialogues that they hold: conversations, sides, trees of replies, logs, refusals.

The names of fields are those of the programs; names of people and texts are invented. In each case the customer is Ann,
the agent is Ben, unless a case states otherwise.
"""

# ruff: noqa: E501 (records of exports are read more easily in fewer lines)
import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyrank_chats import Chats, ChatsError, UsageError, import_chats, read_texts

Write = Callable[[str, Any], Path]
REPORTS = Path(__file__).parents[3] / "shared/reports"
Q1, A1, Q2, A2 = "Where is my order?", "It ships today.", "Thanks a lot", "You are welcome"
FOUR = [Q1, A1, Q2, A2]
T0 = 1_704_186_000  # 2024-01-02 09:00:00 UTC


def iso(n: int) -> str:
    return f"2024-01-02T09:{n:02}:00Z"


def table(*rows: Any, separator: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=separator, lineterminator="\n").writerows(rows)
    return out.getvalue()


def turns(chats: Chats) -> list[list[str]]:
    return [[f"{turn['speaker']}: {turn['text']}" for turn in row["turns"]] for row in chats.dialogues]


def texts(chats: Chats) -> list[list[str]]:
    return [[turn["text"] for turn in row["turns"]] for row in chats.dialogues]


def said(*lines: str) -> list[str]:
    """Turns of a customer and an agent, the customer first."""
    return [f"{('customer', 'agent')[n % 2]}: {line}" for n, line in enumerate(lines)]


JSON: dict[str, tuple[Any, list[list[str]]]] = {}
"""Inputs in JSON, and the turns of their dialogues."""

JSON["rasa"] = (
    {
        "sender_id": "u1",
        "slots": {"name": None},
        "latest_message": {"intent": {"name": "bye"}, "text": Q2, "message_id": "x"},
        "events": [
            {"event": "action", "timestamp": T0, "name": "action_session_start"},
            {"event": "session_started", "timestamp": T0},
            {"event": "user", "timestamp": T0 + 1.5, "text": Q1, "input_channel": "rest", "message_id": "1",
             "parse_data": {"intent": {"name": "order", "confidence": 0.9}, "entities": [], "text": Q1}},
            {"event": "action", "timestamp": T0 + 2, "name": "utter_ship", "policy": "Memo"},
            {"event": "bot", "timestamp": T0 + 2.5, "text": A1, "data": {"buttons": None}},
            {"event": "slot", "timestamp": T0 + 2.6, "name": "x", "value": "seven days"},
            {"event": "user", "timestamp": T0 + 3, "text": Q2, "parse_data": {"text": Q2, "intent": {"name": "bye"}}},
            {"event": "bot", "timestamp": T0 + 4, "text": A2, "data": {}},
        ],
    },
    [said(*FOUR)],
)  # fmt: skip
JSON["genesys transcript"] = (
    {
        "conversationId": "g1",
        "transcripts": [
            {
                "transcriptId": "t",
                "phrases": [
                    {"text": text, "stability": 1, "confidence": 0.9, "offsetMs": n, "startTimeMs": (T0 + n) * 1000,
                     "participantPurpose": ("external", "internal")[n % 2], "phraseIndex": n,
                     "words": [{"word": "x", "startTimeMs": 1}]}
                    for n, text in enumerate(FOUR)
                ],
            }
        ],
    },
    [said(*FOUR)],
)  # fmt: skip
JSON["genesys messages"] = (
    {
        "entities": [
            {"id": f"m{n}", "timestamp": iso(n), "conversationId": f"c{n // 2}", "textBody": text, "messageStatus": "sent",
             "direction": ("inbound", "outbound")[n % 2], "fromAddress": ("a", "b")[n % 2], "toAddress": ("b", "a")[n % 2]}
            for n, text in enumerate(FOUR)
        ],
        "pageSize": 25,
    },
    [said(Q1, A1), said(Q2, A2)],
)  # fmt: skip
JSON["hangouts"] = (
    {
        "conversations": [
            {
                "conversation": {
                    "conversation_id": {"id": "Ug1"},
                    "conversation": {
                        "id": {"id": "Ug1"},
                        "type": "STICKY_ONE_TO_ONE",
                        "participant_data": [
                            {"id": {"gaia_id": "11", "chat_id": "11"}, "fallback_name": "Ann Lee"},
                            {"id": {"gaia_id": "22", "chat_id": "22"}, "fallback_name": "Shop Support"},
                        ],
                    },
                },
                "events": [
                    {
                        "conversation_id": {"id": "Ug1"},
                        "sender_id": {"gaia_id": ("11", "22")[n % 2], "chat_id": ("11", "22")[n % 2]},
                        "timestamp": f"{(T0 + n) * 1_000_000}",
                        "self_event_state": {"user_id": {"gaia_id": "11", "chat_id": "11"}},
                        "chat_message": {
                            "message_content": {"segment": [{"type": "TEXT", "text": text}], "attachment": []}
                        },
                        "event_id": f"e{n}",
                        "event_type": "REGULAR_CHAT_MESSAGE",
                    }
                    for n, text in enumerate(FOUR)
                ],
            }
        ]
    },
    [said(*FOUR)],
)
JSON["claude.ai"] = (
    [
        {
            "uuid": f"c{c}",
            "name": "x",
            "created_at": iso(0),
            "account": {"uuid": "acc"},
            "chat_messages": [
                {"uuid": f"{c}{n}", "text": text, "content": [{"type": "text", "text": text, "citations": []}],
                 "sender": ("human", "assistant")[n % 2], "created_at": iso(n), "attachments": [], "files": [],
                 "parent_message_uuid": f"{c}{n - 1}" if n else "00000000-0000-4000-8000-000000000000"}
                for n, text in enumerate(FOUR)
            ],
        }
        for c in range(2)
    ],
    [said(*FOUR)] * 2,
)  # fmt: skip
JSON["gemini contents"] = (
    {"contents": [{"role": ("user", "model")[n % 2], "parts": [{"text": text}]} for n, text in enumerate(FOUR)]},
    [said(*FOUR)],
)
JSON["ai studio"] = (
    {
        "runSettings": {"model": "models/x"},
        "chunkedPrompt": {
            "chunks": [{"text": text, "role": ("user", "model")[n % 2], "tokenCount": 4} for n, text in enumerate(FOUR)]
        },
    },
    [said(*FOUR)],
)
JSON["gemini activity"] = (
    [
        {"header": "Gemini Apps", "title": f"Prompted {question}", "time": f"2024-01-0{n + 2}T09:00:00.1Z",
         "products": ["Gemini Apps"], "activityControls": ["Gemini Apps Activity"],
         "safeHtmlItem": [{"html": f"<p>{answer}</p>"}]}
        for n, (question, answer) in enumerate([(Q1, A1), (Q2, A2)])
    ],
    [said(Q1, A1), said(Q2, A2)],
)  # fmt: skip
JSON["rocket.chat threads"] = (
    {
        "messages": [
            {"_id": "1", "rid": "R", "msg": "Is the server down?", "ts": iso(0), "u": {"_id": "a", "username": "ann"}},
            {"_id": "2", "rid": "R", "msg": "How do I pay?", "ts": iso(1), "u": {"_id": "c", "username": "cy"}},
            {"_id": "3", "rid": "R", "tmid": "1", "msg": "Yes", "ts": iso(2), "u": {"_id": "b", "username": "ben"}},
            {"_id": "4", "rid": "R", "tmid": "2", "msg": "By card", "ts": iso(3), "u": {"_id": "b", "username": "ben"}},
            {
                "_id": "5",
                "rid": "R",
                "tmid": "1",
                "msg": "Until when?",
                "ts": iso(4),
                "u": {"_id": "a", "username": "ann"},
            },
        ],
        "count": 5,
        "success": True,
    },
    [["ann: Is the server down?", "ben: Yes", "ann: Until when?"], ["cy: How do I pay?", "ben: By card"]],
)
JSON["kustomer"] = (
    {
        "meta": {"pageSize": 100},
        "links": {"next": None},
        "data": [
            {
                "type": "message",
                "id": f"k{n}",
                "attributes": {"channel": "chat", "direction": ("in", "out")[n % 2], "preview": text, "sentAt": iso(n)},
                "relationships": {
                    "conversation": {"data": {"type": "conversation", "id": f"c{n // 2}"}},
                    "customer": {"data": {"type": "customer", "id": "ann"}},
                },
            }
            for n, text in enumerate(FOUR)
        ],
    },
    [said(Q1, A1), said(Q2, A2)],
)
JSON["discourse"] = (
    {
        "post_stream": {
            "posts": [
                {"id": 40 + n, "name": "", "username": name, "created_at": iso(n), "cooked": f"<p>{text}</p>",
                 "post_number": n + 1, "post_type": kind, "reply_to_post_number": None, "topic_id": 7, "staff": name == "ben",
                 "reads": 4}
                for n, (name, text, kind) in enumerate(
                    [("ann", Q1, 1), ("ben", A1, 1), ("ann", Q2, 1), ("ben", A2, 1)])
            ],
            "stream": [40, 41],
        },
        "id": 7,
        "title": "An order",
        "posts_count": 4,
        "created_at": iso(0),
    },
    [["ann: " + Q1, "ben: " + A1, "ann: " + Q2, "ben: " + A2]],
)  # fmt: skip
JSON["webex"] = (
    {
        "items": [
            {"id": "4", "roomId": "R", "roomType": "group", "text": "By card", "personEmail": "ben@x.example",
             "created": iso(3), "parentId": "2", "personId": "b"},
            {"id": "3", "roomId": "R", "roomType": "group", "text": "Yes", "personEmail": "ben@x.example",
             "created": iso(2), "parentId": "1", "personId": "b"},
            {"id": "2", "roomId": "R", "roomType": "group", "text": "How do I pay?", "personEmail": "cy@x.example",
             "created": iso(1), "personId": "c"},
            {"id": "1", "roomId": "R", "roomType": "group", "text": "Is it down?", "personEmail": "ann@x.example",
             "created": iso(0), "personId": "a"},
        ]
    },
    [["Is it down?", "Yes"], ["How do I pay?", "By card"]],
)  # fmt: skip
JSON["matrix"] = (
    {
        "room_name": "help",
        "export_date": "1/2/2024",
        "messages": [
            {"type": "m.room.member", "sender": "@ann:x", "content": {"membership": "join", "displayname": "ann"},
             "event_id": "$0", "origin_server_ts": T0 * 1000, "room_id": "!r"},
            *(
                {"type": "m.room.message", "sender": f"@{name}:x", "event_id": f"${n}", "room_id": "!r",
                 "origin_server_ts": (T0 + n) * 1000,
                 "content": {"msgtype": "m.text", "body": text, **(
                     {"m.relates_to": {"m.in_reply_to": {"event_id": f"${to}"}}} if to else {})}}
                for n, (name, text, to) in enumerate(
                    [("ann", "Is it down?", 0), ("cy", "How do I pay?", 0), ("ben", "> <@ann:x> Is it down?\n\nYes", 1),
                     ("ben", "By card", 2), ("ann", "Until when?", 3)], 1)
            ),
        ],
    },
    [["Is it down?", "Yes", "Until when?"], ["How do I pay?", "By card"]],
)  # fmt: skip
JSON["reddit listing"] = (
    [
        {"kind": "Listing", "data": {"children": [{"kind": "t3", "data": {
            "id": "p", "name": "t3_p", "title": "Eggs", "selftext": "How do I boil eggs?", "author": "ann",
            "created_utc": T0}}]}},
        {"kind": "Listing", "data": {"children": [
            {"kind": "t1", "data": {"id": "c1", "name": "t1_c1", "parent_id": "t3_p", "author": "ben", "created_utc": T0 + 9,
                "body": "Eight minutes.", "replies": {"kind": "Listing", "data": {"children": [
                    {"kind": "t1", "data": {"id": "c3", "parent_id": "t1_c1", "author": "ann", "created_utc": T0 + 99,
                        "body": "And soft ones?", "replies": ""}}]}}}},
            {"kind": "t1", "data": {"id": "c2", "name": "t1_c2", "parent_id": "t3_p", "author": "cy", "created_utc": T0 + 19,
                "body": "Use a steamer.", "replies": ""}},
            {"kind": "t1", "data": {"id": "c4", "parent_id": "t3_p", "author": "[deleted]", "created_utc": T0 + 20,
                "body": "[deleted]", "replies": {"kind": "Listing", "data": {"children": [
                    {"kind": "t1", "data": {"id": "c5", "parent_id": "t1_c4", "author": "di", "created_utc": T0 + 30,
                        "body": "No way", "replies": ""}}]}}}},
        ]}},
    ],
    [["How do I boil eggs?", "Eight minutes.", "And soft ones?"], ["How do I boil eggs?", "Use a steamer."]],
)  # fmt: skip
JSON["oasst tree"] = (
    {
        "message_tree_id": "a",
        "tree_state": "ready_for_export",
        "prompt": {
            "message_id": "a", "text": "A", "role": "prompter", "created_date": iso(0), "lang": "en",
            "replies": [
                {"message_id": "b", "parent_id": "a", "text": "B", "role": "assistant", "replies": [
                    {"message_id": "c", "parent_id": "b", "text": "C", "role": "prompter", "replies": []}]},
                {"message_id": "d", "parent_id": "a", "text": "D", "role": "assistant", "replies": [
                    {"message_id": "e", "parent_id": "d", "text": "E", "role": "prompter", "replies": []}]},
            ],
        },
    },
    [said("A", "B", "C"), said("A", "D", "E")],
)  # fmt: skip
JSON["hacker news"] = (
    {"id": 1, "created_at": iso(0), "author": "ann", "title": "Ask: eggs?", "text": "How do I boil eggs?", "type": "story",
     "children": [
         {"id": 2, "created_at": iso(1), "author": "ben", "text": "<p>Eight minutes.</p>", "parent_id": 1, "type": "comment",
          "children": []},
         {"id": 3, "created_at": iso(2), "author": "cy", "text": "Steam them.", "parent_id": 1, "type": "comment",
          "children": [{"id": 4, "created_at": iso(3), "author": "ann", "text": "How?", "parent_id": 3, "children": []}]},
     ]},
    [["How do I boil eggs?", "Eight minutes."], ["How do I boil eggs?", "Steam them.", "How?"]],
)  # fmt: skip
JSON["github issues"] = (
    [
        {"number": n, "title": "It fails", "body": f"It fails {n}", "user": {"login": "ann", "type": "User"},
         "created_at": iso(0), "labels": [{"name": "bug"}], "comments": [
             {"id": 1, "user": {"login": "ben"}, "body": "Restart it", "created_at": iso(1)},
             {"id": 2, "user": {"login": "ann"}, "body": "Works", "created_at": iso(2)}]}
        for n in (3, 4)
    ],
    [["ann: It fails 3", "ben: Restart it", "ann: Works"], ["ann: It fails 4", "ben: Restart it", "ann: Works"]],
)  # fmt: skip
JSON["slackdump"] = (
    {
        "channel_id": "C1",
        "name": "help",
        "messages": [
            {"client_msg_id": "1", "type": "message", "user": "UA", "text": "Is it down?", "ts": f"{T0}.000100",
             "thread_ts": f"{T0}.000100", "reply_count": 2, "slackdump_thread_replies": [
                 {"type": "message", "user": "UB", "text": "Yes", "ts": f"{T0 + 5}.0001", "thread_ts": f"{T0}.000100"},
                 {"type": "message", "user": "UA", "text": "ok", "ts": f"{T0 + 9}.0001", "thread_ts": f"{T0}.000100"}]},
            {"type": "message", "user": "UC", "text": "How do I pay?", "ts": f"{T0 + 1}.0001",
             "thread_ts": f"{T0 + 1}.0001", "slackdump_thread_replies": [
                 {"type": "message", "user": "UB", "text": "By card", "ts": f"{T0 + 6}.0001", "thread_ts": f"{T0 + 1}.0001"}]},
        ],
    },
    [["Is it down?", "Yes", "ok"], ["How do I pay?", "By card"]],
)  # fmt: skip
JSON["zulip"] = (
    {
        "result": "success",
        "messages": [
            {"id": n, "sender_id": n % 3, "sender_full_name": name, "sender_email": f"{name}@x", "content": f"<p>{text}</p>",
             "timestamp": T0 + n, "type": "stream", "stream_id": 5, "display_recipient": "general", "subject": topic}
            for n, (name, topic, text) in enumerate(
                [("ann", "vpn", "Is it down?"), ("cy", "pay", "How do I pay?"), ("ben", "vpn", "Yes"), ("ben", "pay", "By card")])
        ],
    },
    [["Is it down?", "Yes"], ["How do I pay?", "By card"]],
)  # fmt: skip
JSON["front"] = (
    {
        "_pagination": {"next": None},
        "_results": [
            {"_links": {"self": "x"}, "id": f"msg_{n}", "type": "email", "is_inbound": n % 2 == 0, "created_at": T0 + n + 0.5,
             "blurb": text[:5], "body": f"<p>{text}</p>", "text": text, "author": None if n % 2 == 0 else {"username": "ben"},
             "recipients": [{"handle": "ann@x.example", "role": ("from", "to")[n % 2]}]}
            for n, text in enumerate(FOUR)
        ],
    },
    [said(*FOUR)],
)  # fmt: skip
JSON["gorgias"] = (
    {
        "data": [
            {"id": n, "ticket_id": 5 + n // 2, "channel": "email", "from_agent": n % 2 == 1, "public": True,
             "body_text": text, "stripped_text": text, "created_datetime": iso(n), "sender": {"id": n % 2, "name": "x"}}
            for n, text in enumerate(FOUR)
        ]
        + [{"id": 9, "ticket_id": 5, "channel": "internal-note", "from_agent": True, "public": False,
            "body_text": "call her", "created_datetime": iso(9), "sender": {"id": 1, "name": "x"}}],
    },
    [said(Q1, A1), said(Q2, A2)],
)  # fmt: skip
JSON["hubspot"] = (
    {
        "results": [
            {"id": f"h{n}", "type": kind, "conversationsThreadId": "77", "createdAt": iso(n), "createdBy": actor,
             "text": text, "richText": f"<p>{text}</p>", "direction": direction,
             "senders": [{"actorId": actor, "name": "x", "senderField": "FROM"}]}
            for n, (kind, actor, direction, text) in enumerate(
                [("MESSAGE", "V-1", "INCOMING", Q1), ("COMMENT", "A-2", None, "ask finance"),
                 ("MESSAGE", "A-2", "OUTGOING", A1), ("MESSAGE", "V-1", "INCOMING", Q2)])
        ],
    },
    [said(Q1, A1, Q2)],
)  # fmt: skip
JSON["crisp"] = (
    {
        "error": False,
        "reason": "resolved",
        "data": [
            {"session_id": "s1", "website_id": "w", "type": kind, "from": who, "origin": "chat", "content": text,
             "timestamp": (T0 + n) * 1000, "fingerprint": n, "user": {"user_id": who, "nickname": who}}
            for n, (kind, who, text) in enumerate(
                [("text", "user", Q1), ("note", "operator", "VIP"), ("text", "operator", A1), ("text", "user", Q2)])
        ],
    },
    [said(Q1, A1, Q2)],
)  # fmt: skip
JSON["drift"] = (
    {
        "data": {
            "messages": [
                {"id": f"d{n}", "conversationId": 5, "body": text, "type": kind, "createdAt": (T0 + n) * 1000,
                 "author": {"id": n % 2, "type": who, "bot": False}}
                for n, (kind, who, text) in enumerate(
                    [("chat", "contact", Q1), ("private_note", "user", "VIP"), ("chat", "user", A1), ("chat", "contact", Q2)])
            ]
        }
    },
    [said(Q1, A1, Q2)],
)  # fmt: skip
JSON["zoho desk"] = (
    {
        "data": [
            {"id": "1", "channel": "EMAIL", "content": Q1, "direction": "in", "isPrivate": False, "createdTime": iso(0),
             "author": {"name": "Ann", "type": "END_USER"}},
            {"id": "2", "channel": "EMAIL", "content": "VIP", "direction": "out", "isPrivate": True, "createdTime": iso(1),
             "author": {"name": "Ben", "type": "AGENT"}},
            {"id": "3", "channel": "EMAIL", "content": A1, "direction": "out", "isPrivate": False, "createdTime": iso(2),
             "author": {"name": "Ben", "type": "AGENT"}},
        ]
    },
    [said(Q1, A1)],
)  # fmt: skip
JSON["amazon connect"] = (
    {
        "Version": "2019-08-26",
        "ContactId": "cc",
        "Participants": [{"ParticipantId": "p1"}, {"ParticipantId": "p2"}],
        "Transcript": [
            {"AbsoluteTime": iso(0), "ContentType": "application/vnd.amazonaws.connect.event.participant.joined",
             "Id": "0", "Type": "EVENT", "ParticipantId": "p1", "DisplayName": "Ann", "ParticipantRole": "CUSTOMER"},
            *(
                {"AbsoluteTime": iso(n), "Content": text, "ContentType": "text/plain", "Id": f"{n}", "Type": "MESSAGE",
                 "ParticipantId": f"p{n % 2}", "DisplayName": ("Ben", "Ann")[n % 2],
                 "ParticipantRole": ("AGENT", "CUSTOMER")[n % 2]}
                for n, text in enumerate(FOUR, 1)
            ),
        ],
    },
    [said(*FOUR)],
)  # fmt: skip
JSON["contact lens"] = (
    {
        "JobStatus": "COMPLETED",
        "CustomerMetadata": {"ContactId": "cc"},
        "Participants": [{"ParticipantId": "AGENT", "ParticipantRole": "AGENT"}],
        "Transcript": [
            {"Id": f"{n}", "ParticipantId": ("CUSTOMER", "AGENT")[n % 2], "Content": text, "BeginOffsetMillis": 1000 * n,
             "Sentiment": "NEUTRAL"}
            for n, text in enumerate(FOUR)
        ],
    },
    [said(*FOUR)],
)  # fmt: skip
JSON["twilio messages"] = (
    {
        "messages": [
            {"sid": f"SM{n}", "from": ("+12025550100", f"+1202555019{n // 2}")[n % 2 == 0], "account_sid": "AC",
             "to": ("+12025550100", f"+1202555019{n // 2}")[n % 2 == 1], "direction": ("inbound", "outbound-api")[n % 2],
             "body": text, "date_sent": f"Tue, 02 Jan 2024 09:{n:02}:00 +0000", "status": ("received", "delivered")[n % 2],
             "num_segments": "1"}
            for n, text in enumerate(FOUR)
        ],
        "page": 0,
        "next_page_uri": None,
    },
    [said(Q1, A1), said(Q2, A2)],
)  # fmt: skip
JSON["twilio conversations"] = (
    {
        "messages": [
            {"sid": f"IM{n}", "conversation_sid": "CH1", "index": n, "author": ("+12025550190", "ben")[n % 2], "body": text,
             "participant_sid": None, "date_created": iso(n), "media": None}
            for n, text in enumerate(FOUR)
        ]
    },
    [FOUR],
)  # fmt: skip
JSON["snapchat"] = (
    {
        "ann": [
            {
                "From": "ann",
                "Media Type": "TEXT",
                "Created": "2024-01-02 09:00:00 UTC",
                "Content": Q1,
                "IsSender": False,
            },
            {"From": "me", "Media Type": "TEXT", "Created": "2024-01-02 09:01:00 UTC", "Content": A1, "IsSender": True},
        ],
        "cy": [
            {
                "From": "cy",
                "Media Type": "TEXT",
                "Created": "2024-01-02 09:00:30 UTC",
                "Content": Q2,
                "IsSender": False,
            },
            {"From": "me", "Media Type": "TEXT", "Created": "2024-01-02 09:01:30 UTC", "Content": A2, "IsSender": True},
        ],
    },
    [[Q1, A1], [Q2, A2]],
)
JSON["firebase"] = (
    {
        "chats": {
            f"-NxChat{c}": {
                "meta": {"open": False},
                "messages": {
                    f"-Nx{n}": {"sender": ("customer", "agent")[n % 2], "text": text, "timestamp": (T0 + n) * 1000}
                    for n, text in enumerate(FOUR)
                },
            }
            for c in range(2)
        }
    },
    [said(*FOUR)] * 2,
)
JSON["zendesk account"] = (
    [
        {
            "id": t,
            "subject": "x",
            "description": Q1,
            "requester": {"id": 1, "name": "Ann", "role": "end-user"},
            "assignee": {"id": 2, "name": "Ben", "role": "agent"},
            "created_at": iso(0),
            "comments": [
                {"id": 1, "author_id": 1, "body": Q1, "public": True, "created_at": iso(0)},
                {"id": 2, "author_id": 2, "body": "VIP", "public": False, "created_at": iso(1)},
                {"id": 3, "author_id": 2, "body": A1, "public": True, "created_at": iso(2)},
            ],
        }
        for t in (7, 8)
    ],
    [said(Q1, A1)] * 2,
)
JSON["dialogflow"] = (
    {
        "conversations": [
            {
                "name": "projects/x/conversations/1",
                "interactions": [
                    {"request": {"queryInput": {"text": {"text": Q1}}}, "response": {"queryResult": {"text": A1}}},
                ],
            }
        ]
    },
    [],
)
JSON["microsoft bot"] = (
    [
        {"type": "message", "id": f"x|{n}", "timestamp": iso(n), "channelId": "webchat",
         "from": {"id": ("u", "b")[n % 2], "name": ("Ann", "bot")[n % 2], "role": ("user", "bot")[n % 2]},
         "conversation": {"id": f"x{n // 2}"}, "recipient": {"id": "b"}, "text": text, "replyToId": f"x|{n - 1}" if n % 2 else None}
        for n, text in enumerate(FOUR)
    ],
    [said(Q1, A1), said(Q2, A2)],
)  # fmt: skip
JSON["whatsapp cloud"] = (
    {
        "object": "whatsapp_business_account",
        "entry": [
            {
                "id": "1",
                "changes": [
                    {"value": {"messaging_product": "whatsapp", "contacts": [{"profile": {"name": "Ann"}, "wa_id": "1202"}],
                               "messages": [{"from": "1202", "id": "w1", "timestamp": f"{T0}", "text": {"body": Q1},
                                             "type": "text"}]}, "field": "messages"}
                ],
            }
        ],
    },
    [],
)  # fmt: skip
JSON["dstc"] = (
    [
        {"dialogue_id": "1.json", "services": ["x"], "turns": [
            {"turn_id": str(n), "speaker": ("USER", "SYSTEM")[n % 2], "utterance": text, "frames": [{"slots": []}]}
            for n, text in enumerate(FOUR)]}
    ],
    [],
)  # fmt: skip
JSON["multiwoz like"] = (
    [
        {
            "dialogue_id": "1",
            "turns": [{"speaker": ("USER", "AGENT")[n % 2], "utterance": text} for n, text in enumerate(FOUR)],
        }
    ],
    [said(*FOUR)],
)
JSON["alpaca"] = (
    [{"instruction": Q1, "input": "", "output": A1}, {"instruction": Q2, "input": "", "output": A2}],
    [said(Q1, A1), said(Q2, A2)],
)
JSON["instagram pages"] = (
    {
        "data": [
            {"id": "t1", "messages": {"data": [
                {"id": "m2", "created_time": "2024-01-02T09:01:00+0000", "from": {"name": "Shop", "id": "9"}, "message": A1,
                 "to": {"data": [{"id": "8"}]}},
                {"id": "m1", "created_time": "2024-01-02T09:00:00+0000", "from": {"name": "Ann", "id": "8"}, "message": Q1,
                 "to": {"data": [{"id": "9"}]}}], "paging": {"next": "https://graph"}}}
        ],
        "paging": {"cursors": {}},
    },
    [["Ann: " + Q1, "Shop: " + A1]],
)  # fmt: skip
JSON["youtube"] = (
    {
        "items": [
            {"id": "y1", "snippet": {"topLevelComment": {"id": "y1", "snippet": {
                "textOriginal": Q1, "textDisplay": Q1, "authorDisplayName": "ann", "publishedAt": iso(0)}}},
             "replies": {"comments": [
                 {"id": "y1.1", "snippet": {"textOriginal": A1, "authorDisplayName": "ben", "parentId": "y1",
                                            "publishedAt": iso(1)}}]}}
        ]
    },
    [["ann: " + Q1, "ben: " + A1]],
)  # fmt: skip

REFUSED = {"dialogflow", "whatsapp cloud", "dstc"}
"""Inputs that no reader understands, which are refused."""


@pytest.mark.parametrize("name", JSON)
def test_json_of_many_programs(write: Write, name: str) -> None:
    content, expected = JSON[name]
    path = write("export.json", content)
    if name in REFUSED:
        with pytest.raises(ChatsError):
            import_chats(path, keep_personal=True)
        return
    chats = import_chats(path, keep_personal=True)
    found = turns(chats) if ": " in expected[0][0] else texts(chats)
    assert sorted(found) == sorted(expected), chats.report.notes


def reported(name: str) -> Path:
    path = REPORTS / name
    if not path.exists():
        pytest.skip("needs ../shared")
    return path


REPORTED = {
    "c17_dce.json": [
        ["ann: How do I reset my password?", "mod: Use the link on the login page.", "ann: Worked, thanks"],
        ["bob: Is the EU server down?", "mod: Yes, until six.", "bob: ok, waiting"],
    ],
    "d18b_oasst_messages.jsonl": [
        said("How do I boil eggs?", "Eight minutes.", "And soft ones?", "Four minutes."),
        said("How do I boil eggs?", "Use a steamer."),
    ],
    "d30_json_in_cell.csv": [said("is it open?", "Until six."), said("where?", "Main street.")],
    "h02_helpscout.json": [said("Where is my refund?", "Done, three days.", "Thanks!")],
    "h04_chatwoot.json": [said("Where is my order?", "It ships today.", "Thanks", "Welcome")],
    "h06_rapidpro.csv": [
        said("is the clinic open?", "Yes, until six.", "thanks"),
        said("do i need a card?", "No, come as you are."),
    ],
    "h15_liveperson.json": [said("Where is my order?", "It ships today.", "Thanks", "Welcome")],
    "r20_name_received_sent.csv": [
        said("is the clinic open?", "Yes, until six.", "thanks", "welcome"),
        said("do i need a card?", "No, come as you are.", "ok"),
    ],
    "r22_user_received_sent_conv.csv": [
        said("is the clinic open?", "Yes, until six.", "thanks", "welcome"),
        said("do i need a card?", "No, come as you are.", "ok"),
    ],
}


@pytest.mark.parametrize("name", REPORTED)
def test_reported_exports(name: str) -> None:
    assert sorted(turns(import_chats(reported(name)))) == sorted(REPORTED[name])


HI = ["Ann Lee: Is it open?", "Support: Until six.", "Ann Lee: Thanks, bye", "Support: You are welcome"]
LOGS = {
    "iso": "2024-01-05 15:04:0{n} {name}: {text}",
    "iso T": "2024-01-05T15:04:0{n}Z {name}: {text}",
    "iso bracketed": "[2024-01-05 15:04:0{n}] {name}: {text}",
    "iso comma": "2024-01-05 15:04:0{n},123 {name}: {text}",
    "iso dash": "2024-01-05 15:04:0{n} - {name}: {text}",
    "iso bar": "2024-01-05 15:04:0{n} | {name}: {text}",
    "iso nick": "2024-01-05 15:04:0{n} <{name}> {text}",
    "iso bracketed nick": "[2024-01-05 15:04:0{n}] <{name}> {text}",
    "iso tab": "2024-01-05 15:04:0{n}\t{name}\t{text}",
    "iso brackets": "2024-01-05 15:04:0{n} [{name}] {text}",
    "day first": "05.01.2024 15:04:0{n} - {name}: {text}",
    "tilde": "1/5/24, 3:04:0{n} PM ~ {name}: {text}",
    "clock bracketed": "[15:04:0{n}] {name}: {text}",
    "clock nick": "15:0{n} <{name}> {text}",
    "clock": "15:04:0{n} {name}: {text}",
    "half day": "3:0{n} PM {name}: {text}",
    "behind": "{name} (00:0{n}): {text}",
    "behind, below": "{name} (00:0{n}):\n{text}\n",
    "headings": "{name}  0:0{n}\n{text}\n",
    "bold": "**{name}:** {text}",
    "bold outside": "**{name}**: {text}\n",
    "nick": "<{name}> {text}",
    "salesforce": "( {n}m 5s ) {name}: {text}",
    "listed": "- {name}: {text}",
    "plain": "{name}: {text}",
}


@pytest.mark.parametrize("name", LOGS)
def test_lines_of_logs_and_transcripts(write: Write, name: str) -> None:
    lines = []
    for n, line in enumerate(HI, 1):
        who, _, text = line.partition(": ")
        if "nick" in name:
            who = who.partition(" ")[0]
        lines.append(LOGS[name].format(n=n, name=who, text=text))
    chats = import_chats(write("log.txt", "\n".join(lines) + "\n"), keep_personal=True)
    assert turns(chats) == [said(*(line.partition(": ")[2] for line in HI))]
    if "iso" in name or name in ("day first", "tilde"):
        assert chats.dialogues[0]["time"][:16] == "2024-01-05T15:04"


def test_reported_logs() -> None:
    assert turns(import_chats(reported("v14_iso_log.txt"))) == [
        said("is it open?", "until six"),
        said("thanks", "welcome"),
    ]
    assert texts(import_chats(reported("v01_rev.txt"))) == [
        ["Hello there.", "Hi, how can I help?", "Is it open?", "Until six."]
    ]
    chats = import_chats(reported("c07_wa_tilde.txt"))
    assert [len(row["turns"]) for row in chats.dialogues] == [2, 2]
    assert chats.dialogues[0]["time"] == "2025-04-11T21:17:58"


XML = {
    "sms backup": (
        "<?xml version='1.0' encoding='UTF-8' standalone='yes' ?>\n<!--File Created By SMS Backup-->\n<smses count=\"4\">"
        + "".join(
            f'<sms protocol="0" address="+1202555019{n // 2}" date="{(T0 + n * 60) * 1000}" type="{1 + n % 2}" subject="null"'
            f' body="{text}" toa="null" read="1" status="-1" readable_date="Jan 2, 2024" contact_name="Ann {n // 2}" />'
            for n, text in enumerate(FOUR)
        )
        + "</smses>",
        [said(Q1, A1), said(Q2, A2)],
    ),
    "sms and mms": (
        f'<smses count="3"><sms address="+12025550190" date="{T0}000" type="1" body="{Q1}" readable_date="x" />'
        f'<mms address="+12025550190" date="{T0 + 60}000" msg_box="2" readable_date="x"><parts>'
        '<part seq="-1" ct="application/smil" text="&lt;smil/&gt;" /><part ct="image/jpeg" text="null" />'
        f'<part ct="text/plain" text="{A1}" /></parts><addrs><addr address="insert-address-token" /></addrs></mms>'
        f'<sms address="+12025550190" date="{T0 + 99}000" type="1" body="{Q2}" readable_date="x" /></smses>',
        [said(Q1, A1, Q2)],
    ),
    "log": (
        "<chat id='7'>" + "".join(f"<message from='{('customer', 'agent')[n % 2]}' time='{iso(n)}'>{text}</message>"
                                   for n, text in enumerate(FOUR)) + "</chat>",
        [said(*FOUR)],
    ),
    "tickets": (
        "<tickets>" + "".join(
            f"<ticket><id>{t}</id><comments type='array'><comment><author-id>1</author-id><role>customer</role><value>{Q1}</value>"
            f"<created-at>{iso(0)}</created-at></comment><comment><author-id>2</author-id><role>agent</role><value>{A1}</value>"
            f"<created-at>{iso(1)}</created-at></comment></comments></ticket>" for t in (5, 6)) + "</tickets>",
        [said(Q1, A1)] * 2,
    ),
}  # fmt: skip


def test_numbers_that_nobody_answers_do_not_join_the_talks_of_others(write: Write) -> None:
    """As banks and codes to log in."""
    content, expected = XML["sms backup"]
    one_way = "".join(
        f'<sms address="{who}{n}" date="{(T0 + 20 + n) * 1000}" type="{kind}" body="Number {n} of {m}" readable_date="x"/>'
        for kind, who in (("1", "BANK"), ("3", "+12025550199"))  # the latter as a draft
        for n in range(4)
        for m in range(2)
    )
    chats = import_chats(write("export.xml", content.replace("</smses>", f"{one_way}</smses>")))
    assert turns(chats) == expected


@pytest.mark.parametrize("name", XML)
def test_xml(write: Write, name: str) -> None:
    content, expected = XML[name]
    assert turns(import_chats(write("export.xml", content))) == expected


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("It <b>really</b> is down, see <i>this</i> page", "It really is down, see this page"),
        ("5 &lt; 6 <x>and</x> 7 &amp; <em>8</em>", "5 < 6 and 7 & 8"),
        ("<p>All of it</p><p>is down</p>", "All of it\nis down"),
    ],
)
@pytest.mark.parametrize(
    "form", ["<message><from>{}</from><text>{}</text></message>", '<message from="{}">{}</message>']
)
def test_words_inside_markup_of_xml_stay(write: Write, form: str, said: str, text: str) -> None:
    content = f"<chat>{form.format('Ann', said)}{form.format('Support', said)}</chat>"
    assert turns(import_chats(write("export.xml", content))) == [[f"customer: {text}", f"agent: {text}"]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "an HTML page|declares entities"),
        ("<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "declares entities"),
        ("<?xml version='1.0'?><a><b></a>", "is XML that cannot be read"),
        ("<!doctype html><html><body>Ann: hi</body></html>", "an HTML page"),
    ],
)
def test_xml_and_html_that_are_refused(write: Write, content: str, problem: str) -> None:
    with pytest.raises(ChatsError, match=problem):
        import_chats(write("export.xml", content))


WORDS = [
    ("IN", "OUT"), ("in", "out"), ("I", "O"), ("MO", "MT"), ("Received", "Sent"), ("inbound", "outbound-api"),
    ("Incoming", "Outgoing"), ("eingehend", "ausgehend"), ("Empfangen", "Gesendet"), ("entrante", "saliente"),
    ("recibido", "enviado"), ("entrant", "sortant"), ("Reçu", "Envoyé"), ("ricevuto", "inviato"), ("recebida", "enviada"),
    ("customer", "agent"),
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("contact", ["Phone", "Contact", "Name", "Customer", "Address"])
def test_one_contact_and_a_direction(write: Write, words: tuple[str, str], contact: str) -> None:
    """Two contacts at the same time; the name of the contact is in every row."""
    rows = [("Timestamp", contact, "Direction", "Body", "Status", "Channel")]
    for n, text in enumerate(FOUR):
        rows += [
            (f"2024-01-02 09:{n:02}:{c}0", f"+1202555019{c}" if contact == "Phone" else ("Ann", "Bob")[c],
             words[n % 2], f"{text} {c}", ("read", "delivered")[n % 2], "sms")
            for c in range(2)
        ]  # fmt: skip
    chats = import_chats(write("sms.csv", table(*rows)), keep_personal=True)
    assert turns(chats) == [said(*(f"{text} {c}" for text in FOUR)) for c in range(2)]


@pytest.mark.parametrize("separator", [",", ";"])
def test_twilio_s_from_and_to_are_a_pair(write: Write, separator: str) -> None:
    rows = [("From", "To", "Body", "Status", "SentDate", "NumSegments", "AccountSid", "Sid", "Direction", "Price")]
    for n in reversed(range(4)):
        for c in range(3):
            pair = ("+12025550100", f"+1202555019{c}")
            who = pair if n % 2 else pair[::-1]
            rows.append((*who, f"{FOUR[n]} {c}", ("received", "delivered")[n % 2], f"2024-01-02T09:{n:02}:{c}0Z", "1", "AC",
                         f"SM{n}{c}", ("inbound", "outbound-reply")[n % 2], "-0.0079"))  # fmt: skip
    chats = import_chats(write("twilio.csv", table(*rows, separator=separator)), keep_personal=True)
    assert sorted(turns(chats)) == [said(*(f"{text} {c}" for text in FOUR)) for c in range(3)]


def test_a_pair_without_directions_is_divided_at_pauses(write: Write) -> None:
    rows = [("Date", "From", "To", "Message")]
    for day in ("02", "09"):
        rows += [
            (f"2024-01-{day} 09:0{n}", ("Ann", "Shop")[n % 2], ("Shop", "Ann")[n % 2], text)
            for n, text in enumerate(FOUR)
        ]
        rows += [(f"2024-01-{day} 09:01", "Bob", "Shop", "Hi"), (f"2024-01-{day} 09:02", "Shop", "Bob", "Hello")]
    chats = import_chats(write("x.csv", table(*rows)))
    assert sorted(texts(chats)) == sorted([FOUR, ["Hi", "Hello"]] * 2)


QUESTIONS = {
    "d23b": (table(("question_id", "question", "answer"), (1, "How?", "So."), (1, "How?", "Thus."), (2, "Where?", "Here.")),
             [said("How?", "So."), said("How?", "Thus."), said("Where?", "Here.")]),
    "rounds": (table(("id", "question", "answer"), (1, "How?", "So."), (1, "And then?", "Thus."), (2, "Where?", "Here.")),
               [said("How?", "So.", "And then?", "Thus."), said("Where?", "Here.")]),
    "german": (table(("Nr", "Kundenfrage", "Antwort", "Bearbeiter"), *((n, f"Wie geht es {n}?", f"So {n}.", "Ben")
                     for n in range(5))), [said(f"Wie geht es {n}?", f"So {n}.") for n in range(5)]),
    "german, two": (table(("Datum", "Anfrage", "Antworttext", "Mitarbeiter"), *((f"0{n + 1}.02.2024", f"Wie geht es {n}?",
                          f"So {n}.", ("Ben", "Eva")[n % 2]) for n in range(5))),
                    [said(f"Wie geht es {n}?", f"So {n}.") for n in range(5)]),
    "spanish": (table(("Pregunta del cliente", "Respuesta", "Agente"), ("¿Dónde?", "Aquí.", "Ben"), ("¿Cómo?", "Así.", "Eva")),
                [said("¿Dónde?", "Aquí."), said("¿Cómo?", "Así.")]),
    "french": (table(("Question client", "Réponse", "Conseiller"), ("Où ?", "Ici.", "Ben"), ("Comment ?", "Ainsi.", "Eva")),
               [said("Où ?", "Ici."), said("Comment ?", "Ainsi.")]),
    "italian": (table(("Domanda", "Risposta"), ("Dove?", "Qui."), ("Come?", "Così.")), [said("Dove?", "Qui."),
                said("Come?", "Così.")]),
    "portuguese": (table(("Pergunta", "Resposta", "Atendente"), ("Onde?", "Aqui.", "Ben"), ("Como?", "Assim.", "Eva")),
                   [said("Onde?", "Aqui."), said("Como?", "Assim.")]),
    "dutch": (table(("Klantvraag", "Antwoord", "Medewerker"), ("Waar?", "Hier.", "Ben"), ("Hoe?", "Zo.", "Eva")),
              [said("Waar?", "Hier."), said("Hoe?", "Zo.")]),
    "polish": (table(("Pytanie", "Odpowiedź"), ("Gdzie?", "Tu."), ("Jak?", "Tak.")), [said("Gdzie?", "Tu."), said("Jak?", "Tak.")]),
    "russian": (table(("Вопрос", "Ответ"), ("Где?", "Здесь."), ("Как?", "Так.")), [said("Где?", "Здесь."), said("Как?", "Так.")]),
    "turkish": (table(("Soru", "Cevap"), ("Nerede?", "Burada."), ("Nasıl?", "Böyle.")), [said("Nerede?", "Burada."),
                said("Nasıl?", "Böyle.")]),
    "customer and agent": (table(("Customer message", "Agent reply"), ("Where?", "Here."), ("How?", "So.")),
                           [said("Where?", "Here."), said("How?", "So.")]),
}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_and_answers_in_many_languages(write: Write, name: str) -> None:
    content, expected = QUESTIONS[name]
    chats = import_chats(write("faq.csv", content))
    assert sorted(turns(chats)) == sorted(expected), chats.report.notes


def test_several_answers_to_a_question_are_several_right_answers() -> None:
    assert turns(import_chats(reported("d23b_insuranceqa.csv"))) == [
        said("How do I mount a disk?", "Use mount as root."),
        said("How do I mount a disk?", "See fstab."),
        said("Where are logs?", "In /var/log."),
        said("Where are logs?", "Use journalctl."),
    ]


TABLES = {
    "salesforce comments": (
        table(("Id", "ParentId", "IsPublished", "CommentBody", "CreatedById", "CreatedDate"),
              *((f"c{n}", f"case{n // 2}", "true", text, ("ann", "ben")[n % 2], iso(n)) for n, text in enumerate(FOUR)),
              ("c9", "case0", "false", "call her", "ben", iso(9))),
        [[Q1, A1], [Q2, A2]],
    ),
    "salesforce mail": (
        table(("Id", "ParentId", "TextBody", "FromAddress", "ToAddress", "Incoming", "MessageDate"),
              *((f"m{n}", f"case{n // 2}", text, ("ann@x.example", "help@y.example")[n % 2],
                 ("help@y.example", "ann@x.example")[n % 2], ("true", "false")[n % 2], iso(n)) for n, text in enumerate(FOUR))),
        [[Q1, A1], [Q2, A2]],
    ),
    "salesforce transcript": (
        table(("Id", "Body"), *((c, "<p align=\"center\">Chat Started: Tuesday, January 02, 2024, 09:00:00 (+0000)</p>"
              "<p align=\"center\">Agent Ben L</p>( 5s ) Ann: " + Q1 + "<br>( 1m 10s ) Ben: " + A1 + "<br>( 2m 1s ) Ann: " + Q2
              + "<br>") for c in range(2))),
        [[Q1, A1, Q2]] * 2,
    ),
    "python in a cell": (
        table(("id", "conversation"), *((c, str([{"role": ("user", "assistant")[n % 2], "content": text}
                                                for n, text in enumerate(FOUR)])) for c in range(2))),
        [FOUR] * 2,
    ),
    "comments in a cell": (
        table(("ticket_id", "status", "comments"), *((c, "closed", "[" + ", ".join(
            f'{{"author_id": {n % 2}, "body": "{text}", "public": true, "created_at": "{iso(n)}"}}'
            for n, text in enumerate(FOUR)) + "]") for c in range(2))),
        [FOUR] * 2,
    ),
    "linkedin": (
        table(("CONVERSATION ID", "CONVERSATION TITLE", "FROM", "SENDER PROFILE URL", "TO", "DATE", "SUBJECT", "CONTENT", "FOLDER"),
              *((f"c{n // 2}", "", ("Ann", "Ben")[n % 2], "x", ("Ben", "Ann")[n % 2], f"2024-01-02 09:0{n}:00 UTC", "", text, "INBOX")
                for n, text in enumerate(FOUR))),
        [[Q1, A1], [Q2, A2]],
    ),
    "slack table": (
        table(("channel", "ts", "thread_ts", "user", "text"), ("help", f"{T0}.1", f"{T0}.1", "ann", Q1),
              ("help", f"{T0 + 1}.1", f"{T0 + 1}.1", "cy", Q2), ("help", f"{T0 + 2}.1", f"{T0}.1", "ben", A1),
              ("help", f"{T0 + 3}.1", f"{T0 + 1}.1", "ben", A2)),
        [[Q1, A1], [Q2, A2]],
    ),
    "channel is a medium": (
        table(("created_at", "channel", "session", "sender", "message"), *((iso(n), "web", f"s{n // 2}", ("visitor", "bot")[n % 2],
              text) for n, text in enumerate(FOUR))),
        [[Q1, A1], [Q2, A2]],
    ),
    "bot log": (
        table(("phone", "role", "message", "created_at"), *((f"+1202555019{n // 2}", ("user", "assistant")[n % 2], text, iso(n))
              for n, text in enumerate(FOUR))),
        [[Q1, A1], [Q2, A2]],
    ),
    "sent by me": (
        table(("chat", "date", "is_from_me", "text"), *((("Ann", "Bob")[n // 2], f"2024-01-02 09:0{n}", n % 2, text)
              for n, text in enumerate(FOUR))),
        [[Q1, A1], [Q2, A2]],
    ),
    "reddit table": (
        table(("id", "parent_id", "link_id", "author", "body", "created_utc"), ("a", "t3_p", "t3_p", "ann", Q1, T0),
              ("b", "t1_a", "t3_p", "ben", A1, T0 + 1), ("c", "t1_a", "t3_p", "cy", A2, T0 + 2),
              ("d", "t1_b", "t3_p", "[deleted]", "[deleted]", T0 + 3), ("e", "t1_d", "t3_p", "ann", Q2, T0 + 4)),
        [[Q1, A1], [Q1, A2]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_many_programs(write: Write, name: str) -> None:
    content, expected = TABLES[name]
    chats = import_chats(write("export.csv", content), keep_personal=True)
    assert sorted(texts(chats)) == sorted(expected), chats.report.notes


YAML = "responses:\n  utter_open:\n  - text: Until six.\n  utter_where:\n  - text: Main street.\n"
YAML_CHAT = "- sender: Ann\n  text: Is it open?\n- sender: Ben\n  text: Until six.\n- sender: Ann\n  text: Thanks\n"
MARKDOWN = "# Replies\n\nUse these:\n\n- Until six.\n- Main street.\n"
CHAT = table(("ticket", "sender", "time", "message"), (1, "Ann", iso(0), Q1), (1, "Ben", iso(1), A1))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("domain.yml", YAML, "is YAML"), ("domain.txt", YAML, "is YAML"), ("chat.yaml", YAML_CHAT, "is YAML"),
        ("chat.txt", YAML_CHAT, "is YAML"), ("faq.md", MARKDOWN, "is Markdown"), ("faq.txt", MARKDOWN, "is Markdown"),
        ("t.md", "| question | answer |\n|---|---|\n| a | b |\n", "is Markdown"),
        ("page.html", "<!doctype html><html><body><p>Until six.</p></body></html>", "is an HTML page"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("read", [import_chats, read_texts])
def test_texts_of_other_formats_are_refused(write: Write, read: Any, name: str, content: str, problem: str) -> None:
    with pytest.raises(ChatsError, match=problem):
        read(write(name, content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("export.csv", CHAT), ("chat.txt", "Ann: Is it open?\nBen: Until six.\nAnn: Thanks\nBen: Bye\n"),
        ("wa.txt", "12/31/23, 9:15 PM - Ann: hello\n12/31/23, 9:17 PM - Ben: hi\n"),
        ("export.json", {"conversations": [{"id": 1, "messages": [{"sender": "Ann", "text": "hi"}]}]}),
        ("sms.csv", table(("From", "To", "Body"), ("1", "2", "hi"))),
        ("x.json", {"messages": [{"name": name, "text": f"hi {name}"} for name in ("Ann", "Ben", "Ann")]}),
    ],
)  # fmt: skip
def test_chats_are_not_replies(write: Write, name: str, content: Any) -> None:
    with pytest.raises(UsageError, match=r"polyrank import chats .* --from-dialogues"):
        read_texts(write(name, content))


def test_forms_of_replies(write: Write) -> None:
    """Pages of Front, Help Scout, Zendesk, Gorgias and schema.org, texts alone, and texts by their names."""
    named = {"refund": "It is paid.", "reset": "Click here."}
    texts = [*named.values()]
    front = [
        {"id": f"r{n}", "name": name, "body": f"<div>{text}</div>"} for n, (name, text) in enumerate(named.items())
    ]
    scout = [{"id": n, "name": name, "text": text} for n, (name, text) in enumerate(named.items())]
    asked = [{"@type": "Question", "name": name, "acceptedAnswer": {"@type": "Answer", "text": f"<p>{text}</p>"}}
             for name, text in named.items()]  # fmt: skip
    page = {"@context": "https://schema.org", "@type": "FAQPage", "mainEntity": asked}
    fields = ("comment_value", "comment_value_html")
    macros = [{"name": name, "actions": [{"field": "status", "value": "solved"}, {"field": field, "value": f"<p>{text}</p>"}]}
              for field, (name, text) in zip(fields, named.items(), strict=True)]  # fmt: skip
    gorgias = [{"name": name, "created_datetime": iso(0), "actions": [
                   {"name": "addTags", "type": "user", "arguments": {"tags": "paid"}},
                   {"name": "setResponseText", "type": "user", "arguments": {"body_text": text, "body_html": f"<p>{text}</p>"}}]}
               for name, text in named.items()]  # fmt: skip
    pages = {"_results": front}, {"_embedded": {"replies": scout}}, {"macros": macros}, {"data": gorgias}
    for content in (*pages, page, texts, named):
        column, rows = read_texts(write("x.json", content))
        assert [row[column] for _, row in rows] == texts
        names = [row.get("name", row.get("question")) for _, row in rows]
        assert names == ([None, None] if content is texts else [*named])
    for held in (page, [page], {"@graph": [{"@type": "Organization", "name": "Shop"}, page]}):
        found = import_chats(write("page.json", held))
        assert turns(found) == [[f"customer: {name}", f"agent: {text}"] for name, text in named.items()]
    for mark in ("- ", "* ", "1. ", " 12) "):
        column, rows = read_texts(write("x.txt", "\n\n".join(mark + text for text in texts)))
        assert [row[column] for _, row in rows] == [texts[0], "", texts[1]]
    column, rows = read_texts(write("x.txt", "- a\nb - c\n"))
    assert [row[column] for _, row in rows] == ["- a", "b - c"]
    with pytest.raises(ChatsError, match="no column has a usual name among 'refund', 'reset'"):
        read_texts(write("x.csv", table(("refund", "reset"), ("It is paid.", "Click here."))))
    with pytest.raises(ChatsError, match="no column has a usual name among 'x', 'y'"):
        read_texts(write("x.json", {"x": "b", "y": 1}))
    with pytest.raises(ChatsError, match=r"x\.json: nested too deeply; give flatter JSON"):
        read_texts(write("x.json", '[{"text": ' + '{"a": ' * 600 + '"b"' + "}" * 601 + "]"))


def test_comments_among_the_actions_of_a_board_are_messages(write: Write) -> None:
    said_by = (("Ann", Q1), ("Ben", A1), ("Ann", Q2))
    actions = [{"id": f"a{n}", "date": iso(n), "data": {"text": text}, "memberCreator": {"fullName": name}}
               for n, (name, text) in enumerate(said_by)]  # fmt: skip
    cards = [{"id": f"c{n}", "text": f"Order {n}"} for n in range(5)]  # nobody wrote these
    path = write("board.json", {"id": "b", "actions": actions, "cards": cards})
    chats = import_chats(path, sender="memberCreator.fullName")
    assert turns(chats) == [[f"{name}: {text}" for name, text in said_by]]


def test_replies_of_an_api(write: Write) -> None:
    replies = [{"id": n, "title": f"t {n}", "content": f"<p>Reply {n}</p>"} for n in range(3)]
    notes: list[str] = []
    path = write("page.json", {"count": 3, "next": "https://x.example/?page=2", "results": replies})
    _, rows = read_texts(path, column="content", notify=notes.append)
    assert [row["content"] for _, row in rows] == ["Reply 0", "Reply 1", "Reply 2"]
    assert any("is a page of several" in note for note in notes)
    domain = {"version": "3.1", "responses": {f"utter_{n}": [{"text": f"Reply {n}"}] for n in range(3)}}
    assert [row["text"] for _, row in read_texts(write("domain.json", domain))[1]] == ["Reply 0", "Reply 1", "Reply 2"]


def test_a_page_of_chats_is_reported(write: Write) -> None:
    content = {**JSON["gorgias"][0], "meta": {"next_cursor": "abc"}}
    assert any("is a page of several" in note for note in import_chats(write("x.json", content)).report.notes)


def test_tables_of_only_questions_and_answers_have_ids_by_their_rows(write: Write) -> None:
    for more in ("", ",note"):
        rows = "".join(f"How is {n}?,Fine {n}.{more and ',x'}\n" for n in range(5))
        found = import_chats(write("qa.csv", f"question,answer{more}\n{rows}"))
        assert [row["id"] for row in found.dialogues] == [f"qa:{n}" for n in range(2, 7)]


def test_a_file_of_attachments_states_so_with_and_without_agents(write: Write) -> None:
    lines = "".join(f"12/31/23, 9:1{n} PM - Ann: <Media omitted>\n" for n in range(5))
    for agent in ([], ["Ben"]):
        with pytest.raises(ChatsError, match=r"holds no usable message \(5 attachments\)"):
            import_chats(write("x.txt", lines), agent=agent)


def test_dotted_names_reach_every_list(write: Write) -> None:
    def stuff(n: int) -> dict[str, Any]:
        lines = [{"u": {"login2": who}, "msg2": text, "at": iso(n)} for who, text in (("Ann", Q1), ("Ben", A1))]
        return {"ref": n, "a": {"b": lines[:1]}, "parts": [{"b": []}]} | {"a": {"b": lines}}

    path = write("x.json", {"things": [stuff(1), stuff(2)]})
    chats = import_chats(path, messages="things.a.b", sender="u.login2", text="msg2")
    assert turns(chats) == [["Ann: " + Q1, "Ben: " + A1]] * 2
    with pytest.raises(ChatsError, match=r"has no list at 'things.c', but .*'things.a.b \(u.login2, msg2, at\)'"):
        import_chats(path, messages="things.c", sender="u.login2", text="msg2")
    with pytest.raises(UsageError, match=r"has no column 'u\.name'; it has 'u.login2'"):
        import_chats(path, messages="things.a.b", sender="u.name", text="msg2")


@pytest.mark.parametrize(
    ("column", "shown", "hidden"),
    [
        ("Type", "Public reply", "Internal note"), ("Visibility", "public", "internal"), ("is_public", "yes", "no"),
        ("Comment Type", "Public", "Internal"), ("element", "comments", "work_notes"), ("Private", "No", "Yes"),
        ("intern", "nein", "ja"), ("Typ", "Antwort", "Interne Notiz"), ("visible_to_customer", "true", "false"),
        ("jsdPublic", "true", "false"), ("Internal?", "FALSE", "TRUE"), ("article_type", "email-external", "note-internal"),
        ("Note Type", "Reply", "Private Note"), ("Nota interna", "No", "Sí"), ("Interne", "non", "oui"),
        ("Visibility", "Everyone", "Agents only"), ("Sichtbarkeit", "öffentlich", "intern"),
    ],
)  # fmt: skip
def test_internal_comments_never_reach_a_reply(write: Write, column: str, shown: str, hidden: str) -> None:
    rows = [("Ticket", "Created", "Author", column, "Body"), (7, iso(0), "Ann Lee", shown, Q1),
            (7, iso(1), "Agent Ben", hidden, "check her address"), (7, iso(2), "Agent Ben", shown, A1),
            (8, iso(0), "Cy Ott", shown, Q2), (8, iso(2), "Agent Ben", shown, A2)]  # fmt: skip
    chats = import_chats(write("tickets.csv", table(*rows)))
    assert turns(chats) == [said(Q1, A1), said(Q2, A2)]
    assert chats.report.left_out == {"internal note": 1}
