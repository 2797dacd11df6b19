"""One file a command: parse, build, call, report."""
