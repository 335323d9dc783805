"""torch's names resolve to Phalanx: before torch is imported, after it, and back again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.torch

Python = Callable[..., str]


def test_before_torch_is_imported_its_modules_are_ours_and_torch_stays_torch(python: Python) -> None:
    said = python(
        """
        import sys
        import phalanx.compat

        phalanx.compat.install()
        assert not [name for name in sys.modules if name.partition(".")[0] == "torch"], "install() imports no torch"

        from torch.distributed.elastic.multiprocessing.errors import record
        import torch.distributed.run as run
        import torch.distributed.launcher
        import torch

        assert record.__module__ == "phalanx.errors._record"
        assert run.get_args_parser.__module__.startswith("phalanx.")
        assert torch.distributed.launcher.api.LaunchConfig.__module__.startswith("phalanx.")
        assert torch.distributed.elastic.multiprocessing.errors.record is record
        assert torch.ones(2).sum().item() == 2
        assert torch.distributed.is_torchelastic_launched() is False
        ours = [name for name, module in sys.modules.items() if name.startswith("torch.distributed.elastic")
                and type(module).__module__ != "phalanx.compat.alias"]
        print(ours)
        """
    )
    assert said == "[]\n"


def test_the_package_has_it_without_an_import_of_its_own(python: Python) -> None:
    said = python(
        """
        import sys
        import phalanx
        print(sorted(name for name in sys.modules if name.startswith("phalanx")))
        phalanx.compat.install()
        print(phalanx.compat.is_installed(), "compat" in dir(phalanx))
        """
    )
    assert said == "['phalanx', 'phalanx.lazy']\nTrue True\n"


def test_after_torchelastic_was_imported_its_places_are_taken_and_given_back(python: Python) -> None:
    python(
        """
        import sys
        import torch
        import torch.distributed.run, torch.distributed.launch
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent as before
        from torch.distributed.elastic import events

        names = [name for name in sys.modules if name.startswith("torch.distributed.elastic")]
        assert len(names) > 30
        kept = {name: sys.modules[name] for name in names}

        import phalanx.compat
        phalanx.compat.install()
        for name in names:
            assert type(sys.modules[name]).__module__ == "phalanx.compat.alias", name
            parent, _, leaf = name.rpartition(".")
            assert getattr(sys.modules[parent], leaf) is sys.modules[name], name
        assert torch.distributed.run.get_args_parser.__module__.startswith("phalanx.")
        assert torch.distributed.elastic.multiprocessing.Std.__module__.startswith("phalanx.")
        assert events.api.__spec__.origin.endswith("events/api.py"), "what was bound before stays as it was"
        phalanx.compat.install()

        phalanx.compat.uninstall()
        for name in names:
            assert sys.modules[name] is kept[name], name
            parent, _, leaf = name.rpartition(".")
            assert getattr(sys.modules[parent], leaf) is kept[name], name
        assert torch.distributed.run.get_args_parser.__module__ == "torch.distributed.run"
        """
    )


def test_modules_can_be_reloaded_pickled_by_name_inspected_and_starred(python: Python) -> None:
    python(
        """
        import importlib, inspect, pickle, pkgutil
        from torch.distributed.elastic.multiprocessing import api
        import torch.distributed.elastic.multiprocessing as package

        std = api.Std
        assert importlib.reload(api) is api and api.Std is std
        assert pickle.loads(pickle.dumps(std.OUT)) is std.OUT
        by_torchs_name = pickle.dumps(std.OUT, 0).replace(b"phalanx.multiprocessing.std", api.__name__.encode())
        assert pickle.loads(by_torchs_name) is std.OUT
        assert pickle.loads(pickle.dumps(api)) is api
        assert "class Std" in inspect.getsource(std)
        assert inspect.getsource(api) and inspect.getmodule(std).__name__ == "phalanx.multiprocessing.std"
        assert "Std" in dir(api) and "Std" in api.__all__
        stars = {}
        exec("from torch.distributed.elastic.multiprocessing import *", stars)
        assert stars["Std"] is std and "start_processes" in stars
        assert "torch.distributed.elastic.multiprocessing.errors" in [
            module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        ]
        """,
        compat=True,
    )


def test_a_package_has_the_modules_below_it_as_torchs_do_and_what_is_not_offered_says_why(
    python: Python,
) -> None:
    said = python(
        """
        import torch.distributed.elastic.multiprocessing as mp
        import torch.distributed.elastic.rendezvous as rendezvous
        assert mp.errors.record.__module__ == "phalanx.errors._record"
        assert rendezvous.dynamic_rendezvous.create_handler.__module__ == "phalanx.rendezvous.dynamic"
        from torch.distributed.elastic.utils import api
        assert api.macros.__module__ == "phalanx.launcher.macros"

        from torch.distributed.elastic.rendezvous import etcd_rendezvous
        try:
            etcd_rendezvous.EtcdRendezvous
        except AttributeError as error:
            print(error)
        try:
            from torch.distributed.elastic.rendezvous.etcd_rendezvous import EtcdRendezvousHandler
        except ImportError:
            print("as an import")
        assert not hasattr(etcd_rendezvous, "anything_else")
        """,
        compat=True,
    )
    assert "v2 protocol" in said
    assert said.endswith("as an import\n")


@pytest.mark.compat(
    "extension get_error_handler", "better", "set_error_handler() and PHALANX_ERROR_HANDLER, too"
)
def test_a_handler_of_errors_that_is_patched_in_is_the_one_that_is_used(python: Python) -> None:
    said = python(
        """
        import torch.distributed.elastic.multiprocessing.errors.handlers as handlers
        import torch.distributed.elastic.multiprocessing.errors as errors
        from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, record
        from unittest import mock

        class Loud(ErrorHandler):
            def record_exception(self, e):
                print("loud:", e)

        @record
        def fail():
            raise ValueError("no data")

        for place in (errors, handlers, errors):
            with mock.patch.object(place, "get_error_handler", Loud):
                try:
                    fail()
                except ValueError:
                    pass
            try:
                fail()
            except ValueError:
                pass
        """,
        compat=True,
    )
    assert said == "loud: no data\n" * 3


def test_a_module_that_only_a_newer_torch_has_is_torchs_own(python: Python, tmp_path) -> None:
    """A later torch imports what is new there from its own code; that must not fail because of us."""
    newer = tmp_path / "torch/distributed/elastic/brand_new"
    newer.mkdir(parents=True)
    for folder in ("torch", "torch/distributed", "torch/distributed/elastic"):
        (tmp_path / folder / "__init__.py").write_text("")
    (newer / "__init__.py").write_text(
        "from torch.distributed.elastic.multiprocessing import Std\nNEWS = Std.ALL\n"
    )
    python(
        """
        from torch.distributed.elastic.brand_new import NEWS
        from phalanx.multiprocessing import Std
        assert NEWS is Std.ALL
        """,
        compat=True,
    )
