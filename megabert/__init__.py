"""megabert: pre-training BERT from raw text, on one CPU or on many GPU nodes."""

__version__ = "1.0.0"
