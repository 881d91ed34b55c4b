"""Turns of phrase that have a plainer form, counted in the package, its documentation and its commands.

    python runs/words.py [PATH ...]      each turn with its file and line; exits with 1 if any is left
    python runs/words.py --count         how many of each turn

Pages that a command generates are left out: their sentences come from the package.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "docs", "deploy", "kernels", "models", "chats", "runs", ".ci")
PLACES = (*FOLDERS, *(path.name for path in ROOT.glob("*.md")))
KINDS = {".py", ".md", ".html", ".js", ".css", ".c", ".h", ".sh", ".toml", ".yaml", ""}
SKIPPED = {
    ".hypothesis",
    "words.py",
    "results",
    "work",
    "equivalent",
    "commands.md",
    "recipe.md",
    "results.md",
    "vocab.txt",
    "LICENSE",
}

TURNS = {  # a pattern, and what to write instead
    r"\b(is|are|was|were) no\b": "is not, has no",
    r"\banew\b": "again; rebuilds",
    r"\bbeside\b": "next to, compared with, in addition to",
    r"\b(go|goes|went|going) on\b": "continues, resumes",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bwho(m|se|so)?ever\b": "the caller, the user, the process",
    r"\bof (our|its|their) own\b": "its own X",
    r"\bours\b": "polyrank's",
    r"\blearnt\b(?! codes|-m|[\"'`_)])(?<![\"'`-]learnt)": "trained, learned",
    r"\breckon(s|ed)?\b|\bon paper\b": "estimated",
    r"\b(taken|took|takes) for\b": "interpreted as",
    r"\b(ask|asks|asked|asking) for\b": "requires, requests, needs",
    r"\bsays?\b(?!`)": "reports, prints, returns, states",
    r"\b(tells|told)\b": "reports, shows, distinguishes",
    r"\bstands?\b(?! for|-alone)": "is",
    r"\bthe first process\b": "rank 0",
    r"\bthe way on\b": "how to resume",
    r"\b(is|are) to be\b|\bto be had\b": "must be; is available",
    r"\b(has|have) (never )?read\b": "was trained on",
    r"\bbrings? nothing\b|\bbrought nothing\b": "does not improve R@1",
    r"(^|[.;:] |\"\"\"|# )(What|Who) [a-z][^?\n]*[.,:;\n]": "name the subject",
}
PATTERN = re.compile("|".join(f"(?P<t{i}>{turn})" for i, turn in enumerate(TURNS)), re.MULTILINE)
EXPLAINED = list(TURNS.items())


def texts(places: list[Path]) -> Iterator[tuple[Path, str]]:
    """Each file that people read."""
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and path.suffix in KINDS and not SKIPPED & set(path.relative_to(ROOT).parts):
                data = path.read_bytes()
                if b"\0" not in data:  # a model, not a text
                    yield path, data.decode("utf-8")


def turns(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, words and what to write instead.

    >>> list(turns("Load it,\\nthen load it anew."))
    [(2, 'anew', 'again; rebuilds')]
    """
    for match in PATTERN.finditer(text):
        _, plain = EXPLAINED[int((match.lastgroup or "t0")[1:])]
        yield text.count("\n", 0, match.start()) + 1, match[0].strip(), plain


def main() -> None:
    """Print what is left."""
    counting = "--count" in sys.argv
    named = [Path(word).resolve() for word in sys.argv[1:] if not word.startswith("--")]
    counts: Counter[str] = Counter()
    for path, text in texts(named or [ROOT / place for place in PLACES]):
        for line, words, plain in turns(text):
            counts[plain] += 1
            if not counting:
                print(f"{path.relative_to(ROOT)}:{line}: {words!r}: {plain}")
    for plain, n in counts.most_common() if counting else ():
        print(f"{n:5}  {plain}")
    sys.exit(1 if counts else 0)


if __name__ == "__main__":
    main()
