"""Wrong candidates: random, given, mined, and mined anew while training."""
