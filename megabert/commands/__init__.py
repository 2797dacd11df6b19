"""One file a command: its arguments, and the call that does its work."""
