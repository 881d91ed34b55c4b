"""A polyrank server from Python: the same answers, explanations and errors as from an index that is opened here.

``calls`` knows routes and JSON, ``clients`` sends and waits. No torch is loaded.
"""

from polyrank.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
