"""What a program sees of its process is the same through the boot file as without it, field by field."""

from __future__ import annotations

import json
import os
import py_compile
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

PROBE = '''
"""The probe."""
from __future__ import annotations
import atexit, gc, inspect, json, os, pickle, signal, sys, threading
count: int = 3

class Batch:
    def __init__(self): self.size = 17

def look():
    main = sys.modules["__main__"]
    loader, spec = main.__loader__, main.__spec__
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "names in order": [name for name in vars(main) if name not in ("os",)],
        "globals are those of __main__": globals() is vars(main),
        "name": __name__, "file": main.__file__, "doc": main.__doc__, "cached": main.__cached__,
        "package": main.__package__, "annotations": main.__annotations__, "builtins": repr(main.__builtins__),
        "loader": [type(loader).__name__, getattr(loader, "name", None), getattr(loader, "path", None)],
        "spec": spec and [spec.name, spec.origin, spec.cached, spec.parent, type(spec.loader).__name__],
        "source": inspect.getsource(look).count("inspect"),
        "module of a class": [Batch.__module__, Batch.__qualname__, inspect.getfile(Batch)],
        "pickled": pickle.loads(pickle.dumps(Batch())).size,
        "pickled form": pickle.dumps(Batch(), 0).decode(),
        "environment": sorted(set(os.environ) - {"TORCHELASTIC_ERROR_FILE"}),
        "hooks": [sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__],
        "importers": {
            path: repr(finder)[:9]
            for path, finder in sys.path_importer_cache.items()
            if "work/" in path + "/" and "phalanx" not in path
        },
        "next descriptor": descriptor,
        "signals": {number: repr(signal.getsignal(number)) for number in (2, 11, 15, 25)},
        "main thread": [threading.current_thread().name, threading.active_count()],
        "collector": [gc.isenabled(), gc.get_threshold()],
        "code": [look.__code__.co_filename, look.__code__.co_flags],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile()],
        "in an exit handler": None,
    }
seen = look()
def at_exit():
    seen["in an exit handler"] = [name in globals() for name in ("__file__", "__cached__", "__spec__", "look")]
    print(json.dumps(seen))
atexit.register(at_exit)
'''


def _file(bench: Any) -> list[str]:
    return [str(bench.write(PROBE))]


def _relative(bench: Any) -> list[str]:
    bench.write(PROBE)
    return ["train.py"]


def _dotted(bench: Any) -> list[str]:
    bench.write(PROBE)
    return ["./train.py"]


def _upwards(bench: Any) -> list[str]:
    bench.write(PROBE)
    return [f"../{bench.folder.name}/./train.py"]


def _below(bench: Any) -> list[str]:
    bench.write(PROBE, "jobs/big one/train.py")
    return ["jobs/big one/train.py"]


def _link(bench: Any) -> list[str]:
    bench.write(PROBE, "jobs/train.py")
    os.symlink("jobs/train.py", bench.folder / "link.py")
    return ["link.py"]


def _link_to_a_link_in_a_linked_folder(bench: Any) -> list[str]:
    bench.write(PROBE, "jobs/deep/train.py")
    os.symlink("jobs/deep", bench.folder / "short")
    os.symlink("train.py", bench.folder / "jobs/deep/again.py")
    return ["short/again.py"]


def _no_suffix(bench: Any) -> list[str]:
    bench.write(PROBE, "train")
    return ["train"]


def _module(bench: Any) -> list[str]:
    bench.write(PROBE)
    return ["-m", "train"]


def _package(bench: Any) -> list[str]:
    bench.write("", "pkg/__init__.py")
    bench.write(PROBE, "pkg/__main__.py")
    return ["-m", "pkg"]


def _module_in_package(bench: Any) -> list[str]:
    bench.write("import sys; sys.looked_at_argv = list(sys.argv)", "pkg/__init__.py")
    bench.write(PROBE, "pkg/sub.py")
    return ["-m", "pkg.sub"]


def _folder(bench: Any) -> list[str]:
    bench.write(PROBE, "app/__main__.py")
    return ["app"]


