"""The command line: a table of commands, imported on demand."""
