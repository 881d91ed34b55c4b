"""The faults that ``mutants.py`` injects: single changes by an operator, drawn from every file of the package.

An operator inverts a comparison, swaps arguments, drops a statement and so on. Longer files get more faults. They are
drawn by a hash of the function's name and the line's text, so that faults move along when code moves.
"""

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "polyrank"
SUBPACKAGES = ("index/remote", "scorers/exported")  # counted separately from the rest of their package
# lines of code per fault; the first matching pattern counts
DENSITY = (
    ("models/scoring.py", 6), ("models/losses.py", 6), ("search/scoring.py", 6), ("ranking/metrics.py", 16),
    ("evaluation/*", 16), ("models/convert/quantization.py", 10), ("storage/quantized.py", 10),
    ("training/checkpoints.py", 10), ("training/teacher.py", 10), ("training/mutual.py", 10), ("negatives/*", 18),
    ("training/batches.py", 18), ("training/steps.py", 18), ("training/shares.py", 10), ("training/sums.py", 10),
    ("training/queue.py", 10), ("training/grouped.py", 10), ("data/pool.py", 18), ("search/*", 24),
    ("devices/*", 12), ("feedback/*", 20), ("index/remote/*", 14), ("integrations/*", 12), ("bench/*", 20),
    ("scorers/exported/*", 12), ("cli/*", 48), ("serving/*", 48), ("*", 32),
)  # fmt: skip
FEWEST, MOST = 1, 14
IN_C = 15  # faults per file


@dataclass(frozen=True)
class Fault:
    """One change: in ``path`` of the package (or of the C files), characters ``start`` to ``end`` become ``new``."""

    id: str
    package: str
    path: str
    line: int
    where: str
    operator: str
    old: str
    new: str
    start: int
    end: int

    def applied(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


# --- operators --------------------------------------------------------------------------------------------------------

COMPARED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
COMPUTED = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.MatMult: ("@", "+"),
}  # fmt: skip
NAMES = {
    "max": "min", "min": "max", "amax": "amin", "amin": "amax", "maximum": "minimum", "minimum": "maximum",
    "argmax": "argmin", "argmin": "argmax", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any",
    "sum": "mean", "mean": "sum", "log": "log1p", "sqrt": "exp", "sorted": "list", "argsort": "flip",
    "fsync": "fstat", "logsumexp": "amax", "softmax": "sigmoid", "zeros": "ones", "ones": "zeros", "cos": "sin",
}  # fmt: skip


