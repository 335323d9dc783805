"""Runs the user's program as the interpreter itself would have, and records how it failed.

What the program sees is what ``python script.py`` or ``python -m module`` would have shown it: arguments, path,
``__main__``, tracebacks, exit codes. The ending is left to the interpreter: an exception goes on to it after it was
recorded, so that ``SystemExit``, ``KeyboardInterrupt``, threads and exit handlers keep their meaning. Two frames of
ours stay at the bottom of the live stack (``inspect.stack()``); tracebacks lose them. Nothing heavy is imported
before something has failed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    Program = tuple[Callable[..., object], Any, Any]  # a function and its two arguments

__all__ = ["STACKS_SIGNAL", "after_record", "run", "write_stacks_to"]

# What the agent sends to have the stacks of all threads written: the middle of the real-time signals, 34 to 64. Who
# takes one for a timer or a library counts up from the first, debuggers and virtual machines down from the last.
STACKS_SIGNAL = 49

# Who wants the exception itself, once it is recorded: a worker that is a function sends it to who launched it.
after_record: list[Callable[[BaseException], None]] = []

_ORDER = "PHALANX_BOOT"  # "<pid of the agent>:<crash file>", both may be empty
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SIGKILL = 9
_LOW_DESCRIPTORS = 100  # the script gets the same small numbers as without us

# Names that the interpreter itself puts into __main__ before a script starts.
_BARE_MAIN = frozenset(
    {
        "__annotations__",
        "__builtins__",
        "__cached__",
        "__doc__",
        "__file__",
        "__loader__",
        "__name__",
        "__package__",
        "__spec__",
    }
)


def run() -> None:
    """Run the program named in ``sys.argv[1:]`` as ``__main__``; ends as that program ends."""
    parent, _, crash_file = os.environ.pop(_ORDER, ":").partition(":")
    if parent:
        _die_with(int(parent))
    _watch_for_crashes(crash_file)
    arguments, namespace = _leave_no_trace()
    if "PHALANX_COMPAT" in os.environ:
        from ._torch_names import lend_if_asked_for

        lend_if_asked_for()
    capture = _Capture()
    try:
        as_module = arguments[0] == "-m"
        function, *operands = _module(arguments) if as_module else _file(arguments, namespace)
        capture.begin(keep_main=function is not exec)
        function(*operands)  # a built-in function or runpy's: there is no other frame of ours
    except SystemExit as leaving:
        capture.exits(leaving)
        raise
    except BaseException as failure:
        capture.fails(failure)
        raise
    capture.ends()


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when the agent dies, and die now if it is already gone."""
    if sys.platform == "linux":
        import ctypes

        # Should a sandbox refuse the call, the keeper still ends this process, only later.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), _SIGKILL)


def _watch_for_crashes(crash_file: str) -> None:
    """Let faulthandler write native crashes to ``crash_file``, or to stderr; never against the user's own choice.

    Stacks that the agent asks for go to that file, too. Both are settings of their own: a script that enables or
    disables faulthandler, or registers signals of its own with it, changes nothing in this one.
    """
    import faulthandler

    # -X faulthandler, PYTHONFAULTHANDLER, -X dev: its text is in the stderr tail
    is_ours = not faulthandler.is_enabled()
    try:
        if not crash_file:
            if is_ours:
                faulthandler.enable()
            return
        file = _open_out_of_the_way(crash_file)
        if is_ours:
            faulthandler.enable(file)
    except (OSError, RuntimeError, ValueError, AttributeError):
        return  # no stderr, no folder: a crash then shows as its signal alone
    write_stacks_to(file)


def write_stacks_to(file: int) -> None:
    """Have the stacks of all threads written to this descriptor whenever ``STACKS_SIGNAL`` comes.

    In C, without the interpreter: also by a thread that waits in the kernel, or holds the interpreter's lock for ever.
    """
    import faulthandler

    try:  # noqa: SIM105 # contextlib would be one more import at each start
        # Without chain the signal is held back in the thread that writes until it has written all: the agent sees that.
        faulthandler.register(STACKS_SIGNAL, file, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError, AttributeError):
        pass  # a system without such signals: whoever asks finds that they are not caught


