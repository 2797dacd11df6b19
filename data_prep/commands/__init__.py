"""One file a verb: options, call, report."""
