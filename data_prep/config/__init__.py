"""The settings of a build: sources, cleaning, ids, languages."""
