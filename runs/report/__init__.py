"""The sections of docs/results.md, and the tables of README.md and docs, from the results of the runs."""
