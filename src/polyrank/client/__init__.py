"""Clients for a polyrank server. They return the same answers, explanations and errors as an index opened locally.

``calls`` parses answers, ``clients`` defines and sends requests. This package does not load torch.
"""

from polyrank.client.clients import AsyncClient as AsyncClient, Client as Client
