"""Measures times that the documentation reports: of a stored index, and of searches with filters."""
