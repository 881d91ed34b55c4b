"""Clients for a polyrank server. They return the same answers, explanations and errors as an index opened locally.

``calls`` defines routes and JSON, ``clients`` sends requests. This package does not load torch.
"""

from polyrank.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
