"""Sphinx configuration: the Markdown pages of this folder and the docstrings of `megabert.library` as HTML."""

project = "megabert"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "megabert"
suppress_warnings = ["myst.xref_missing"]

default_role = "py:obj"  # `name` in a docstring is a link if it is a public name
autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"


def setup(app):
    """Leave out how a class is called: functions make all public objects."""
    app.connect("autodoc-process-signature", lambda app, what, *_: ("", "") if what == "class" else None)
