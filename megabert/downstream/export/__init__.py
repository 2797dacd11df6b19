"""Models as Hugging Face folders: written for ``transformers``, read to start from."""
