"""What ranks do together: process groups, agreement, one error for all, and the lock of a run folder."""