class Operators(ast.NodeVisitor):
    """Collects every change that an operator can make, as (start, end, line, where, operator, new text)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.encoded = [line.encode() for line in text.splitlines(keepends=True)]
        self.where: list[str] = []
        self.changes: list[tuple[int, int, int, str, str, str]] = []  # start, end, line, where, operator, new

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.encoded[line - 1][:column].decode())

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def change(self, start: int, end: int, operator: str, new: str) -> None:
        line = self.text.count("\n", 0, start) + 1
        self.changes.append((start, end, line, ".".join(self.where), operator, new))

    def replace(self, node: ast.expr | ast.stmt, operator: str, new: str) -> None:
        self.change(*self.span(node), operator, new)

    def source(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def between(self, left: ast.expr, right: ast.expr, old: str, operator: str, new: str) -> None:
        start, end = self.span(left)[1], self.span(right)[0]
        found = re.search(rf"(?<![\w*/<>=!]){re.escape(old)}(?![*/<>=])", self.text[start:end])
        if found:
            self.change(start + found.start(), start + found.end(), operator, new)

    def visit_scope(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.where.append(node.name)
        defaults = (
            [*node.args.defaults, *filter(None, node.args.kw_defaults)] if isinstance(node, ast.FunctionDef) else []
        )
        for child in (*node.body, *defaults):
            self.visit(child)
        self.where.pop()

    visit_FunctionDef = visit_ClassDef = visit_scope  # noqa: N815  # names that ast requires

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            self.replace(node.test, "condition turned", f"not ({self.source(node.test)})")
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Assertions only state what types cannot express."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self.replace(node, "statement dropped", "pass")  # not the message, which is for people

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Import(self, node: ast.Import) -> None: ...
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            self.replace(node, "statement dropped", "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.replace(node, "statement dropped", "pass")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for kind, right in zip(node.ops, node.comparators, strict=True):
            old, new = COMPARED[type(kind)]
            self.between(left, right, old, "comparison turned", new)
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = (ast.Constant, ast.JoinedStr)
        if any(
            isinstance(side, texts) and not isinstance(getattr(side, "value", ""), int | float)
            for side in (node.left, node.right)
        ):
            return
        if type(node.op) in COMPUTED:
            old, new = COMPUTED[type(node.op)]
            self.between(node.left, node.right, old, "arithmetic", new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self.between(node.values[0], node.values[1], old, "and / or", new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        what = {ast.USub: "sign", ast.Not: "condition turned", ast.Invert: "mask inverted"}
        if type(node.op) in what:
            self.replace(node, what[type(node.op)], f"({self.source(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.replace(node, "constant", str(not value))
        elif isinstance(value, int):
            self.replace(node, "off by one", str(value + 1))
        elif isinstance(value, float):
            self.replace(node, "constant", repr(value * 1.1 if value else 0.1))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in NAMES:
            end = self.span(node.func)[1]
            self.change(end - len(name), end, f"{name} for", NAMES[name])
        plain = [a for a in node.args if not isinstance(a, ast.Starred | ast.JoinedStr | ast.Constant)]
        if (
            len(plain) == len(node.args) >= 2
            and self.source(plain[0]) != self.source(plain[1])
            and name not in ("isinstance", "max", "min", "zip", "cast")
        ):
            start, end = self.span(plain[0])[0], self.span(plain[1])[1]
            gap = self.text[self.span(plain[0])[1] : self.span(plain[1])[0]]
            self.change(start, end, "arguments swapped", self.source(plain[1]) + gap + self.source(plain[0]))
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg in ("dim", "axis", "start_dim") or (keyword.arg is None):
                if isinstance(value, ast.Constant | ast.UnaryOp):
                    self.replace(value, "axis", "0" if self.source(value) != "0" else "-1")
            elif keyword.arg and "seed" in keyword.arg:
                self.replace(value, "seed", "12345")
            elif keyword.arg not in ("strict", "encoding", "help", "progress", "notify", "report"):
                start, end = self.span(keyword)
                tail = re.match(r"\s*,\s*", self.text[end:])
                if tail and not isinstance(value, ast.Constant):
                    self.change(start, end + tail.end(), "argument dropped", "")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Name | ast.Attribute) and self.where:
            pass  # the returned value is computed elsewhere
        self.generic_visit(node)


C_CHANGES = [
    (r"(?<=[\w\])]) (<|>) (?=[\w(])", {"<": "<=", ">": ">="}, "comparison turned"),
    (r"(?<=[\w\])]) (<=|>=) (?=[\w(])", {"<=": "<", ">=": ">"}, "comparison turned"),
    (r"(?<=[\w\])]) (\+|-) (?=[\w(])", {"+": "-", "-": "+"}, "arithmetic"),
    (r"(?<=[\w\])]) (\*) (?=[\w(])", {"*": "+"}, "arithmetic"),
    (r"(?<=[\w\])]) (\+=|-=) (?=[\w(])", {"+=": "-=", "-=": "+="}, "arithmetic"),
    (r"\b(?:fmaxf?|fminf?|_mm512_max_ps|_mm512_min_ps|_mm256_max_ps)\b", {}, "max for min"),
    (r"(?<![\w.\"])(\d+\.\d+f?)\b", {}, "constant"),
    (r"(?<![\w.\"\[])([1-9]\d{0,2})\b(?![.\w])", {}, "off by one"),
]


def faults_of(package: str, path: Path, text: str, drawn: bool) -> list[Fault]:
    """All faults of a file, or only the drawn ones."""
    name = path.name if path.suffix in (".c", ".h") else path.relative_to(PACKAGE).as_posix()
    changes = list(_c_changes(text)) if path.suffix in (".c", ".h") else _python_changes(text)
    lines = text.splitlines()
    seen: Counter[str] = Counter()
    faults = []
    for start, end, line, where, operator, new in changes:
        body = f"{where}|{operator}|{lines[line - 1].strip()}|{new}"
        seen[body] += 1
        digest = hashlib.sha256(f"{body}|{seen[body]}".encode()).hexdigest()[:10]
        faults.append(Fault(digest, package, name, line, where, operator, text[start:end], new, start, end))
    if not drawn:
        return faults
    code = sum(1 for line in lines if line.strip() and not line.strip().startswith(("#", '"""', "//", "*")))
    if path.suffix in (".c", ".h"):
        share = IN_C
    else:
        density = next(density for pattern, density in DENSITY if fnmatch(name, pattern))
        share = max(FEWEST, min(MOST, round(code / density)))
    # one fault of each operator before a second of any, and one on each line before a second on any
    taken: Counter[tuple[str, str | int]] = Counter()
    ranked = []
    for fault in sorted(faults, key=lambda f: f.id):
        rank = max(taken["operator", fault.operator], 3 * taken["line", fault.line])
        taken["operator", fault.operator] += 1
        taken["line", fault.line] += 1
        ranked.append((rank, fault.id, fault))
    in_order = (fault for *_, fault in sorted(ranked, key=lambda r: r[:2]))
    before = "" if path.suffix in (".c", ".h") else ast.dump(ast.parse(text))
    return list(islice((fault for fault in in_order if not before or _changes(fault, text, before)), share))


