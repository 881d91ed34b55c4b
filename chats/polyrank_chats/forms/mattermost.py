"""Mattermost's bulk export: JSON lines of posts and direct posts, each with its replies."""

from polyrank_chats.files.file import File
from polyrank_chats.messages import ATTACHMENT, EMPTY, SYSTEM, Message, Messages
from polyrank_chats.values import Row, object_of, objects_in

POSTS = ("post", "direct_post")


def mattermost(file: File) -> Messages | None:
    """A post with replies is a conversation; other posts are a stream, one for each channel or group of members."""
    posts = [(number, object_of(row.get(str(row.get("type"))))) for number, row in file.objects if _is_post(row)]
    return _messages(file, posts) if posts else None


def _is_post(row: Row) -> bool:
    return row.get("type") in POSTS and "create_at" in object_of(row.get(str(row["type"])))


def _messages(file: File, posts: list[tuple[int, Row]]) -> Messages:
    for number, post in posts:
        members = post.get("channel_members")
        names = map(str, members) if isinstance(members, list) else (str(post.get(key)) for key in ("team", "channel"))
        channel = "/".join(names)
        replies = objects_in(post.get("replies"))
        thread = f"{channel}:{post['create_at']}" if replies else None
        for each in (post, *replies):
            text = str(each.get("message") or "").strip()
            if str(each.get("type") or "").startswith("system_") or not each.get("user"):
                yield SYSTEM
            elif not text:
                yield ATTACHMENT if each.get("attachments") else EMPTY
            else:
                where = f"{file.path}:{number}"
                yield Message(where, channel, str(each["user"]), text, thread, each.get("create_at"))
