"""``python -m phalanx …`` is the ``phalanx`` command."""

from phalanx.cli import command

if __name__ == "__main__":
    command()
