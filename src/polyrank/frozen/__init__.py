"""Models on a frozen encoder: intent classifiers, linear maps of response vectors, and weights of a sum."""
