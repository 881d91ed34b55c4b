"""Nodes of Python code."""

import ast
from collections.abc import Iterator


def nodes(text: str) -> Iterator[ast.AST]:
    """All nodes, as ``ast.walk`` in a third of the time."""
    found: list[ast.AST] = [ast.parse(text)]
    while found:
        yield (node := found.pop())
        for value in vars(node).values():
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
