"""The names of ``torch.distributed.run``; torch's own are the oracle. Jobs that they run are in tests/system."""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from phalanx import run as names
from phalanx.cli.namespace import command_line_of
from phalanx.cli.torchrun import options_from_args
from phalanx.cli.words import read_words
from phalanx.launcher.elastic.launch_config import LaunchConfig


def test_the_module_loads_its_names_lazily() -> None:
    code = (
        "import sys; import phalanx.run; print(sorted(m for m in sys.modules if m.startswith('phalanx')), 'argparse' "
        "in sys.modules); print(sorted(set(phalanx.run.__all__) - set(dir(phalanx.run)))); phalanx.run.nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "['phalanx', 'phalanx.lazy', 'phalanx.run'] False\n[]\n"
    assert "module 'phalanx.run' has no attribute 'nothing'" in done.stderr


@pytest.mark.torch
@pytest.mark.compat("name torch.distributed.run.parse_min_max_nnodes", "better", "MIN above MAX is refused")
@pytest.mark.parametrize("text", ["1", "4", "1:1", "2:4", " 3 "])
def test_a_range_of_nodes_is_read_alike(text: str) -> None:
    from torch.distributed import run

    assert names.parse_min_max_nnodes(text) == run.parse_min_max_nnodes(text)


@pytest.mark.parametrize("text", ["", "x", "1:2:3", "3:2", "0"])
def test_what_is_no_range_of_nodes_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="no number of nodes"):
        names.parse_min_max_nnodes(text)


@pytest.mark.torch
@pytest.mark.compat(
    "name torch.distributed.run.determine_local_world_size", "better", "CPUs are those that may be used"
)
@pytest.mark.parametrize("text", ["1", "8", "gpu", "xpu", "tpus"])
def test_a_number_of_workers_is_read_alike(text: str) -> None:
    from torch.distributed import run

    found: list[object] = []
    for module in names, run:
        try:
            found.append(module.determine_local_world_size(text))
        except ValueError:
            found.append(ValueError)
    assert found[0] == found[1]


@pytest.mark.torch
@pytest.mark.compat(
    "name torch.distributed.run.get_rdzv_endpoint", "better", "no port is no port, instead of the word None"
)
@pytest.mark.parametrize(
    ("words", "is_same"),
    [
        (["--master-port", "7"], True),
        (["--master-addr", "h", "--master-port", "7"], True),
        (["--rdzv-endpoint", "h:1"], True),
        (["--rdzv-backend", "c10d"], True),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "h", "--master-port", "7"], True),
        ([], False),
    ],
)
def test_the_endpoint_is_torchs(words: list[str], is_same: bool) -> None:
    from torch.distributed import run

    args = names.parse_args([*words, "train.py"])
    theirs = run.get_rdzv_endpoint(args)
    assert names.get_rdzv_endpoint(args) == (theirs if is_same else theirs.removesuffix(":None"))


@pytest.mark.torch
@pytest.mark.compat("name torch.distributed.run.get_use_env", "same")
@pytest.mark.parametrize("args", [Namespace(), Namespace(use_env=True), Namespace(use_env=False)], ids=str)
def test_whether_the_environment_alone_tells_is_torchs_answer(args: Namespace) -> None:
    from torch.distributed import run

    assert names.get_use_env(args) is run.get_use_env(args)


CONFIGS = [
    ["SCRIPT"],
    ["SCRIPT", "a", "--b"],
    ["-m", "pkg.train", "x"],
    ["--no-python", "echo", "x", "${local_rank}"],
    ["--run-path", "SCRIPT", "y"],
    ["--nnodes", "2", "--node-rank", "1", "--master-addr", "h", "--master-port", "7", "SCRIPT"],
    [
        "--nnodes=2:3",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=h",
        "--rdzv-id=i",
        "--rdzv-conf=timeout=7",
        "SCRIPT",
    ],
    ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-conf=last_call_timeout=9", "SCRIPT"],
    ["-r", "0:3", "-t", "1", "--local-ranks-filter", "0,2", "--signals-to-handle", "SIGTERM", "SCRIPT"],
    ["--shutdown-timeout", "3", "--max-restarts", "2", "--monitor-interval", "5", "--role", "t", "SCRIPT"],
    ["--start-method", "fork", "--nproc-per-node", "3", "--duplicate-stdout-filters", "a,b", "SCRIPT"],
]


@pytest.mark.torch
@pytest.mark.compat(
    "name torch.distributed.run.config_from_args", "better", "what cannot be used is one sentence"
)
@pytest.mark.parametrize("words", CONFIGS, ids=" ".join)
def test_a_namespace_makes_torchs_config_command_and_arguments(
    words: list[str], script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed import run

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which torchrun would set, with a banner
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}>")
    words = ["--log-dir", str(Path(script).parent), *(script if word == "SCRIPT" else word for word in words)]
    theirs, their_command, their_arguments = run.config_from_args(run.parse_args(words))
    ours, command, arguments = names.config_from_args(names.parse_args(words))

    assert isinstance(ours, LaunchConfig)
    assert arguments == their_arguments
    assert command == (names.run_script_path if callable(their_command) else their_command)
    found, wanted = vars(ours).copy(), vars(theirs).copy()
    for config in found, wanted:
        logs = config.pop("logs_specs")
        config["logs"] = [getattr(logs, f"_{name}") for name in ("redirects", "tee", "local_ranks_filter")]
        config["logs"][:2] = map(_plain, config["logs"][:2])
        config["rdzv_endpoint"] = config["rdzv_endpoint"].removesuffix(":None")
    assert found == wanted


