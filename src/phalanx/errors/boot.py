"""The file that a Python worker starts as: ``python -u boot.py script.py args…`` or ``boot.py -m module args…``.

It hands over to ``_boot``, which removes every trace of this file and then runs the user's program in this very
``__main__`` module. The rest of our code is loaded under a private package name from this file's own folder: the
worker's interpreter may have no phalanx, another version of it, or a module of the user's with that name, and the
script must find what it would find without us.
"""

import sys

if __name__ == "__main__":
    package = type(sys)("_phalanx_boot")
    package.__path__ = [__file__.rpartition("/")[0]]
    sys.modules["_phalanx_boot"] = package

    from _phalanx_boot import _boot  # type: ignore[import-not-found] # there is no such package on disk

    _boot.run()
