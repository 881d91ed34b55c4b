"""Settings as frozen dataclasses, read strictly: models, text, recipes, and what the names of models mean."""