def _plain(streams: Any) -> Any:
    return {rank: int(one) for rank, one in streams.items()} if isinstance(streams, dict) else int(streams)


def test_a_config_for_one_node_alone_is_ready_for_use(script: str) -> None:
    config, _, _ = names.config_from_args(names.parse_args(["--standalone", script]))
    assert (config.rdzv_backend, config.rdzv_endpoint) == ("c10d", "localhost:0")


@pytest.mark.compat("name torch.distributed.run.run_script_path", "same")
def test_a_script_is_run_in_this_interpreter(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys\nprint(__name__, __file__, sys.argv)\n")
    code = "from phalanx.run import run_script_path as r; r('show.py', '--x', 'y')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "__main__ show.py ['show.py', '--x', 'y']\n", done.stderr


WORDS = [
    [],
    ["--nproc-per-node", "4", "--max-restarts", "3", "--role", "a b"],
    ["-r", "3", "--tee", "0:1", "--duplicate-stdout-filters", "a,b,,c"],
    ["--nnodes", "2", "--node-rank", "1", "--master-addr", "h", "--master-port", "7"],
    ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-id=7", "--rdzv-conf=join_timeout=5"],
    [
        "--shutdown-timeout",
        "7",
        "--signals-to-handle",
        "SIGTERM",
        "--restart-window",
        "1h",
        "--max-restarts",
        "1",
    ],
    ["--standalone", "--no-python", "--local-ranks-filter", "0", "--stderr-tail", "0", "--stop-all"],
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_namespace_of_our_parser_asks_for_what_its_words_ask_for(words: list[str], script: str) -> None:
    from phalanx.cli.run import run_options

    words = [*words, script, "--lr", "1"]
    assert options_from_args(names.parse_args(words)) == run_options(words)


@pytest.mark.torch
@pytest.mark.parametrize(
    "words", [each for each in WORDS if "--stop-all" not in each and "--restart-window" not in each]
)
def test_a_namespace_of_torchs_parser_does_too(words: list[str], script: str) -> None:
    from torch.distributed.run import parse_args

    from phalanx.cli.run import run_options

    words = [*words, script, "x"]
    assert options_from_args(parse_args(words)) == run_options(words)


def test_a_namespace_may_lack_names_and_have_others(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_ROLE", "trainer")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")
    args = Namespace(training_script=script, nproc_per_node=2, machine_rank=0, use_cpu=True)
    options = options_from_args(args)
    assert (options.nproc, options.role, options.args) == (2, "trainer", ())


def test_a_value_of_the_namespace_is_stronger_than_a_variable_even_the_default(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    args = names.parse_args(["--max-restarts", "0", script])
    assert options_from_args(args).restarts.max_restarts == 0
    assert options_from_args(names.parse_args([script])).restarts.max_restarts == 5


@pytest.mark.parametrize("how", ["flags", "variables", "a copy", "abbreviations"])
def test_what_was_given_is_stronger_than_a_configuration_file_even_the_default(
    how: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"script: {{path: {script}}}\nelastic: {{nproc_per_node: 4, max_restarts: 3}}\n")
    words = ["--config", str(job)]
    if how == "variables":
        monkeypatch.setenv("PET_NPROC_PER_NODE", "1")
        monkeypatch.setenv("PET_MAX_RESTARTS", "0")
    elif how == "abbreviations":
        words += ["--nproc=1", "--max-r", "0"]
    else:
        words += ["--nproc-per-node", "1", "--max_restarts=0"]
    args = names.parse_args(words)
    options = options_from_args(copy.deepcopy(args) if how == "a copy" else args)
    assert (options.nproc, options.restarts.max_restarts) == (1, 0)
    # A Namespace of others cannot tell; and ours looks as theirs do.
    options = options_from_args(Namespace(**vars(args)))
    assert (options.nproc, options.restarts.max_restarts) == (4, 3)
    assert args == Namespace(**vars(args))
    assert repr(args) == repr(Namespace(**vars(args)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training_script": None}, "no program was named"),
        ({"training_script": "missing.py"}, "there is no script 'missing.py'"),
        ({"nproc_per_node": "many"}, "--nproc-per-node: 'many' is no number of workers"),
        ({"nnodes": b"2"}, "nnodes is of type bytes, and must be a text or a number"),
        ({"max_restarts": True}, "max_restarts is True, and must be a text or a number"),
        ({"standalone": "maybe"}, "--standalone: 'maybe' is neither yes nor no"),
        ({"use_env": False, "no_python": True}, "--no-python needs --use-env"),
    ],
    ids=str,
)
def test_a_namespace_that_cannot_be_used_is_a_value_error(
    changes: dict[str, object], said: str, script: str
) -> None:
    args = Namespace(**{**vars(names.parse_args([script])), **changes})
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(")):
        names.run(args)


def test_lists_in_a_namespace_are_texts_with_commas(script: str) -> None:
    args = Namespace(training_script=script, duplicate_stdout_filters=["a,b", "c"], local_ranks_filter=[0, 2])
    line = command_line_of(args)
    words = ["--duplicate-stdout-filters", "a,,b,c", "--local-ranks-filter", "0,2", script]
    assert line == read_words(words)


@pytest.mark.compat("name torch.distributed.run.main", "better", "a mistake is one sentence and exit code 2")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py"], "phalanx: error: there is no script 'missing.py'"),
        (["--max-restarts", "x", "a"], "argument --max-restarts/--max_restarts: invalid int value: 'x'"),
        (["--nproc-per-node", "-3", "a"], "expected one argument|-3"),
    ],
)
def test_a_mistake_in_the_words_of_main_is_one_sentence_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        names.main(words)
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert any(one in err for one in said.split("|"))
    assert "Traceback" not in err


def test_a_job_that_succeeds_returns_nothing_and_leaves_the_arguments_alone(script: str) -> None:
    args = argparse.Namespace(**vars(names.parse_args(["--no-python", "true"])))
    before = vars(args).copy()
    assert names.run(args) is None  # type: ignore[func-returns-value] # which is what is tested
    assert vars(args) == before


@pytest.mark.system
def test_the_report_of_a_failure_is_in_the_exception_and_printed_once(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text("raise ValueError('bad batch 17')\n")
    code = (
        "from phalanx.run import parse_args, run\n"
        "try:\n    run(parse_args(['fail.py']))\n"
        "except Exception as error:\n    print(str(error).count('fail.py FAILED'))\n"
        "print('caught', flush=True)\n"
        "run(parse_args(['fail.py']))\n"
    )
    (tmp_path / "host.py").write_text(code)
    done = subprocess.run([sys.executable, "host.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "1\ncaught\n")
    assert done.stderr.count("fail.py FAILED") == 1, "that of the one that nobody caught"
    last = done.stderr.splitlines()[-2:]
    assert last[0].startswith("phalanx: logs: ")
    assert last[1].startswith("phalanx: fail.py failed: rank 0: ValueError: bad batch 17")


@pytest.mark.compat("name torch.distributed.run.main", "better", "exit codes of workers pass through")
@pytest.mark.compat("name torch.distributed.launch.main", "better", "exit codes of workers pass through")
@pytest.mark.system
@pytest.mark.parametrize("module", ["phalanx.run", "phalanx.cli.legacy"])
def test_main_in_the_file_of_a_command_is_the_command(module: str, tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text(
        f"import signal, sys\nfrom {module} import main\n"
        "before = [signal.getsignal(number) for number in (2, 15)]\nmain()\n"
        "print('after', before == [signal.getsignal(number) for number in (2, 15)],"
        " signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
    )
    (tmp_path / "show.py").write_text("import sys\nprint(sys.stdin.read(), end='', flush=True)\n")
    (tmp_path / "end.py").write_text("import sys\nsys.exit(7)\n")
    said: list[tuple[int, str]] = []
    for words in ["show.py"], ["end.py"], ["--no-such", "x"]:
        command = [sys.executable, "torchrun", *words]
        done = subprocess.run(command, cwd=tmp_path, input="hi\n", capture_output=True, text=True)
        said.append((done.returncode, done.stdout))
        assert "Traceback" not in done.stderr.replace("  traceback : Traceback", "")
        assert done.stderr.count("FAILED") == (words == ["end.py"])
        assert "FutureWarning" not in done.stderr
    assert said == [(0, "hi\nafter True set()\n"), (7, ""), (2, "")]


@pytest.mark.system
def test_main_in_a_function_of_a_program_is_a_job_that_raises(tmp_path: Path) -> None:
    (tmp_path / "host.py").write_text(
        "from phalanx.errors import ChildFailedError\nfrom phalanx.run import main\n"
        "def go():\n    try:\n        main()\n    except ChildFailedError as error:\n        print(error.name)\n"
        "go()\n"
    )
    (tmp_path / "end.py").write_text("import sys\nsys.exit(7)\n")
    done = subprocess.run([sys.executable, "host.py", "end.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "end.py\n"), done.stderr


@pytest.mark.system
def test_files_that_are_the_agents_are_not_those_of_a_launcher_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, seen = tmp_path / "report.json", tmp_path / "seen"
    monkeypatch.setenv("PHALANX_REPORT_FILE", str(report))
    names.run(names.parse_args(["--no-python", "sh", "-c", f"env > {seen}"]))
    assert report.exists()
    assert "PHALANX_REPORT_FILE" not in seen.read_text()


@pytest.mark.parametrize(
    ("flag", "said"), [("--dry-run", "nothing is started"), ("--print-config", "--nnodes")]
)
def test_looking_first_starts_nothing(
    flag: str, said: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names.run(names.parse_args([flag, script]))
    assert said.removeprefix("--") in capsys.readouterr().out
