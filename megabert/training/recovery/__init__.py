"""When something goes wrong in a run: hangs, stop signals, divergence, data to blame."""