def _changes(fault: Fault, text: str, before: str) -> bool:
    """Whether the code is still code, and another one."""
    try:
        return ast.dump(ast.parse(fault.applied(text))) != before
    except SyntaxError:
        return False


def _python_changes(text: str) -> list[tuple[int, int, int, str, str, str]]:
    operators = Operators(text)
    operators.visit(ast.parse(text))
    return operators.changes


def _c_changes(text: str) -> Iterator[tuple[int, int, int, str, str, str]]:
    where = ""
    position = 0
    text = re.sub(r"/\*.*?\*/", lambda comment: re.sub(r"[^\n]", " ", comment[0]), text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if found := re.match(r"(?:\w[\w\s*()\",]*?)\b(\w+)\(", line):
            where = found[1]
        code = line.split("/*")[0].split("//")[0]
        if not code.lstrip().startswith(("*", "#", "argtypes")):
            for pattern, swaps, operator in C_CHANGES:
                for match in re.finditer(pattern, code):
                    group = 1 if match.re.groups else 0
                    old = match[group]
                    if swaps:
                        new = swaps[old]
                    elif operator == "max for min":
                        new = old.replace("max", "MIN").replace("min", "max").replace("MIN", "min")
                    elif operator == "constant":
                        number_part = old.rstrip("f")
                        new = repr(float(number_part) * 1.1 if float(number_part) else 0.1) + old[len(number_part) :]
                    else:
                        new = str(int(old) + 1)
                    yield position + match.start(group), position + match.end(group), number, where, operator, new
        position += len(line)


def all_faults(packages: list[str], drawn: bool = True) -> list[Fault]:
    faults = []
    native = ROOT / "kernels" / "polyrank_kernels"
    in_c = [native / name for name in ("kernels.c", "registers.c", "registers.h", "tiles.c")]
    for path in [*sorted(PACKAGE.rglob("*.py")), *in_c]:
        package = package_of(path)
        if not packages or package in packages:
            faults += faults_of(package, path, path.read_text("utf-8"), drawn)
    return sorted(faults, key=lambda fault: fault.package)


def by_hand(file: Path) -> list[Fault]:
    """The faults of a file: JSON lines of ``path`` in the package, ``old``, which occurs once there, and ``new``."""
    faults = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        path, old, new = map(json.loads(line).__getitem__, ("path", "old", "new"))
        text = (PACKAGE / path).read_text("utf-8")
        if text.count(old) != 1:
            raise SystemExit(f"{file}:{number}: the old text occurs {text.count(old)} times in {path}; give one place")
        start = text.index(old)
        # the line of the first character that changes, which its tests run
        same = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        at = text.count("\n", 0, start + same) + 1
        package = package_of(PACKAGE / path)
        faults.append(Fault(f"{number}", package, path, at, "", "hand", old, new, start, start + len(old)))
    return faults


def package_of(path: Path) -> str:
    """The package that a file's faults count for."""
    if path.suffix != ".py":
        return "kernels"
    folder = path.relative_to(PACKAGE).parent.as_posix()
    parts = [name for name in SUBPACKAGES if folder == name or folder.startswith(f"{name}/")]
    return parts[0] if parts else folder.partition("/")[0] if folder != "." else "polyrank"