def _open_out_of_the_way(path: str) -> int:
    import fcntl

    low = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _LOW_DESCRIPTORS)
    except OSError:  # the limit of open files is below that
        return low
    os.close(low)
    return high


def _leave_no_trace() -> tuple[list[str], dict[str, Any]]:
    """Take the boot file out of arguments, path and ``__main__``; returns the user's arguments and that namespace."""
    arguments = sys.argv[1:]
    if not arguments:
        raise SystemExit(f"{sys.argv[0]}: no program was given")
    del sys.orig_argv[-len(sys.argv)]
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of the boot file
    namespace = vars(sys.modules["__main__"])
    for name in namespace.keys() - _BARE_MAIN:
        del namespace[name]
    namespace["__doc__"] = None
    return arguments, namespace


def _module(arguments: list[str]) -> Program:
    """What ``python -m name args…`` does."""
    if len(arguments) < 2:
        raise SystemExit("Argument expected for the -m option")
    sys.argv = ["-m", *arguments[2:]]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    return _runpy(arguments[1], True)


def _runpy(name: str, alter_argv: bool) -> Program:
    """The interpreter's own way to run a module as ``__main__``, with the frames that it shows in tracebacks."""
    import runpy

    namespace = vars(sys.modules["__main__"])
    del namespace["__file__"], namespace["__cached__"]  # runpy sets them, and no sooner
    return runpy._run_module_as_main, name, alter_argv  # type: ignore[attr-defined] # as the interpreter does


def _file(arguments: list[str], namespace: dict[str, Any]) -> Program:
    """What ``python path args…`` does: a source file, a compiled file, or a folder or archive with ``__main__.py``."""
    sys.argv = arguments
    script = arguments[0]
    path = script if os.path.isabs(script) else f"{os.getcwd()}/{script}"
    if _has_importer(path):
        sys.path.insert(0, path)
        return _runpy("__main__", False)
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        where = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.orig_argv[0]}: can't open file {path!r}: {where}", file=sys.stderr)
        raise SystemExit(2) from None

    import _frozen_importlib_external as machinery

    namespace["__file__"] = path
    if path.endswith(".pyc") or content[:2] == machinery.MAGIC_NUMBER[:2]:
        namespace["__loader__"] = machinery.SourcelessFileLoader("__main__", path)
        return exec, _compiled(content, machinery.MAGIC_NUMBER), namespace
    namespace["__loader__"] = machinery.SourceFileLoader("__main__", path)
    return exec, compile(content, path, "exec", dont_inherit=True), namespace


def _has_importer(path: str) -> bool:
    """Whether ``path`` is a place to import from (the rule of ``PyImport_GetImporter``, its cache included)."""
    cache = sys.path_importer_cache
    if path not in cache:
        cache[path] = None
        for hook in sys.path_hooks:
            try:
                cache[path] = hook(path)
                break
            except ImportError:
                continue
    return cache[path] is not None


def _compiled(content: bytes, magic: bytes) -> Any:
    import marshal

    if content[:4] != magic:
        raise RuntimeError("Bad magic number in .pyc file")
    return marshal.loads(content[16:])


