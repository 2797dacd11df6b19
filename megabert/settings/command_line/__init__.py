"""What both programs share of a command line: the table of commands, flags, help, and errors as exit codes."""
