"""``python -m phalanx.run …`` is ``phalanx run …``, as ``python -m torch.distributed.run`` is ``torchrun``."""

import sys

from phalanx.cli import command

if __name__ == "__main__":
    command(["run", *sys.argv[1:]])
