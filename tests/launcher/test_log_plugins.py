"""Log plug-ins of installed distributions: found by name, loaded late, and asked where the streams of workers go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.launcher.log_plugins import LogPlacementError, LogPluginError, PluggedLogs, find_log_plugin
from phalanx.multiprocessing import DefaultLogsSpecs, Std

Install = Callable[..., Path]

# Written against torch's interface with no more than that: reify and root_log_dir, and destinations of its own.
PLAIN = '''
import os
from types import SimpleNamespace


class Flat:
    """All files in one folder, named by rank."""

    def __init__(self, log_dir=None, redirects=0, tee=0, local_ranks_filter=None):
        self.given = dict(log_dir=log_dir, redirects=redirects, tee=tee, local_ranks_filter=local_ranks_filter)
        self.root = log_dir or "theirs"

    @property
    def root_log_dir(self):
        return self.root

    def reify(self, envs):
        folder = os.path.join(os.path.abspath(self.root), "run")
        os.makedirs(folder, exist_ok=True)
        path = lambda rank, name: os.path.join(folder, f"{name}-of-{rank}")
        return SimpleNamespace(
            stdouts={rank: path(rank, "out") for rank in envs},
            stderrs={rank: "" for rank in envs},
            tee_stdouts={},
            tee_stderrs={},
            error_files={rank: path(rank, "error") for rank in envs},
        )


class Broken(Flat):
    def reify(self, envs):
        return {}[3]


class NoSpecs:
    def __init__(self, **given):
        pass


class Wrong:
    def __init__(self):
        pass
'''
GROUPS = """[torchrun.logs_specs]
flat = their_logs:Flat
broken = their_logs:Broken
nothing = their_logs:NoSpecs
wrong = their_logs:Wrong
missing = their_logs:Missing
both = their_logs:Flat
same = their_logs:Flat
[phalanx.logs_specs]
both = their_logs:Broken
same = their_logs:Flat
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Leave a distribution where pip would; its module is forgotten afterwards."""

    def write(code: str = PLAIN, groups: str = GROUPS) -> Path:
        (tmp_path / "their_logs.py").write_text(code)
        info = tmp_path / "their_logs-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-logs\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(groups)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "their_logs", raising=False)
        return tmp_path

    return write


def plugged(name: str, log_dir: Path, **more: int) -> PluggedLogs:
    entry = find_log_plugin(name)
    assert entry is not None
    return PluggedLogs(entry, str(log_dir), Std.OUT, {1: Std.ERR}, [0], **more)


def test_the_built_in_layout_has_a_name_too() -> None:
    assert find_log_plugin("default") is None


def test_a_name_that_nobody_offers_is_refused_with_those_that_exist(install: Install) -> None:
    install()
    with pytest.raises(
        LogPluginError, match=r"^no log plug-in is called 'flta' \(there are: both, .*default"
    ):
        find_log_plugin("flta")


def test_a_name_of_two_packages_is_refused_unless_they_mean_the_same(install: Install) -> None:
    install()
    with pytest.raises(LogPluginError, match=r"several .* 'both' \(their_logs:Broken, their_logs:Flat\)"):
        find_log_plugin("both")
    assert find_log_plugin("same") is not None


def test_looking_a_name_up_loads_no_code(install: Install) -> None:
    install()
    find_log_plugin("flat")
    assert "their_logs" not in sys.modules


def test_a_plug_in_gets_torchrun_s_four_arguments_and_its_paths_count(
    install: Install, tmp_path: Path
) -> None:
    install()
    logs = plugged("flat", tmp_path / "logs", stderr_tail=100, max_bytes=7)
    logs.load()
    assert logs._specs.given == {
        "log_dir": str(tmp_path / "logs"),
        "redirects": Std.OUT,
        "tee": {1: Std.ERR},
        "local_ranks_filter": {0},
    }
    envs: dict[int, dict[str, str]] = {0: {}, 1: {"TORCHELASTIC_ERROR_FILE": "/mine"}}
    dest = logs.reify(envs)
    folder = tmp_path / "logs" / "run"
    assert dest.stdouts == {0: str(folder / "out-of-0"), 1: str(folder / "out-of-1")}
    assert (dest.stderr_tail, dest.max_bytes, dest.filtered_stdout) == (100, 7, "")
    assert envs[0]["TORCHELASTIC_ERROR_FILE"] == str(folder / "error-of-0")
    assert envs[1]["TORCHELASTIC_ERROR_FILE"] == "/mine"
    assert logs.run_log_dir == str(folder)
    assert logs.root_log_dir == str(tmp_path / "logs")
    assert (logs.temporary_root, logs.discard_if_empty()) == (None, False)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("missing", r"the log plug-in 'missing' \(their_logs:Missing\) did not load: AttributeError: "),
        ("wrong", r"the log plug-in 'wrong' \(their_logs:Wrong\) did not load: TypeError: "),
        ("nothing", r"gave <their_logs.NoSpecs object.*>, which has no reify"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_one_sentence(
    install: Install, tmp_path: Path, name: str, sentence: str
) -> None:
    install()
    with pytest.raises(LogPluginError, match=sentence):
        plugged(name, tmp_path).load()


def test_a_plug_in_that_fails_in_the_middle_is_told_as_a_fault_of_logs(
    install: Install, tmp_path: Path
) -> None:
    install()
    logs = plugged("broken", tmp_path)
    logs.load()
    with pytest.raises(LogPlacementError, match=r"'broken' .* failed in reify: KeyError: 3"):
        logs.reify({0: {}})


def test_workers_that_are_restarted_alone_need_a_plug_in_that_can_place_one(
    install: Install, tmp_path: Path
) -> None:
    install()
    with pytest.raises(LogPluginError, match=r"^--restart-scope worker: .* has no reify_single"):
        plugged("flat", tmp_path).load(one_by_one=True)


def test_a_subclass_of_ours_tidies_up_and_places_one(install: Install, tmp_path: Path) -> None:
    install(
        "from phalanx.multiprocessing import DefaultLogsSpecs\nclass Ours(DefaultLogsSpecs): pass\n",
        "[phalanx.logs_specs]\nours = their_logs:Ours\n",
    )
    entry = find_log_plugin("ours")
    assert entry is not None
    logs = PluggedLogs(entry, None, Std.NONE, Std.NONE, None)
    logs.load(one_by_one=True)
    assert isinstance(logs._specs, DefaultLogsSpecs)
    logs.reify({0: {}, 1: {}})
    assert logs.run_log_dir == logs._specs.run_log_dir
    root = logs.temporary_root
    assert root
    assert logs.reify_single(1, {}).error_files[1].endswith("/1.1/error.json")
    assert logs.discard_if_empty()
    assert not os.path.exists(root)


# In real jobs


def run(
    folder: Path, *flags: str, code: str, launcher: tuple[str, ...] = ("phalanx", "run")
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(code)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", *launcher, "--nproc-per-node=2", *flags, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


SPEAK = "import os\nprint('rank', os.environ['RANK'], flush=True)\n"


@pytest.mark.system
@pytest.mark.compat(
    "flag --logs-specs",
    "better",
    "a plug-in is loaded by the agent alone, and a mistake in it is one sentence",
)
@pytest.mark.compat("extension entry points torchrun.logs_specs", "same")
@pytest.mark.parametrize(
    "launcher",
    [("phalanx", "run"), pytest.param(("torch.distributed.run",), marks=pytest.mark.torch)],
    ids=["here", "torchrun"],
)
def test_the_log_plug_in_of_an_installed_distribution_lays_out_the_logs_of_a_job(
    install: Install, launcher: tuple[str, ...]
) -> None:
    folder = install()
    done = run(folder, "--logs-specs=flat", "--log-dir=logs", code=SPEAK, launcher=launcher)
    assert done.returncode == 0, done.stderr
    files = {path.name: path.read_text() for path in (folder / "logs" / "run").iterdir()}
    assert files == {"out-of-0": "rank 0\n", "out-of-1": "rank 1\n"}
    assert done.stdout == ""


@pytest.mark.system
def test_the_failure_of_a_worker_is_read_from_where_the_plug_in_put_it(install: Install) -> None:
    folder = install()
    done = run(folder, "--logs-specs=flat", code="raise KeyError('x')\n")
    assert done.returncode == 1
    assert "KeyError: 'x' at train.py:1" in done.stderr
    assert f"logs: {folder}/theirs/run" in done.stderr


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        (
            "missing",
            2,
            "phalanx: error: the log plug-in 'missing' (their_logs:Missing) did not load: Attribute",
        ),
        ("flta", 2, "phalanx: error: --logs-specs: no log plug-in is called 'flta' (there are: "),
        ("broken", 1, "the log plug-in 'broken' (their_logs:Broken) failed in reify: KeyError: 3"),
    ],
)
def test_a_plug_in_that_cannot_be_used_starts_no_worker(
    install: Install, name: str, code: int, sentence: str
) -> None:
    folder = install()
    done = run(folder, f"--logs-specs={name}", code="open('ran', 'w')\n")
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "ran").exists()


TORCHS = """
import os
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs


