"""How values are pickled, on both sides: by value with cloudpickle, or by names alone."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, ClassVar

__all__ = ["Nowhere", "dump"]

_PROTOCOL = 5  # since 3.8: large bytes and buffers are written as they are, not copied first


class Nowhere:
    """A file for who wants to know only whether something can be pickled."""

    def write(self, data: Any) -> int:
        """Count, and forget."""
        return memoryview(data).nbytes


def dump(value: object, file: Any, *, by_value: bool) -> None:
    """Pickle into a file. Raises whatever pickling raises, the user's classes among it."""
    if by_value:
        _by_value()(file, protocol=_PROTOCOL).dump(value)
    else:
        import pickle

        pickle.dump(value, file, protocol=_PROTOCOL)


_pickler: Any = None


def _by_value() -> Any:
    """The pickler of cloudpickle, with the difference that a code object keeps its file's name.

    cloudpickle writes ``<dynamic-code>`` there, so that equal functions have equal pickles; then no traceback of a
    worker would show a line of the user's program.
    """
    global _pickler  # noqa: PLW0603 # made once: cloudpickle loads when it is needed
    if _pickler is None:
        from collections import ChainMap
        from types import CodeType

        import cloudpickle

        reduce = cloudpickle.Pickler.dispatch_table[CodeType]

        def reduce_code(code: CodeType) -> Any:
            kind, args, *rest = reduce(code)
            # The first of its texts; names and constants are in tuples of their own.
            place = next(index for index, one in enumerate(args) if isinstance(one, str))
            return (kind, (*args[:place], code.co_filename, *args[place + 1 :]), *rest)

        class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # not typed where it is not installed
            dispatch_table: ClassVar[Any] = ChainMap(
                {CodeType: reduce_code}, cloudpickle.Pickler.dispatch_table
            )

        _pickler = Pickler
    return _pickler
