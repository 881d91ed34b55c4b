"""Settings as frozen dataclasses, with strict parsing: models, text, recipes and the server."""
