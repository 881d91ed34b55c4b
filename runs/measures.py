"""Prints the package's size as a table: python runs/measures.py [CHECKOUT] [--packages]

Lines of code exclude docstrings, comments and blank lines. --packages adds a table by package.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

LONG = 400  # lines of a module, from the first to the last
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Number of lines of code of one module.

    >>> code_lines('"Its docstring."\\n\\n# a comment\\nx = (1,\\n     2)\\n')
    2
    """
    held = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(held - _docstrings(source))


def _docstrings(source: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Module(body=body)
                | ast.ClassDef(body=body)
                | ast.FunctionDef(body=body)
                | ast.AsyncFunctionDef(body=body)
            ) if body:
                match body[0]:
                    case ast.Expr(value=ast.Constant(value=str())) as first:
                        lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def main() -> None:
    """Print the table."""
    words = [word for word in sys.argv[1:] if word != "--packages"]
    root = Path(words[0]) if words else Path(__file__).parents[1]
    modules = {path: path.read_text("utf-8") for path in sorted((root / "src").rglob("*.py"))}
    sizes = {path: code_lines(text) for path, text in modules.items()}
    lines = [line for text in modules.values() for line in text.splitlines()]
    recipe = (root / "docs/recipe.md").read_text("utf-8").splitlines()
    measures = {
        "lines of code without docstrings, comments and blanks": sum(sizes.values()),
        "lines with `isinstance`": sum("isinstance(" in line for line in lines),
        "`isinstance`": sum(line.count("isinstance(") for line in lines),
        "recipe keys": sum(line.startswith("| `") for line in recipe),
        "files under runs/results": sum(path.is_file() for path in (root / "runs/results").rglob("*")),
        "modules": len(modules),
        f"modules above {LONG} lines": sum(text.count("\n") > LONG for text in modules.values()),
    }
    print("| measure | now |\n|---|---:|")
    for name, value in measures.items():
        print(f"| {name} | {value:,} |")
    if "--packages" in sys.argv:
        packages: Counter[str] = Counter()
        for path, size in sizes.items():
            packages[path.relative_to(root / "src/polyrank").parts[0]] += size
        print("\n| package | lines of code |\n|---|---:|")
        for name, value in packages.most_common():
            print(f"| {name} | {value:,} |")


if __name__ == "__main__":
    main()
