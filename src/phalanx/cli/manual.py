"""What the command prints about itself: pages of ``--help``, the version. Imported only when asked for.

``python -m phalanx.cli.manual`` prints the tables of ``docs/command-line.md``; a test compares them with the page.
"""

from __future__ import annotations

import argparse

from phalanx.cli.options import GROUPS, HELP, OPTIONS, VERSION, Option, section_of

__all__ = ["phalanx_page", "reference", "run_page", "version"]

_OURS = " (not in torchrun)"
_EXIT_CODES = """\
exit codes: 0 success; otherwise the first failing rank's own code, 128+N if it
died of signal N or the launcher was asked to stop by signal N; 2 a mistake on
the command line or in the file; 70 a bug of ours, with a record of it; 75 no
round could be formed, or the store is lost.
"""


_ABOUT = """\
Start copies of a program on this machine, and with several nodes on others, as
one job, and keep the job going when workers or machines fail. Flags may also
be written with _ for -, be shortened while they stay unique, be given as
PET_<FLAG> in the environment, or in a file. What follows SCRIPT belongs to the
script.

  phalanx run train.py --lr 0.1                     one worker
  phalanx run --nproc-per-node gpu train.py         one for each GPU
  phalanx run --max-restarts 3 --tee 3 train.py     restarts, and logs
  phalanx run -m package.train                      a module
  phalanx run --no-python ./train.sh                any other program
  phalanx run --nnodes 2:4 --rdzv-backend c10d \\
      --rdzv-endpoint node0:29400 train.py          the same on each node
  phalanx run --config job.yaml --dry-run           what a file would start
"""
_WIDTH = 80


def version() -> str:
    """Return the line of ``--version``."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return f"phalanx {installed_version('phalanx-launcher')}\n"
    except PackageNotFoundError:  # run from a source tree
        return "phalanx (not installed)\n"


def phalanx_page() -> str:
    """Return the page of ``phalanx --help``."""
    return """\
usage: phalanx run [flags] SCRIPT [the script's own arguments]
       phalanx chaos kill|stop|freeze|cut|slow [flags] [-- COMMAND ...]
       phalanx checkpoints FOLDER [--verify] [--json]
       phalanx completion bash|zsh|fish
       phalanx config-schema
       phalanx --version

Starts n copies of a program, watches them, and keeps the job going when they
fail.

commands:
  run            start a job, or this machine's part of one; phalanx run --help
                 lists its flags
  chaos          make faults on purpose in a job on this machine, to see what it
                 does about them; phalanx chaos --help
  checkpoints    list the steps in a folder of checkpoints, and what is bad
  completion     print a script that completes flags in your shell:
                 eval "$(phalanx completion bash)"
  config-schema  print the JSON Schema of the file of phalanx run --config

examples:
  phalanx run --nproc-per-node gpu train.py --lr 0.1
  phalanx run --nnodes 2:4 --max-restarts 3 --rdzv-backend c10d \\
      --rdzv-endpoint node0:29400 train.py
  phalanx run --config job.yaml --print-config
"""


def run_page() -> str:
    """Return the page of ``phalanx run --help``: the option table in the layout of argparse."""
    page = argparse.ArgumentParser(
        prog="phalanx run",
        usage="phalanx run [flags] SCRIPT [the script's own arguments]",
        description=_ABOUT,
        epilog=_EXIT_CODES,
        add_help=False,
        # Eighty columns everywhere: lines across a wide terminal are hard to read.
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_WIDTH),
    )
    for title in GROUPS:
        group = page.add_argument_group(title)
        for option in OPTIONS:
            if option.group == title and option.later is None:
                _describe(group, option)
    about = page.add_argument_group("about")
    for option in (HELP, VERSION):
        _describe(about, option)
    return page.format_help()


def _describe(group: argparse._ArgumentGroup, option: Option) -> None:
    flags = [f"-{option.short}"] if option.short else []
    shown = (
        f"{option.help} (default: {option.default})"
        if option.default and not option.is_switch
        else option.help
    )
    more: dict[str, str] = {"action": "store_true"} if option.is_switch else {"metavar": option.metavar or ""}
    group.add_argument(*flags, option.flag, help=shown.replace("%", "%%"), **more)  # type: ignore[arg-type]


def reference() -> str:
    """Return the option table as Markdown, one table for each group, without options of later versions."""
    tables = []
    for title in GROUPS:
        rows = [_row(option) for option in OPTIONS if option.group == title and option.later is None]
        tables.append(
            "\n".join(
                [
                    f"### {title}",
                    "",
                    "| flag | variables | in a file | default | |",
                    "|---|---|---|---|---|",
                    *rows,
                ]
            )
        )
    return "\n\n".join([*tables, _keys()]) + "\n"


def _keys() -> str:
    from phalanx.launcher.rendezvous.conf import SETTINGS

    rows = [
        f"| `{one.key}` | {one.of} | {one.default} | {one.help}{'' if one.torchrun else _OURS} |"
        for one in SETTINGS
    ]
    return "\n".join(
        ["### keys of --rdzv-conf", "", "| key | backends | default | |", "|---|---|---|---|", *rows]
    )


def _row(option: Option) -> str:
    flag = option.flag if option.is_switch else f"{option.flag} {option.metavar}"
    flags = ", ".join(f"`{one}`" for one in ([f"-{option.short}"] if option.short else []) + [flag])
    variables = ", ".join(f"`{variable}`" for variable in option.variables)
    default = f"`{option.default}`" if option.default and not option.is_switch else ""
    mark = "" if option.torchrun else _OURS
    section = section_of(option)
    key = f"`{section}.{option.dest}`" if section else ""
    cells = (flags, variables, key, default, option.help + mark)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(reference(), end="")