class _Capture:
    """Records the end of this process, and only of this one: a forked child that comes here is not the worker."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.has_begun = False
        self.keep_main = False
        self.handler: Any = None

    def begin(self, *, keep_main: bool) -> None:
        """Watch threads, and start the error handler that the agent named, if it named one.

        ``keep_main``: the program runs through runpy. At the end of a *file* the interpreter deletes ``__file__`` and
        ``__cached__`` from ``__main__``, before the last threads and exit handlers run; after runpy it does not. It
        takes us for a file, and ending by ``SystemExit`` avoids that.
        """
        self.has_begun = True
        self.keep_main = keep_main
        if os.environ.get("PHALANX_ERROR_HANDLER"):
            self.handler = _error_handler()
            self.handler.initialize()
        self._watch_threads()

    def exits(self, leaving: SystemExit) -> None:
        """Record ``sys.exit`` when it means a failure, and is the program's own."""
        if self.has_begun and leaving.code is not None and leaving.code != 0:
            self.record(leaving)

    def fails(self, failure: BaseException) -> None:
        """Record an uncaught exception, and have it printed without our frames."""
        self.record(failure)
        self.tell(failure)
        sys.excepthook = _Farewell(getattr(sys, "excepthook", None), keep_main=self.keep_main)

    def ends(self) -> None:
        """Come to the normal end."""
        if self.keep_main:
            raise SystemExit(0)

    def record(self, failure: BaseException) -> None:
        """Record through the error handler; whatever goes wrong in it is one line on stderr."""
        if os.getpid() != self.pid:
            return
        try:
            from ._handler import hand_over

            hand_over(failure, self.handler or _error_handler())
        except BaseException as second:  # noqa: BLE001 # a border: the script's failure is the one that counts
            _complain(second)

    def tell(self, failure: BaseException) -> None:
        """Hand the exception to who asked for it; what goes wrong there is one line on stderr."""
        if os.getpid() != self.pid:
            return
        try:
            for hand_to in after_record:
                hand_to(failure)
        except BaseException as second:  # noqa: BLE001 # as in record
            _complain(second)

    def _watch_threads(self) -> None:
        # Not threading.excepthook itself: a script that sets its own there, for instance to end the process, would
        # take ours away, and one that compares it with threading.__excepthook__ would see a difference.
        import threading

        make = getattr(threading, "_make_invoke_excepthook", None)
        if make is None:  # an interpreter that we do not know
            before = threading.excepthook

            def excepthook(args: threading.ExceptHookArgs) -> None:
                self._thread_fails(args.exc_value)
                before(args)

            threading.excepthook = excepthook
            return

        def make_recording() -> Callable[[Any], None]:
            invoke = make()

            def invoke_excepthook(thread: Any) -> None:
                self._thread_fails(sys.exc_info()[1])
                invoke(thread)

            return invoke_excepthook

        threading._make_invoke_excepthook = make_recording  # type: ignore[attr-defined]

    def _thread_fails(self, failure: BaseException | None) -> None:
        if failure is not None and not isinstance(failure, SystemExit):  # a thread may leave by SystemExit
            self.record(failure)


class _Farewell:
    """The last ``sys.excepthook``: the interpreter calls it once; it strips our frames and calls the script's hook."""

    def __init__(self, hook: Callable[..., object] | None, *, keep_main: bool) -> None:
        self.hook = hook
        self.keep_main = keep_main

    def __call__(
        self, kind: type[BaseException], failure: BaseException, trace: TracebackType | None
    ) -> None:
        trace = _without_our_frames(trace)
        failure.__traceback__ = sys.last_traceback = trace
        try:
            if self.hook is None:
                del sys.excepthook
                print("sys.excepthook is missing", file=sys.stderr)
                sys.__excepthook__(kind, failure, trace)
            else:
                sys.excepthook = self.hook
                self.hook(kind, failure, trace)
        except SystemExit:
            raise
        except BaseException as second:  # noqa: BLE001 # the interpreter's own rule
            # As the interpreter says it; it would show our frame here.
            second.__traceback__ = _without_our_frames(second.__traceback__)
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(second), second, second.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            sys.__excepthook__(kind, failure, trace)
        if self.keep_main and kind is not KeyboardInterrupt:
            raise SystemExit(1)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    here = os.path.dirname(__file__)
    ours = (here, os.path.join(os.path.dirname(here), "functions"))
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) in ours:
        trace = trace.tb_next
    decorator = os.path.join(here, "_record.py")
    frame = trace
    while frame is not None:  # @record's frame stands between a function and its caller
        below = frame.tb_next
        while below is not None and below.tb_next and below.tb_frame.f_code.co_filename == decorator:
            below = below.tb_next
        if below is not frame.tb_next:
            frame.tb_next = below
        frame = below
    return trace


def _error_handler() -> Any:
    """The script's own ``phalanx.errors`` if it uses one (it may have set a handler there), else this copy's."""
    errors = sys.modules.get("phalanx.errors")
    try:
        return errors.get_error_handler()  # type: ignore[union-attr]
    except AttributeError:  # not imported, or another package by that name
        from ._handler import get_error_handler

        return get_error_handler()


def _complain(problem: BaseException) -> None:
    try:  # noqa: SIM105 # contextlib would be one more import at the moment of failure
        print(f"phalanx: could not record the exception: {problem!r}", file=sys.stderr)
    except BaseException:  # noqa: BLE001
        pass  # there is nobody left to tell
