"""One file per command: its arguments, and the call that does its work."""
