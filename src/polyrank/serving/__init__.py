"""Replies over HTTP: an ASGI app that never computes, processes that do, and what was taken as feedback."""
