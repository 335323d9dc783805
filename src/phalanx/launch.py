"""``python -m phalanx.launch`` is the deprecated launcher; ``import phalanx.launch`` gives the function ``launch``.

Both have the name that people know: torch's deprecated module, and the function that is this package's first one.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from phalanx.cli import command

    command(["torch.distributed.launch", *sys.argv[1:]])
else:
    # An import binds the name in the package to whatever stands in sys.modules then. The module would take the place of
    # phalanx.launch(fn) as soon as anybody imports it; so the function takes that of the module.
    import phalanx

    sys.modules[__name__] = phalanx.launch  # type: ignore[assignment] # Python allows any object there
