"""Times that our pages report: of a stored index, and of searches through filters."""
