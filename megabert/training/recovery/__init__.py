"""What a run does when something goes wrong: hangs, stop signals, divergence, data to blame."""
