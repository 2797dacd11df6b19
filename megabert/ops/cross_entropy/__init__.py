"""Cross-entropy, summed, and the count of right answers."""
