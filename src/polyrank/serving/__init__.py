"""HTTP server: an ASGI app that never computes, model processes that do, and a log of feedback."""
