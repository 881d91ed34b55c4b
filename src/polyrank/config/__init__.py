"""Settings as frozen dataclasses, with strict parsing: models, text, recipes, pipelines and the server."""
