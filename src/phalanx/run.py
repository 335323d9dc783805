"""``python -m phalanx.run …`` is ``phalanx run …``, as ``python -m torch.distributed.run`` is ``torchrun``.

As a module it has the names of ``torch.distributed.run``; they load when they are used.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.cli.torchrun import (
        config_from_args,
        determine_local_world_size,
        get_args_parser,
        get_rdzv_endpoint,
        get_use_env,
        main,
        parse_args,
        parse_min_max_nnodes,
        run,
        run_script_path,
    )

__all__ = [
    "config_from_args",
    "determine_local_world_size",
    "get_args_parser",
    "get_rdzv_endpoint",
    "get_use_env",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "run",
    "run_script_path",
]

__getattr__, __dir__, _ = lazy.names(__name__, {"phalanx.cli.torchrun": " ".join(__all__)})


if __name__ == "__main__":
    import sys

    from phalanx.cli import command

    command(["run", *sys.argv[1:]])
