"""The settings of both programs: configuration and recipes, and the command line that reads them."""
