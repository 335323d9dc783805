"""``python -m phalanx.compat script.py args…`` or ``-m module args…``: the program, with torch's names from Phalanx.

The interpreter starts anew as the boot file of workers, which runs the program as ``python script.py`` would; nothing
after the program's name is looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys

USAGE = """\
usage: python -m phalanx.compat script.py [args...]
       python -m phalanx.compat -m module [args...]

Runs a Python program in which torch.distributed.elastic, torch.distributed.launcher, torch.distributed.run,
torch.distributed.launch and torch.distributed.argparse_util are Phalanx. PHALANX_COMPAT=1 in the environment does
the same for programs that are started in another way.
"""


def main() -> None:
    """Become the program; a user's mistake is one sentence and exit code 2."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return
    if not words or words == ["-m"]:
        sys.exit(_mistake("no program was given"))
    if words[0].startswith("-") and words[0] != "-m":
        sys.exit(
            _mistake(
                f"{words[0]!r} is no program; an option of the interpreter goes before -m phalanx.compat"
            )
        )
    from phalanx.compat import VARIABLE
    from phalanx.errors import boot_file

    os.environ[VARIABLE] = "1"
    # -u is in none of the interpreter's flags; its effect on stdout is.
    unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # as multiprocessing does
    os.execv(sys.executable, [sys.executable, *flags, *unbuffered, boot_file(), *words])


def _mistake(sentence: str) -> int:
    print(f"phalanx.compat: {sentence}\n\n{USAGE}", end="", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
