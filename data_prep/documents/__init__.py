"""Documents between the steps: sets of them, their tokens by ranges of hashes, and the Arrow files that hold both."""
