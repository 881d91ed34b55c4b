"""The encoding of a text file: the user's, that of its first bytes, UTF-8, or the most likely one."""

import codecs
import re
from typing import Any

from polyrank_chats.errors import DataError, UsageError, row_error
from polyrank_chats.files.members import Member
from polyrank_chats.options import Options
from polyrank_chats.wording import counted

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SIGNS = "’‘“”„‚–—…€•·«»‹›°©®™§№\xa0"
USUAL = {
    "cp1252": frozenset("àâäáãåæçéèêëíîïñóôöõøœúùûüßÿÀÂÄÁÃÅÆÇÉÈÊËÍÎÏÑÓÔÖÕØŒÚÙÛÜŸìòÌÒªº¿¡£´²³½" + SIGNS),
    "cp1251": frozenset("абвгдежзийклмнопрстуфхцчшщъыьэюяАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯёЁіІїЇєЄґҐўЎ" + SIGNS),
    "cp1254": frozenset("çğıöşüâîûÇĞİÖŞÜÂÎÛ" + SIGNS),
    "cp1250": frozenset("ąćęłńóśźżáčďéěíňřšťúůýžľĺŕôäöőüűăâîşţđĄĆĘŁŃÓŚŹŻÁČĎÉĚÍŇŘŠŤÚŮÝŽĽĹŔÔÄÖŐÜŰĂÂÎŞŢĐß" + SIGNS),
}
"""Windows' encodings: the letters and signs of Western European, East Slavic, Turkish, Central European languages."""
ESCAPED = re.compile("[\udc80-\udcff]+")  # bytes that are not UTF-8
MIN_USUAL = 0.95  # share of them in a text
MAX_SAMPLE = 100_000  # bytes to detect the encoding from
MAX_OTHERS = 0.1  # of the lines with other than ASCII letters


def decoded(member: Member, data: bytes, options: Options) -> str:
    """Decode a file: with the user's encoding, else by its byte order mark, else as UTF-8, else by detection.

    A file with a few lines of another encoding is UTF-8; what is not UTF-8 in them is read as cp1252.
    """
    encoding = options.encoding or next((name for mark, name in MARKS if data.startswith(mark)), None)
    if encoding is None and data[:1000].count(0) > len(data[:1000]) // 4:
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    try:
        return data.decode(encoding or "utf-8")
    except LookupError as error:
        raise UsageError(f"encoding {encoding!r} is unknown; use utf-8, cp1252, utf-16, shift_jis, ...") from error
    except UnicodeDecodeError as error:
        if encoding is not None:
            line = data.count(b"\n", 0, error.start) + 1
            raise row_error(member.path, line, f"is not {encoding}; give its encoding") from error
    text = data.decode("utf-8", "surrogateescape")
    telling = [(number, line) for number, line in enumerate(text.split("\n"), 1) if not line.isascii()]
    others = [number for number, line in telling if ESCAPED.search(line)]  # ASCII lines are in any encoding
    if len(others) <= MAX_OTHERS * len(telling):
        options.report.note(
            f"{member.path.name}: {counted(len(others), 'line')} not in UTF-8, the first is line {others[0]}; read as"
            " cp1252"
        )
        return ESCAPED.sub(lambda bad: bad[0].encode("utf-8", "surrogateescape").decode("cp1252", "replace"), text)
    sample = "\n".join(line for _, line in telling).encode("utf-8", "surrogateescape")
    if len(sample) > MAX_SAMPLE:
        sample = sample[:MAX_SAMPLE].rpartition(b"\n")[0] or sample[:MAX_SAMPLE]
    guess = _detected(sample)
    if guess is None:
        raise DataError(f"{member.path}: is not readable text; give its encoding")
    options.report.note(f"{member.path.name} is not UTF-8; read as {guess} (choose another with the option encoding)")
    try:
        return data.decode(guess)
    except UnicodeDecodeError as error:
        raise DataError(f"{member.path}: is only partly {guess}; give its encoding") from error


def _detected(sample: bytes) -> str | None:
    """The encoding of lines with other than ASCII letters; None: no encoding fits.

    Many encodings fit a text equally well. Then it is Windows' encoding, by far the most frequent, if the text has
    hardly any letters and signs that are rare in its languages.
    """
    from charset_normalizer import from_bytes  # slow to import

    if (best := from_bytes(sample).best()) is None:
        return None
    for name, usual in USUAL.items():
        like = from_bytes(sample, cp_isolation=[name]).best()
        if like is None or _is_other(best, name):
            continue
        shown = [sign for sign in str(like) if not sign.isascii()]
        fits = sum(sign in usual for sign in shown) >= MIN_USUAL * len(shown)
        if fits and like.chaos <= best.chaos + 0.1 and like.coherence >= best.coherence - 0.25:  # of short texts, noise
            return name
    return best.encoding


def _is_other(best: Any, name: str) -> bool:
    """Whether the best match is better evidence than the usual letters in the encoding ``name``."""
    if name == "cp1252":  # which shows two letters of Hungarian as usual ones
        return best.language == "Hungarian" and not set("őűŐŰ").isdisjoint(str(best))
    if name == "cp1251":
        return not any("Cyrillic" in alphabet for alphabet in best.alphabets)
    return str(best.encoding).startswith("mac_")
