"""Wrong candidates: random, given with the data, mined before training, and mined again during training."""
