"""Ranking metrics with a tie rule, statistics, ensembles of scores, and abstention. NumPy only."""
