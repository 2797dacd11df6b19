"""No Python code out of the working folder: a ``json.py`` that lies there is the user's, not Python's.

``python -m`` puts the working folder first on the path where modules are searched, and so do the Python processes that
a command starts: workers of a build, ranks of the doctor, tasks of GLUE. The installed programs themselves do not.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The folder that holds the packages."""


def leave_out_working_folder() -> None:
    """Take the working folder off the path, here and in all processes that this one starts.

    A checkout that is not installed and is the working folder stays importable, after everything that is installed.
    """
    try:
        folder = os.getcwd()
    except OSError:  # somebody has deleted it
        folder = ""
    is_root = folder != "" and os.path.samefile(folder, ROOT)
    if not sys.flags.safe_path and sys.path[:1] == [folder]:
        del sys.path[0]
        if is_root:
            sys.path.append(ROOT)
    os.environ["PYTHONSAFEPATH"] = "1"
    # An empty entry means the working folder as well; a setting such as PYTHONPATH=$MINE:$PYTHONPATH often has one.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if is_root and ROOT not in paths:
        paths.append(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # an empty one is as good as none
