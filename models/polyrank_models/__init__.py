"""Folders of models, which polyrank finds as shipped:NAME."""
