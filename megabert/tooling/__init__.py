"""Around a run: is the machine fit, what will a run cost, how is it going."""
