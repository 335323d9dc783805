"""``python -m phalanx.run …`` is ``phalanx run …``, as ``python -m torch.distributed.run`` is ``torchrun``.

As a module it has the names of ``torch.distributed.run``; they load when they are used.
"""

from __future__ import annotations

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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from phalanx.cli import torchrun

    found: object = getattr(torchrun, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if __name__ == "__main__":
    import sys

    from phalanx.cli import command

    command(["run", *sys.argv[1:]])
