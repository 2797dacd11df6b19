"""The steps of a build, in their order; each is a list of units of work that do not depend on each other."""
