"""The kinds of terms of a ranker, one module for each. To add a kind, add a module: it is found by its name.

A module ``NAME.py`` defines a subclass of ``Term`` whose ``kind`` is ``"NAME"``. Nothing else lists the kinds.
"""

import pkgutil
from importlib import import_module

from polyrank.errors import ArtifactError
from polyrank.scorers.terms.protocol import Term


def term_kinds() -> dict[str, type[Term]]:
    """The classes of all terms by kind, also of those that a program defines.

    >>> [*term_kinds()]
    ['counts', 'cross', 'encoder', 'hubs', 'lexical', 'words']
    """
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    classes: list[type[Term]] = [*Term.__subclasses__()]
    for parent in classes:  # grows while it is read
        classes += parent.__subclasses__()
    named = [kind for kind in classes if vars(kind).get("kind")]
    return {kind.kind: kind for kind in sorted(named, key=lambda kind: kind.kind)}  # of one name, the newest


def term_kind(name: str) -> type[Term]:
    """The class of a kind of term.

    Raises:
        ArtifactError: neither a module of this package nor the program defines the kind.
    """
    kinds = term_kinds()
    if name not in kinds:
        raise ArtifactError(
            f"a term of kind {name!r} is unknown here, only {', '.join(kinds)}; install the version or the module that"
            " wrote the ranker"
        )
    return kinds[name]
