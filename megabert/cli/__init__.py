"""The program ``megabert``."""
