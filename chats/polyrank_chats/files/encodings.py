"""The encoding of a text file: the user's, that of its first bytes, UTF-8, or the most likely one."""

import re
from json import detect_encoding

from polyrank_chats.errors import DataError, UsageError, row_error
from polyrank_chats.files.members import Member
from polyrank_chats.options import Options
from polyrank_chats.phones import COUNTRIES, language
from polyrank_chats.wording import counted

# what Python calls encodings of the web; the last is rather its successor in Windows
SUPERSETS = {"shift_jis": "cp932", "euc-kr": "cp949", "gbk": "gb18030", "iso-8859-4": "cp1252"}
ESCAPED = re.compile("[\udc80-\udcff]+")  # bytes that are not UTF-8
MAX_OTHERS = 0.1  # of the lines with other than ASCII letters


def decoded(member: Member, data: bytes, options: Options) -> str:
    """Decode a file: with the user's encoding, else by its byte order mark, else as UTF-8, else by detection.

    A file with a few lines of another encoding is UTF-8; what is not UTF-8 in them is read as cp1252.
    """
    encoding = options.encoding or detect_encoding(data[:4])  # by a byte order mark or zero bytes
    try:
        return data.decode(encoding)
    except LookupError as error:
        raise UsageError(f"encoding {encoding!r} is unknown; use utf-8, cp1252, utf-16, shift_jis, ...") from error
    except UnicodeDecodeError as error:
        if options.encoding or encoding != "utf-8":
            line = data.count(b"\n", 0, error.start) + 1
            raise row_error(member.path, line, f"is not {encoding}; give its encoding") from error
    text = data.decode("utf-8", "surrogateescape")
    telling = [(number, line) for number, line in enumerate(text.split("\n"), 1) if not line.isascii()]
    others = [number for number, line in telling if ESCAPED.search(line)]  # ASCII lines are in any encoding
    if len(others) <= MAX_OTHERS * len(telling):
        how = f"{counted(len(others), 'line')} not in UTF-8, the first is line {others[0]}; read as cp1252"
        options.report.note(f"{member.path.name}: {how}")
        return ESCAPED.sub(lambda bad: bad[0].encode("utf-8", "surrogateescape").decode("cp1252", "replace"), text)
    guess = detected("\n".join(line for _, line in telling).encode("utf-8", "surrogateescape"))
    options.report.note(f"{member.path.name} is not UTF-8; read as {guess} (choose another with the option encoding)")
    try:
        return data.decode(guess)
    except UnicodeDecodeError as error:
        raise DataError(f"{member.path}: is not readable text, or only partly {guess}; give its encoding") from error


def detected(lines: bytes) -> str:
    """The encoding of lines with letters that ASCII lacks, by Firefox's detector and the country of their language.

    >>> detected("Děkuji, už to funguje".encode("cp1250")), detected("もう動きます。".encode("cp932"))
    ('cp1250', 'cp932')
    """
    from chardetng_py import detect

    country = COUNTRIES.get(language(lines.decode("latin-1")), ["com"])[0].lower()
    guess: str = detect(lines, tld=country.encode()).lower().replace("windows-", "cp")
    return SUPERSETS.get(guess, guess)
