"""Every public name of appendix A, by torch's module path, beside torch's own: kind, signature, methods, members.

This shows a name's signature and members, and says no more in the table of compatibility: no parameter is missing,
renamed, moved or has another default; what is in ``TAKES`` takes exactly those beside torch's. What a name does is
shown, and marked, by the tests of its part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.compat.comparing import additions, differences
from tests.compat.items import TORCH_NAMES
from tests.compat.items import names as all_names

from phalanx.compat import names

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).with_name("torch_names.json")

# The last part of the name → what it takes that torch's does not, and what it is good for.
TAKES: dict[str, tuple[set[str], str]] = {
    "ChildFailedError": ({"first_rank"}, "the first failure can be named; by default it is the earliest"),
    "DefaultLogsSpecs": ({"max_bytes", "stderr_tail"}, "keeps log files below a size, and the end of stderr"),
    "EtcdRendezvousBackend": ({"name"}, "can go by another backend's name"),
    "FileTimerServer": (
        {"end_worker", "is_worker", "on_requests"},
        "can be told who may be ended, whatever a request says, and by whom; tells when workers make progress",
    ),
    "LogsDest": ({"max_bytes", "stderr_tail"}, "keeps log files below a size, and the end of stderr"),
    "MultiprocessContext": ({"affinity", "tree"}, "binds workers to CPUs, and sweeps what they leave behind"),
    "PContext": ({"affinity", "tree"}, "binds workers to CPUs, and sweeps what they leave behind"),
    "ProcessFailure": ({"crash", "stderr_tail"}, "knows a native crash, and the last lines of stderr"),
    "StaticTCPRendezvous": ({"store_port"}, "the store may have a port of its own"),
    "SubprocessContext": ({"affinity", "tree"}, "binds workers to CPUs, and sweeps what they leave behind"),
    "record": ({"fn"}, "may be left out"),
    "start_processes": ({"tree"}, "sweeps what workers leave behind"),
}
# Names that are made otherwise than torch's, in a way that no public function of torch's shows.
OTHERWISE = {
    "DynamicRendezvousHandler": (
        "from_backend() and create_handler() are the same; the constructor takes none of torch's private parts"
    ),
}
# ``record`` of events is another function.
SAME = {"torch.distributed.elastic.events.record"}


def _expected(name: str) -> tuple[str, ...]:
    """The mark of one name."""
    leaf = name.rpartition(".")[2]
    if name in names.NOT_OFFERED:
        return f"name {name}", "not offered", names.NOT_OFFERED[name]
    if name in SAME or leaf not in TAKES | OTHERWISE:
        is_constant = TORCH_NAMES[name.rpartition(".")[0]][leaf]["kind"] == "constant"
        return f"name {name}", "same" if is_constant else "same signature"
    if leaf in OTHERWISE:
        return f"name {name}", "better", OTHERWISE[leaf]
    parameters, purpose = TAKES[leaf]
    taken = " and ".join(f"`{parameter}`" for parameter in sorted(parameters))
    return f"name {name}", "same signature", f"{taken}: {purpose}"


def _parameter(name: str) -> Any:
    return pytest.param(
        name, id=name.removeprefix("torch.distributed."), marks=pytest.mark.compat(*_expected(name))
    )


def described(*words: str, compat: bool) -> dict[str, dict[str, Any]]:
    """What ``describe`` says in a fresh interpreter."""
    environment = {**os.environ, "PHALANX_COMPAT": "1" if compat else "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.compat.describe", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def ours() -> dict[str, dict[str, Any]]:
    return described(str(FROZEN), compat=True)


@pytest.mark.torch
def test_the_frozen_names_are_those_of_the_torch_that_is_installed() -> None:
    # After a new release of torch: python -m tests.compat.describe > tests/compat/torch_names.json
    assert described(compat=False) == TORCH_NAMES


def test_the_table_has_every_module_and_every_name_of_torchs_and_each_has_a_home() -> None:
    homes = names.homes()
    assert set(homes) == set(TORCH_NAMES)
    public = {f"{module}.{name}" for module, found in homes.items() for name in found if name[0] != "_"}
    # torch's partial objects, and the registry under its own module's name, are imported by many, though not public.
    beside = {
        "torch.distributed.elastic.multiprocessing.redirects.redirect_stderr",
        "torch.distributed.elastic.multiprocessing.redirects.redirect_stdout",
        "torch.distributed.elastic.rendezvous.registry.rendezvous_handler_registry",
    }
    assert public - beside == set(all_names()) - names.NOT_OFFERED.keys()
    assert beside <= public


@pytest.mark.torch  # one of them, a sampler, is a subclass of torch's
@pytest.mark.parametrize("name", [_parameter(name) for name in all_names()])
def test_a_program_misses_nothing_in(name: str, ours: dict[str, dict[str, Any]]) -> None:
    module, _, leaf = name.rpartition(".")
    theirs, mine = TORCH_NAMES[module][leaf], ours[module][leaf]
    if name in names.NOT_OFFERED:
        assert mine["kind"] == "missing"
        assert names.NOT_OFFERED[name] in mine["reason"]
        return
    found = differences(theirs, mine)
    if leaf in OTHERWISE:
        assert len(found) == 1, "only the constructor"
        assert found[0].startswith("parameters are ")
        return
    assert not found
    takes, _ = TAKES.get(leaf, (set(), "")) if name not in SAME else (set(), "")
    assert additions(theirs, mine) == takes
