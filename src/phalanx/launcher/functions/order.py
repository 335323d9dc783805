"""A call as an order for workers: how function and arguments are pickled, once for all of them.

With cloudpickle they travel by value: lambdas, closures, what a notebook or ``__main__`` defines. Without it
they travel as the standard library's spawn has it, by name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import IO, Any

from phalanx.functions.orders import terms_of
from phalanx.functions.pickling import Nowhere, dump
from phalanx.functions.unpicklable import culprit

__all__ = ["check_kind", "name_of", "write_order"]

_SOURCES_MAX = 512 * 1024  # characters of sources that are on no disk; they only make tracebacks nicer
CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200  # as inspect's, which takes long to import
INSTALL = "pip install 'phalanx-launcher[func]'"


def write_order(
    fd: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    args_by_local_rank: Mapping[int, tuple[Any, ...]],
    answers: list[str],
    exchange: dict[str, Any] | None,
) -> int:
    """Write the order into an empty file; returns the offset of its terms, which each worker is told.

    Raises ``TypeError``, with a sentence, for what cannot be sent, ``RuntimeError`` while a worker imports the program.
    """
    check_kind(function)
    by_value = _has_cloudpickle()
    preparation = _preparation(by_value=by_value)
    if not by_value:
        _check_name(function, preparation)
    with open(fd, "wb", closefd=False) as file:
        call = _write(file, (function, tuple(args), dict(kwargs)), function, by_value=by_value)
        own = {
            local_rank: _write(file, tuple(one), function, by_value=by_value)
            for local_rank, one in args_by_local_rank.items()
        }
        if not by_value:
            _check_guard(preparation)
        offset = file.tell()
        file.write(
            terms_of(
                version=list(sys.version_info[:2]),
                by_value=by_value,
                answers=answers,
                call=call,
                own_arguments=own,
                preparation=preparation,
                sources=_sources(),
                root=os.path.dirname(
                    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
                ),
                exchange=exchange,
            )
        )
    return offset


def name_of(function: Callable[..., Any]) -> str:
    """What people call the function, a lambda with its place; of a ``functools.partial`` the function in it.

    >>> name_of(len), name_of(eval("lambda: 1"))
    ('len', '<lambda> at <string>:1')
    """
    function = _inner(function)
    name = str(getattr(function, "__qualname__", None) or type(function).__qualname__)
    name = name.rpartition("<locals>.")[2]
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and code is not None:
        return f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return name


def check_kind(function: Callable[..., Any]) -> None:
    """Raise ``TypeError`` for a function whose call runs nothing of it: an async one, or a generator."""
    inner = _inner(function)
    called = inner if hasattr(inner, "__code__") else type(inner).__call__
    flags = getattr(getattr(called, "__code__", None), "co_flags", 0)
    if flags & CO_COROUTINE:
        raise TypeError(
            f"{name_of(function)} is an async function, and a worker only calls it; launch a function that calls "
            f"asyncio.run({name_of(function)}(…))"
        )
    if flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        raise TypeError(
            f"{name_of(function)} is a generator function, and a worker only calls it; launch a function that goes "
            "through what it yields, and returns a list or the like"
        )


def _inner(function: Any) -> Any:
    while not hasattr(function, "__qualname__") and hasattr(function, "func"):
        function = function.func
    return function


def _write(
    file: IO[bytes], value: tuple[Any, ...], function: Callable[..., Any], *, by_value: bool
) -> tuple[int, int]:
    start = file.tell()
    try:
        dump(value, file, by_value=by_value)
    except Exception as reason:
        raise TypeError(_refusal(value, function, by_value=by_value)) from reason
    return start, file.tell() - start


def _refusal(value: tuple[Any, ...], function: Callable[..., Any], *, by_value: bool) -> str:
    """Why the call cannot be sent: the function itself, or which argument and what in it."""
    named: list[tuple[Any, str]] = []
    short = name_of(function).partition(" at ")[0]  # the place of what is wrong comes behind it
    if value and value[0] is function:
        named = [(function, f"the function {name_of(function)}")]
        named += [(one, f"argument {number} of {short}") for number, one in enumerate(value[1])]
        named += [(one, f"argument {name!r} of {short}") for name, one in value[2].items()]
    else:
        named = [(one, f"argument {number} of {short}") for number, one in enumerate(value)]
    what = f"{name_of(function)} and its arguments"
    for one, name in named:
        try:
            dump(one, Nowhere(), by_value=by_value)
        except Exception as its_reason:  # noqa: BLE001 # the user's classes
            what = culprit(one, name, its_reason, by_value=by_value)
            break
    if by_value:
        return f"cannot be sent to the workers: {what}; make it in the function instead"
    return f"cannot be sent to the workers by its name: {what}; cloudpickle sends it by value: {INSTALL}"


def _has_cloudpickle() -> bool:
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        return False
    return True


def _preparation(*, by_value: bool) -> dict[str, Any]:
    """What a worker needs to find the same modules: the standard library's words for it."""
    if by_value:
        path = [str(one) or os.getcwd() for one in sys.path]
        return {"sys_path": path, "sys_argv": [str(one) for one in getattr(sys, "argv", [])]}
    from multiprocessing import spawn

    try:
        known: dict[str, Any] = spawn.get_preparation_data("phalanx")
    except RuntimeError:
        raise RuntimeError(
            "workers were asked for while a worker imports this program to find the function; put the call under "
            f"if __name__ == '__main__': (or install cloudpickle, which needs no import: {INSTALL})"
        ) from None
    wanted = ("sys_path", "sys_argv", "orig_dir", "init_main_from_name", "init_main_from_path")
    return {name: known[name] for name in wanted if known.get(name) is not None}