class Mine(LogsSpecs):
    def reify(self, envs):
        os.makedirs("mine", exist_ok=True)
        kept = self._redirects if isinstance(self._redirects, dict) else dict.fromkeys(envs, self._redirects)
        outs = {rank: os.path.abspath(f"mine/{rank}.{kept[rank]!r}") for rank in envs}
        return LogsDest(outs, dict.fromkeys(envs, ""), {}, {}, dict.fromkeys(envs, os.devnull), "", "")

    @property
    def root_log_dir(self):
        return "mine"


class Derived(DefaultLogsSpecs):
    pass
"""


@pytest.mark.system
@pytest.mark.torch
@pytest.mark.parametrize("name", ["mine", "derived"])
def test_a_subclass_of_torch_s_own_class_lays_out_the_logs_of_a_job(install: Install, name: str) -> None:
    folder = install(TORCHS, "[torchrun.logs_specs]\nmine = their_logs:Mine\nderived = their_logs:Derived\n")
    done = run(folder, f"--logs-specs={name}", "--log-dir=logs", "-r=0:1,1:1", code=SPEAK)
    assert done.returncode == 0, done.stderr
    files = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes().startswith(b"rank ")]
    assert sorted(path.read_text() for path in files) == ["rank 0\n", "rank 1\n"]
    names = {str(path.relative_to(folder)) for path in files}
    if name == "mine":
        assert names == {"mine/0.<Std.OUT: 1>", "mine/1.<Std.OUT: 1>"}
    else:
        assert {one.split("/", 2)[2] for one in names} == {f"attempt_0/{i}/stdout.log" for i in (0, 1)}


@pytest.mark.system
@pytest.mark.torch
def test_torchrun_lays_out_the_same_with_the_same_plug_in(install: Install) -> None:
    folder = install()
    (folder / "train.py").write_text(SPEAK)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    flags = ["--nproc-per-node=2", "--logs-specs=derived", "--log-dir=logs", "-r=3", "train.py"]
    (folder / "their_logs.py").write_text(TORCHS)
    (folder / "their_logs-1.0.dist-info" / "entry_points.txt").write_text(
        "[torchrun.logs_specs]\nderived = their_logs:Derived\n"
    )
    layouts = []
    for launcher in (["torch.distributed.run"], ["phalanx", "run"]):
        before = set(folder.rglob("*"))
        done = subprocess.run(
            [sys.executable, "-m", *launcher, *flags],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made = {one for one in set(folder.rglob("*")) - before if one.is_file() and one.suffix == ".log"}
        layouts.append({one.relative_to(folder).parts[2:]: one.read_text() for one in made})
    assert layouts[0] == layouts[1]
