"""A context in, ranked replies out: retrievers, two stages, pipelines and their calibration."""
