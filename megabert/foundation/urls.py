"""Addresses without what gives access by itself: a name and a password, or a signature."""

import re

_LOGIN = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"/]*@")
"""An address with a name or a password before its server, as HF_ENDPOINT may have."""
_QUERY = re.compile(r"(https?://[^\s'\"?]*)\?[^\s'\"]*")
"""An address with a query. In a storage, the query has a signature that lets anybody read or write the file."""


def without_secrets(text: str) -> str:
    """Return a text with each address in it cut to what may be shown and written."""
    return _LOGIN.sub(r"\1", _QUERY.sub(r"\1", text))