def _check_name(function: Callable[..., Any], preparation: Mapping[str, Any]) -> None:
    """A worker finds ``__main__`` again only if that is a file or a module."""
    is_from_main = getattr(_inner(function), "__module__", None) in ("__main__", "__mp_main__")
    path = preparation.get("init_main_from_path", "")
    is_nowhere = not path and "init_main_from_name" not in preparation
    if is_from_main and (is_nowhere or (path and not os.path.exists(path))):  # from a pipe it is "<stdin>"
        raise TypeError(
            f"cannot be sent to the workers by its name: the function {name_of(function)} is defined where no "
            f"worker can import it; cloudpickle sends it by value: {INSTALL}"
        )


def _check_guard(preparation: Mapping[str, Any]) -> None:
    """A worker that imports the main program must not come to the call that is under way.

    Raises ``RuntimeError`` when it would, as far as can be seen: any condition with ``__name__`` in it is a guard.
    """
    if "init_main_from_name" in preparation:
        name = str(preparation["init_main_from_name"])
        if name == "__main__" or name.endswith(".__main__"):  # it is not imported again
            return
    elif "init_main_from_path" not in preparation:
        return
    main = vars(sys.modules["__main__"])
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_globals is main and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is not None and not _is_guarded(frame.f_code.co_filename, frame.f_lineno):
        raise RuntimeError(
            "without cloudpickle each worker imports this program to find the function, and would come to this call "
            f"again; put the call under if __name__ == '__main__': (or install cloudpickle: {INSTALL})"
        )


def _is_guarded(path: str, line: int) -> bool:
    import ast

    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return True  # the worker says it, if it is not
    conditions = [one for one in ast.walk(tree) if isinstance(one, ast.If | ast.Match) and one.lineno <= line]
    return any(
        isinstance(name, ast.Name) and name.id == "__name__"
        for one in conditions
        for name in ast.walk(one.test if isinstance(one, ast.If) else one.subject)
    )


def _sources() -> dict[str, str]:
    """Texts of cells and the like, as tracebacks know them."""
    linecache = sys.modules.get("linecache")
    found: dict[str, str] = {}
    room = _SOURCES_MAX
    for name, entry in reversed(list(getattr(linecache, "cache", {}).items())):
        if len(entry) == 4 and entry[1] is None and not os.path.exists(name):
            text = "".join(entry[2])
            room -= len(text)
            if room < 0:
                break
            found[name] = text
    return found
