"""A context in, ranked replies out: an index under a ranker, and retrievers and two stages as in the papers."""
