"""The kinds of characters that the loops know, apart from the code that assigns them (`characters`).

Compiled loops freeze these numbers, and are compiled anew when a file that they import changes. So this file imports
nothing.
"""

OTHER = 0  # only `tokenizers` knows it
LETTER = 1  # it stays as it is, inside a word
SINGLE = 2  # it is a word of its own
