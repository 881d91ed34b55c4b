"""What is learnt on top of a frozen encoder: intents, and a map of response vectors."""
