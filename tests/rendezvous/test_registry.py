"""Names of backends: those that are built in, those that a program registers, and those of installed packages."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names

from phalanx.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from phalanx.rendezvous.registry import (
    RendezvousHandlerRegistry,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)


class NamedHandler(RendezvousHandler):
    """A handler that does nothing but have a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_backend(self) -> str:
        return self._name

    def next_rendezvous(self) -> RendezvousInfo:
        raise NotImplementedError

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return ""

    def shutdown(self) -> bool:
        return True


def parameters(backend: str, endpoint: str = "localhost:29500", **options: Any) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, "job", 1, 1, **options)


def creator(params: RendezvousParameters) -> RendezvousHandler:
    return NamedHandler(params.backend)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], None]]:
    """Install a package: (module, its source, its entry points)."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def install(module: str, source: str, entry_points: str) -> None:
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(entry_points)

    yield install
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


PLUG_IN = """
import sys
LOADED = []
class Handler:
    def __init__(self, params): self.params = params
    def get_backend(self): return self.params.backend
def generator(*args):
    LOADED.append(args)
    return Handler
def broken(): raise OSError("no licence")
nothing = 7
"""


# Registering


def test_a_registered_creator_makes_the_handler() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", creator)
    assert registry.create_handler(parameters("mine")).get_backend() == "mine"


def test_registering_the_same_twice_is_harmless_and_another_is_refused() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", creator)
    registry.register("mine", creator)
    with pytest.raises(ValueError, match="'mine' is registered already"):
        registry.register("mine", lambda params: NamedHandler("mine"))
    with pytest.raises(ValueError, match="empty"):
        registry.register("", creator)


def test_a_handler_by_another_name_is_refused() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", lambda params: NamedHandler("yours"))
    with pytest.raises(RuntimeError, match=r"'mine' made a handler that calls itself 'yours'"):
        registry.create_handler(parameters("mine"))


@pytest.mark.torch
@shows_names("same", "elastic.rendezvous", "RendezvousHandlerRegistry", "RendezvousHandlerCreator")
def test_torchelastics_registry_refuses_the_same() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousHandlerRegistry as Theirs

    for registry in (Theirs(), RendezvousHandlerRegistry()):
        registry.register("mine", lambda params: NamedHandler("yours"))
        with pytest.raises(ValueError):  # noqa: PT011 # the sentences differ
            registry.register("mine", creator)
        with pytest.raises(ValueError):  # noqa: PT011
            registry.register("", creator)
        with pytest.raises(ValueError):  # noqa: PT011
            registry.create_handler(parameters("unknown"))
        with pytest.raises(RuntimeError):
            registry.create_handler(parameters("mine"))


@shows_names("same", "elastic.rendezvous", "rendezvous_handler_registry")
def test_the_names_of_torchrun_are_built_in() -> None:
    for backend in ("static", "c10d", "etcd", "etcd-v2"):
        assert callable(rendezvous_handler_registry.find_creator(backend))


@shows_names("same", "elastic.rendezvous.registry", "get_rendezvous_handler")
def test_the_static_handler_is_made_by_its_name() -> None:
    handler = get_rendezvous_handler(parameters("static", rank=0))
    assert (handler.get_backend(), handler.get_run_id()) == ("static", "job")
    assert handler.shutdown()


def test_a_handler_that_cannot_be_made_leaves_no_store_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    params = RendezvousParameters(
        "c10d", str(tmp_path / "store"), "job", 1, 1, store_type="file", join_timeout=-1
    )
    with pytest.raises(ValueError, match="timeout"):
        get_rendezvous_handler(params)
    for thread in set(threading.enumerate()) - before:  # which may be ending
        thread.join(60)
        assert not thread.is_alive()


# Plug-ins


@pytest.mark.compat(
    "extension entry points torchrun.handlers",
    "better",
    "a plug-in that does not load is an error for who names it, not a warning",
)
def test_a_plug_in_of_torchrun_is_called_without_arguments_and_gives_a_creator(install: Any) -> None:
    install("torchrunplugin", PLUG_IN, "[torchrun.handlers]\ntheirs = torchrunplugin:generator\n")
    registry = RendezvousHandlerRegistry()
    assert registry.create_handler(parameters("theirs")).get_backend() == "theirs"
    assert sys.modules["torchrunplugin"].LOADED == [()]
    registry.create_handler(parameters("theirs"))
    assert sys.modules["torchrunplugin"].LOADED == [()]


def test_a_plug_in_of_ours_is_a_creator(install: Any) -> None:
    install("ourplugin", PLUG_IN, "[phalanx.rendezvous_handlers]\nours = ourplugin:Handler\n")
    assert RendezvousHandlerRegistry().create_handler(parameters("ours")).get_backend() == "ours"


def test_a_plug_in_that_nobody_asks_for_is_not_loaded(install: Any) -> None:
    install("onlyone", PLUG_IN, "[torchrun.handlers]\none = onlyone:generator\n")
    install("another", "raise SystemExit('never')", "[torchrun.handlers]\nother = another:generator\n")
    RendezvousHandlerRegistry().create_handler(parameters("one"))
    assert "another" not in sys.modules


def test_a_built_in_name_is_never_a_plug_ins(install: Any) -> None:
    install("usurper", "raise SystemExit('never')", "[torchrun.handlers]\nstatic = usurper:generator\n")
    handler = get_rendezvous_handler(parameters("static", rank=0))
    assert type(handler).__name__ == "StaticTCPRendezvous"


def test_an_unknown_name_is_refused_with_those_that_are_known(install: Any) -> None:
    install("known", PLUG_IN, "[torchrun.handlers]\nkindred = known:generator\n")
    with pytest.raises(
        ValueError, match=r"no rendezvous backend is called 'kin' \(there are: .*kindred.*static"
    ):
        get_rendezvous_handler(parameters("kin"))
    assert "known" not in sys.modules


@pytest.mark.parametrize(
    ("attribute", "why"),
    [("broken", "OSError: no licence"), ("absent", "AttributeError"), ("nothing", "TypeError")],
)
def test_a_plug_in_that_cannot_be_used_is_refused_with_the_reason(
    install: Any, attribute: str, why: str
) -> None:
    install("faulty", PLUG_IN, f"[torchrun.handlers]\nfaulty = faulty:{attribute}\n")
    with pytest.raises(ValueError, match=f"'faulty' .*did not load: {why}"):
        RendezvousHandlerRegistry().create_handler(parameters("faulty"))


def test_a_plug_in_that_gives_no_creator_is_refused(install: Any) -> None:
    install("numeric", PLUG_IN, "[phalanx.rendezvous_handlers]\nnumeric = numeric:nothing\n")
    with pytest.raises(ValueError, match=r"'numeric' .*gave 7, which is no creator"):
        RendezvousHandlerRegistry().create_handler(parameters("numeric"))


def test_a_name_that_two_packages_offer_is_refused(install: Any) -> None:
    install("first", PLUG_IN, "[torchrun.handlers]\ndouble = first:generator\n")
    install("second", PLUG_IN, "[phalanx.rendezvous_handlers]\ndouble = second:Handler\n")
    with pytest.raises(
        ValueError, match=r"several installed packages .*'double' \(first:generator, second:Handler\)"
    ):
        RendezvousHandlerRegistry().create_handler(parameters("double"))
