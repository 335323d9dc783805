"""The configuration file of ``phalanx run --config``: a YAML document that says what flags say.

Loads only when a file was named. ``document`` reads YAML and knows lines; ``expansion`` replaces ``${VAR}``; ``shapes``
is what a value of each option may look like; ``sections`` and ``older`` read the two kinds of file; ``schema`` prints
what is allowed as JSON Schema. Options themselves are described in the option table alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from phalanx.cli.config import older, sections
from phalanx.cli.config.document import Mistakes, read_document
from phalanx.cli.config.reading import FileReader
from phalanx.cli.mistakes import UsageError
from phalanx.cli.sources import JobFile, PartlyRead

__all__ = ["read_job_file"]


def read_job_file(
    path: str, environ: Mapping[str, str], *, overruled: Collection[str], names_program: bool = True
) -> JobFile:
    """Read the file. Raises ``PartlyRead`` with all that is wrong with it, a line for each mistake, and what is right;
    ``UsageError`` if it is no YAML.

    ``overruled`` are options by their ``dest`` that have a stronger source, and with ``names_program=False`` the
    program comes from elsewhere, so that the file's is not looked at.
    """
    mistakes = Mistakes(path)
    root = read_document(path, mistakes)
    reader = FileReader(mistakes, environ, overruled=overruled, names_program=names_program)
    kind = older if older.is_older(root) else sections
    kind.read(root, reader)
    file = JobFile(path, reader.texts, reader.program, reader.env, frozenset(reader.unread))
    try:
        mistakes.raise_if_any()
    except UsageError as found:
        raise PartlyRead(str(found), file) from None
    return file
