"""``python -m phalanx.run …`` is ``phalanx run …``, as ``python -m torch.distributed.run`` is ``torchrun``."""

import sys

from phalanx.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
