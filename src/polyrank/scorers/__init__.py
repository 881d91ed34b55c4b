"""A model bound to text, device and precision, ready to rank; lexical scorers; exports."""
