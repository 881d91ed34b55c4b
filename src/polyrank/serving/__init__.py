"""Answers over HTTP, and what is learnt from the answers that people took."""
