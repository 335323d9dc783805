"""The program of a worker that is a function: ``python -u boot.py worker.py <order file> <offset> <local rank>``.

It hands over to ``calling``, loaded under a private package name from this file's own folder, as ``boot.py`` does.
"""

import sys

if __name__ == "__main__":
    package = type(sys)("_phalanx_functions")
    package.__path__ = [__file__.rpartition("/")[0]]
    sys.modules["_phalanx_functions"] = package

    from _phalanx_functions import calling  # type: ignore[import-not-found] # there is no such package on disk

    calling.run()
