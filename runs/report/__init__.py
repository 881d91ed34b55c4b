"""The sections of docs/results.md, and the tables of README.md and docs/choosing.md, from what the runs printed."""
