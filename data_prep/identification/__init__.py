"""Which language a text is in: by py3langid, or by a fastText model that the user names."""
