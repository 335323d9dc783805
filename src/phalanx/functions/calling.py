"""The inside of a worker that is a function: reads the order, calls the function, leaves the answer.

What the function finds is the launching program's: its ``sys.path``, its ``sys.argv``, and a ``__main__`` without a
trace of ours (a bare one, as an interactive interpreter has; with functions that travel by name, the program's own
module, imported as the standard library's spawn does it). An exception is recorded by the boot file as a script's is,
and then goes into the answer. Imports nothing that the function does not need.
"""

from __future__ import annotations

import os
import sys

from .answers import AnswerFile
from .orders import read_part, read_terms

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

__all__ = ["run"]

_FOLDER = os.path.dirname(__file__)
_BOOT = "_phalanx_boot"  # the boot file's private package: what is in phalanx.errors, whatever the user's path has
# Names that the interpreter itself puts into a __main__ that comes from no file.
_BARE_MAIN = frozenset(
    {"__annotations__", "__builtins__", "__doc__", "__loader__", "__name__", "__package__", "__spec__"}
)


def run() -> None:
    """Be the worker that ``sys.argv`` names: order file, offset of the terms, local rank."""
    path, offset, local_rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with open(path, "rb") as file:
        terms = read_terms(file, offset)
        answer = AnswerFile(
            terms["answers"][local_rank],
            number=_number("PHALANX_ROUND"),
            rank=_number("RANK"),
            world_size=_number("WORLD_SIZE"),
        )
        pid = os.getpid()
        _tell_exceptions(answer, by_value=terms["by_value"])
        _check_version(terms)
        if _is_exchanged(terms):
            from .exchange import announce

            announce(_channel(), _number("RANK"))
        _bare_main()
        try:
            function, arguments, named = _read_call(file, terms, local_rank)
        except Exception as reason:
            raise RuntimeError(
                f"rank {_number('RANK')} cannot read the function that it is to call, or its arguments "
                f"({type(reason).__name__}: {reason}); what they need must be importable in the worker"
            ) from reason
    try:
        value = function(*arguments, **named)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
        value = None
    if os.getpid() == pid:  # else a forked child has come along here, whose value is nobody's
        del function, arguments, named
        _answer(answer, value, terms, local_rank)


def _answer(answer: AnswerFile, value: object, terms: dict[str, Any], local_rank: int) -> None:
    try:
        answer.returned(value, by_value=terms["by_value"])
    except Exception as reason:  # noqa: BLE001 # the user's classes
        from .unpicklable import culprit

        rank = _number("RANK")
        what = culprit(value, "result", reason, by_value=terms["by_value"])
        raise TypeError(
            f"the value that rank {rank} returned cannot be sent back: {what}; return plain data, or save it to a file"
        ) from None
    if _is_exchanged(terms):
        from .exchange import exchange

        others = exchange(
            value,
            _channel(),
            rank=_number("RANK"),
            world_size=_number("WORLD_SIZE"),
            own=range(
                _number("RANK") - local_rank, _number("RANK") - local_rank + _number("LOCAL_WORLD_SIZE")
            ),
            gathers=local_rank == 0,
            straggler_s=terms["exchange"]["straggler_s"],
            exit_barrier_s=terms["exchange"]["exit_barrier_s"],
        )
        if others:
            answer.adds(others)


def _is_exchanged(terms: dict[str, Any]) -> bool:
    """Whether there are ranks on other nodes, who want our value."""
    return terms["exchange"] is not None and _number("WORLD_SIZE") > _number("LOCAL_WORLD_SIZE")


def _channel() -> Any:
    from importlib import import_module

    return import_module(f"{_BOOT}.channel")


def _read_call(
    file: Any, terms: dict[str, Any], local_rank: int
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    preparation = terms["preparation"]
    if terms["by_value"]:
        sys.path[:] = preparation["sys_path"]
        sys.argv[:] = preparation["sys_argv"]
        _find_phalanx(terms["root"])
    else:
        sys.path[:] = preparation["sys_path"]
        _find_phalanx(terms["root"])
        _prepare({**preparation, "sys_path": list(sys.path)})
    if terms["sources"]:
        import linecache

        for name, text in terms["sources"].items():
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    function, arguments, named = read_part(file, terms["call"])
    own = terms["own_arguments"].get(str(local_rank))
    return function, arguments if own is None else read_part(file, own), named


def _prepare(preparation: dict[str, Any]) -> None:
    """Import the program's main module as the standard library's spawn does."""
    from multiprocessing import process, spawn

    # A program that starts workers while it is imported would do so in each of them without end.
    current: Any = process.current_process()
    current._inheriting = True
    try:
        spawn.prepare(preparation)
    finally:
        del current._inheriting


def _find_phalanx(root: str) -> None:
    """Where the launching program found phalanx is the last place to look, if no other on the path has it."""
    if not any(os.path.isdir(os.path.join(folder or os.curdir, "phalanx")) for folder in sys.path):
        sys.path.append(root)


def _check_version(terms: dict[str, Any]) -> None:
    ours = list(sys.version_info[:2])
    if terms["version"] != ours:
        theirs, mine = (".".join(map(str, one)) for one in (terms["version"], ours))
        raise RuntimeError(
            f"the workers run Python {mine} ({sys.executable}), and the function comes from a program that runs "
            f"Python {theirs}; functions can be called by the same version only"
        )


def _bare_main() -> None:
    namespace = vars(sys.modules["__main__"])
    for name in namespace.keys() - _BARE_MAIN:
        del namespace[name]
    namespace["__doc__"] = None


def _tell_exceptions(answer: AnswerFile, *, by_value: bool) -> None:
    """Have the boot file tell us of the exception that ends this worker, once it is recorded."""
    boot: Any = sys.modules[f"{_BOOT}._boot"]

    def tell(failure: BaseException) -> None:
        from .exceptions import packed

        answer.raised(packed(failure, by_value=by_value, users_part=users_part))

    boot.after_record.append(tell)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not ours."""
    ours = (_FOLDER, os.path.join(os.path.dirname(_FOLDER), "errors"))
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) in ours:
        trace = trace.tb_next
    return trace


def _number(variable: str) -> int:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return 0
