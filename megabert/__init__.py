"""megabert: pre-training BERT from raw text, on one CPU or on many GPU nodes."""

__version__ = "0.1.0"
