"""Sphinx configuration: the Markdown pages of this folder as HTML."""

project = "megabert"
extensions = ["myst_parser"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
html_theme = "alabaster"
suppress_warnings = ["myst.xref_missing"]
