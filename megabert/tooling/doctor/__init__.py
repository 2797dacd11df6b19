"""Is this machine, or this job, fit to train? Each check returns findings; one failed finding is a failed verdict."""