def _archive(bench: Any) -> list[str]:
    with zipfile.ZipFile(bench.folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", PROBE)
    return ["app.zip"]


def _compiled(bench: Any) -> list[str]:
    py_compile.compile(str(bench.write(PROBE)), cfile=str(bench.folder / "built.pyc"))
    return ["built.pyc"]


def _compiled_without_suffix(bench: Any) -> list[str]:
    py_compile.compile(str(bench.write(PROBE)), cfile=str(bench.folder / "built"))
    return ["built"]


LAYOUTS = [
    *(_file, _relative, _dotted, _upwards, _below, _link, _link_to_a_link_in_a_linked_folder, _no_suffix),
    *(_module, _package, _module_in_package, _folder, _archive, _compiled, _compiled_without_suffix),
]
ARGUMENTS = ["--lr=0.1", "-m", "--", "-u", "", "ü", "a b"]


def _assert_alike(bench: Any, program: list[str], flags: tuple[str, ...] = (), **more: str) -> dict[str, Any]:
    plain = bench.plainly(*program, *ARGUMENTS, flags=flags, **more)
    booted = bench.booted(*program, *ARGUMENTS, flags=flags, **more)
    assert (plain.code, plain.stderr) == (0, ""), "the probe itself is broken"
    assert (booted.code, booted.stderr) == (0, "")
    expected, found = json.loads(plain.stdout), json.loads(booted.stdout)
    assert found == expected
    return dict(found)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__.strip("_"))
def test_every_field_is_as_without_the_boot_file(bench: Any, layout: Callable[[Any], list[str]]) -> None:
    seen = _assert_alike(bench, layout(bench))
    assert seen["argv"][1:] == ARGUMENTS, "the comparison looked at the wrong thing"
    assert not any(name.startswith("PHALANX_") for name in seen["environment"])


@pytest.mark.parametrize("layout", [_relative, _folder], ids=lambda layout: layout.__name__.strip("_"))
@pytest.mark.parametrize("flag", ["-P", "-I", "-O", "-E", "-B", "-Xutf8=1", "-Werror"])
def test_flags_of_the_interpreter_keep_their_meaning(bench: Any, layout: Any, flag: str) -> None:
    _assert_alike(bench, layout(bench), (flag,))


@pytest.mark.parametrize("layout", [_relative, _module], ids=lambda layout: layout.__name__.strip("_"))
def test_the_interpreters_variables_keep_their_meaning(bench: Any, layout: Any) -> None:
    elsewhere = bench.folder / "elsewhere"
    bench.write(PROBE, "elsewhere/train.py")
    more = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(elsewhere), "PYTHONWARNINGS": "error"}
    seen = _assert_alike(bench, layout(bench), (), **more)
    assert str(bench.folder) not in seen["path"]


def test_a_script_may_have_a_phalanx_of_its_own(bench: Any) -> None:
    bench.write("print('mine')", "phalanx.py")
    program = str(
        bench.write("import phalanx, sys\nprint([m for m in sys.modules if m.startswith('phalanx')])")
    )
    assert bench.booted(program) == bench.plainly(program)


def test_nothing_of_the_boot_file_reaches_a_child_process(bench: Any) -> None:
    source = """
import os, subprocess, sys
ask = "import os, sys; print(sorted(os.environ), sys.path, sys.orig_argv, [m for m in sys.modules if 'phalanx' in m])"
print(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout)
"""
    program = str(bench.write(source))
    found = bench.booted(program)
    expected = bench.plainly(program, TORCHELASTIC_ERROR_FILE="x")
    assert (found.code, found.stderr) == (0, "")
    assert found == expected


def test_little_is_imported_before_the_script(bench: Any) -> None:
    """A deny-list rather than a time: what a script imports itself costs nothing extra, what we import does."""
    program = str(bench.write("import sys; print(*sys.modules)"))
    flags = ("-S", "-E")
    before = set(bench.plainly(program, flags=flags).stdout.split())
    added = set(bench.booted(program, flags=flags).stdout.split()) - before
    heavy = {"typing", "traceback", "json", "socket", "inspect", "dataclasses", "logging", "re", "contextlib"}
    assert not added & (
        heavy | {"subprocess", "asyncio", "multiprocessing", "importlib.metadata", "tokenize"}
    )
    ours = {name for name in added if "phalanx" in name}
    assert ours == {"_phalanx_boot", "_phalanx_boot._boot"}
