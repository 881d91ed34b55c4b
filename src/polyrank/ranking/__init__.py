"""From scores to ranks: metrics with a tie rule, ensembles, abstention. NumPy only."""
