"""Sections, keys and values of a configuration file; which source wins; all mistakes at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.config.sections import SECTIONS
from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS, Option, section_of
from phalanx.cli.run import launch_values
from phalanx.cli.sources import JobFile
from phalanx.cli.words import read_words
from phalanx.multiprocessing.std import Std

Reading = Callable[..., JobFile]
Mistakes = Callable[..., list[str]]
IN_FILES = [one for one in OPTIONS if section_of(one) and one.later is None]
NOT_IN_FILES = {
    "module",
    "no-python",
    "run-path",
    "config",
    "print-config",
    "dry-run",
    "print-format",
}


def test_each_option_is_in_a_section_or_known_to_be_in_none() -> None:
    assert {one.name for one in OPTIONS if not section_of(one)} == NOT_IN_FILES
    assert {section_of(one) for one in IN_FILES} == {*SECTIONS} - {"env"}


@pytest.mark.parametrize("option", IN_FILES, ids=lambda option: option.name)
def test_an_option_is_a_key_of_its_section_and_its_default_can_be_written(
    option: Option, read: Reading
) -> None:
    section = section_of(option)
    written = "~" if option.default is None else f"'{option.default}'"
    found = read(f"{section}:\n  {option.dest}: {written}\n")
    text = found.texts.get(option.dest)
    assert (text.text if text else None) == option.default
    if text is not None:
        assert text.origin == f"{found.path}:2: {section}.{option.dest}"
        assert text.kind == "file"


@pytest.mark.parametrize(
    ("key", "written", "text"),
    [
        ("elastic.nnodes", "2:4", "2:4"),
        ("elastic.nnodes", "3", "3"),
        ("elastic.nproc_per_node", "4", "4"),
        ("elastic.standalone", "true", "true"),
        ("elastic.standalone", "no", "no"),
        ("elastic.monitor_interval", "0.10", "0.10"),
        ("job.rdzv_id", "007", "007"),
        ("job.shutdown_timeout", "2m", "2m"),
        ("job.signals_to_handle", "[SIGTERM, SIGINT]", "SIGTERM,SIGINT"),
        ("job.signals_to_handle", "SIGTERM,SIGINT", "SIGTERM,SIGINT"),
        ("job.role", "'true'", "true"),
        ("logs.tee", "3", "3"),
        ("logs.tee", "{0: 3, 1: 1}", "0:3,1:1"),
        ("logs.tee", "'0:3,1:1'", "0:3,1:1"),
        ("logs.redirects", "{}", "0"),
        ("logs.local_ranks_filter", "[0, 2]", "0,2"),
        ("logs.duplicate_stdout_filters", "['a, b', c]", "a,, b,c"),
        ("restart.restart_on", "[75, 64-67, SIGKILL]", "75,64-67,SIGKILL"),
        ("restart.restart_refill", "[progress, 1h]", "progress,1h"),
        ("store.rdzv_conf", "{timeout: 900, is_host: true}", "timeout=900,is_host=true"),
        ("store.rdzv_endpoint", "[h0, 'h1:29400', h2]", "h0,h1:29400,h2"),
        ("store.rdzv_endpoint", '""', ""),
    ],
)
def test_yaml_becomes_what_a_flag_would_say(key: str, written: str, text: str, read: Reading) -> None:
    section, _, dest = key.partition(".")
    assert read(f"{section}:\n  {dest}: {written}\n").texts[dest].text == text


def test_texts_of_a_list_arrive_one_by_one_even_with_commas(tmp_path: Path, script: str) -> None:
    (tmp_path / "job.yaml").write_text(
        "logs:\n  duplicate_stdout_filters: ['loss, ', 'a,,b', c]\n  tee: {0: 3, 1: 1}\n"
    )
    found = launch_values(read_words(["--config", str(tmp_path / "job.yaml"), script]), {})
    assert found["duplicate_stdout_filters"] == ("loss, ", "a,,b", "c")
    assert found["tee"] == {0: Std.ALL, 1: Std.OUT}


def test_a_variable_is_no_structure(mistakes: Mistakes, read: Reading) -> None:
    text = "store:\n  rdzv_conf:\n    timeout: ${T}\n"
    assert mistakes(text, {"T": "1,is_host=1"}) == [
        "job.yaml:2: store.rdzv_conf: a setting cannot hold a comma, nor its key ="
    ]
    assert read("job:\n  role: ${R}\n", {"R": "a\n  rdzv_id: b"}).texts.keys() == {"role"}
    assert mistakes("job:\n  signals_to_handle: ['${S}']\n", {"S": "TERM,INT"}) == [
        "job.yaml:2: job.signals_to_handle: 'TERM,INT' has a comma; make it two elements of the list"
    ]


def test_numbers_and_switches_may_come_from_variables(read: Reading) -> None:
    found = read(
        "elastic:\n  nproc_per_node: ${N}\n  standalone: ${ALONE:-yes}\n  max_restarts: ${MAX:-}\n",
        {"N": "2"},
    )
    assert {dest: text.text for dest, text in found.texts.items()} == {
        "nproc_per_node": "2",
        "standalone": "yes",
    }


def test_flags_win_over_variables_and_those_over_the_file_and_that_over_defaults(
    tmp_path: Path, script: str
) -> None:
    (tmp_path / "job.yaml").write_text(
        "job: {shutdown_timeout: 1, role: r1}\nelastic: {max_restarts: 1, nproc_per_node: 1}\n"
    )
    words = ["--config", str(tmp_path / "job.yaml"), "--max-restarts", "3", script]
    environ = {"PET_MAX_RESTARTS": "2", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2"}
    found = launch_values(read_words(words), environ)
    assert found["restarts"].max_restarts == 3
    assert found["grace_s"] == 2
    assert found["role"] == "r1"
    assert found["start_method"] == "spawn"


@pytest.mark.parametrize("variable", ["PET_CONFIG", "PHALANX_CONFIG"])
def test_a_variable_may_name_the_file(variable: str, tmp_path: Path, script: str) -> None:
    (tmp_path / "job.yaml").write_text("job: {role: from-file}\n")
    found = launch_values(read_words([script]), {variable: str(tmp_path / "job.yaml")})
    assert found["role"] == "from-file"


def test_what_a_flag_or_a_variable_overrules_is_not_looked_at(tmp_path: Path, script: str) -> None:
    (tmp_path / "job.yaml").write_text(
        "elastic:\n  nproc_per_node: ${NOBODY}\n  max_restarts: many\nscript: {path: gone.py}\n"
    )
    words = ["--config", str(tmp_path / "job.yaml"), "--nproc-per-node=2", script]
    assert launch_values(read_words(words), {"PET_MAX_RESTARTS": "1"})["nproc"] == 2


def test_a_value_of_the_file_that_does_not_fit_another_is_told_with_its_line(
    tmp_path: Path, script: str
) -> None:
    (tmp_path / "job.yaml").write_text("elastic:\n  standalone: true\n  nnodes: 2:4\n")
    with pytest.raises(UsageError, match=r"job\.yaml:3: elastic\.nnodes: at least 2 nodes are asked for"):
        launch_values(read_words(["--config", str(tmp_path / "job.yaml"), script]), {})


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("path: SCRIPT", {"entrypoint": "SCRIPT", "module": False, "no_python": False}),
        ("module: pkg.train", {"entrypoint": "pkg.train", "module": True, "no_python": False}),
        ("command: bash", {"entrypoint": "bash", "module": False, "no_python": True}),
    ],
)
def test_the_file_may_name_the_program_of_each_kind(
    written: str, kind: dict[str, Any], tmp_path: Path, script: str
) -> None:
    (tmp_path / "job.yaml").write_text(f"script: {{{written.replace('SCRIPT', script)}, args: [a, 1]}}\n")
    found = launch_values(read_words(["--config", str(tmp_path / "job.yaml")]), {"PET_MODULE": "1"})
    expected = {name: script if value == "SCRIPT" else value for name, value in kind.items()}
    assert expected.items() <= found.items()
    assert found["args"] == ("a", "1")


def test_a_script_on_the_command_line_takes_the_place_of_the_files_with_all_its_arguments(
    tmp_path: Path, script: str
) -> None:
    (tmp_path / "job.yaml").write_text("script: {module: pkg.train, args: [--from-file]}\n")
    found = launch_values(read_words(["--config", str(tmp_path / "job.yaml"), script, "--nnodes", "9"]), {})
    assert (found["entrypoint"], found["module"]) == (script, False)
    assert found["args"] == ("--nnodes", "9")


def test_a_switch_about_the_program_does_not_go_with_one_of_the_file(tmp_path: Path, script: str) -> None:
    (tmp_path / "job.yaml").write_text(f"script: {{path: {script}}}\n")
    with pytest.raises(
        UsageError, match=r"--module is about a program that the command line names, and .*:1: s"
    ):
        launch_values(read_words(["-m", "--config", str(tmp_path / "job.yaml")]), {})


def test_arguments_arrive_as_they_were_written(read: Reading, script: str) -> None:
    """Case 13 for the file: whatever an argument looks like, it is one, and nobody reads it."""
    written = [
        "--r=16",
        "--log",
        "--no",
        "--",
        "-t",
        "--nnodes=9",
        "-h",
        "--config",
        "0.10",
        "1e-3",
        "true",
        "True",
        "007",
        "0x1f",
        "2026-01-01",
        "on",
        "'quoted text'",
        '""',
        '"~"',
        '"a: b # c"',
        '"tab\\there"',
        '"$$HOME $${local_rank}"',
        '"[x]"',
    ]
    found = read("script:\n  path: " + script + "\n  args:\n" + "".join(f"    - {one}\n" for one in written))
    assert found.program is not None
    assert found.program.arguments == (
        *written[:16],
        "quoted text",
        "",
        "~",
        "a: b # c",
        "tab\there",
        "$HOME ${local_rank}",
        "[x]",
    )


def test_variables_for_workers_are_texts_as_written(read: Reading, tmp_path: Path, script: str) -> None:
    found = read("env:\n  A: 1.50\n  B: true\n  C: ''\n  D: ${X:-x y}\n")
    assert {name: text.text for name, text in found.env.items()} == {
        "A": "1.50",
        "B": "true",
        "C": "",
        "D": "x y",
    }
    words = ["--config", str(tmp_path / "job.yaml"), script]
    assert launch_values(read_words(words), {})["env"] == {"A": "1.50", "B": "true", "C": "", "D": "x y"}


EVERYTHING_WRONG = """\
job: [a]
elastic:
  nnodes: 5:2
  max_restart: 1
  max_restarts: two
  max_restarts: 3
  standalone: maybe
  rdzv_backend: c10d
  nproc-per-node: 3
log:
  tee: 3
nnodes: 4
logs:
  log_dir: ${NOPE}
  tee: [1, 2]
  redirects: {0: [1]}
  log_max_size: true
env:
  A=B: 1
  EMPTY:
  LIST: [1]
script:
  path: /no/such.py
  module: pkg
  args: --lr
  window: 3
zzz: 1
"""


def test_all_mistakes_are_told_at_once_with_line_key_and_the_nearest_name(mistakes: Mistakes) -> None:
    assert mistakes(EVERYTHING_WRONG) == [
        "job.yaml:1: job: a section must be a map of keys and values",
        "job.yaml:3: elastic.nnodes: '5:2' is no number of nodes; write N, or MIN:MAX with 1 <= MIN <= MAX",
        "job.yaml:4: elastic.max_restart: unknown key; did you mean max_restarts?",
        "job.yaml:5: elastic.max_restarts: 'two' is no whole number",
        "job.yaml:6: elastic.max_restarts: the key is there twice, first in line 5",
        "job.yaml:7: elastic.standalone: 'maybe' is neither yes nor no; write 1, 0, true or false",
        "job.yaml:8: elastic.rdzv_backend: unknown key; did you mean store.rdzv_backend?",
        "job.yaml:9: elastic.nproc-per-node: unknown key; did you mean nproc_per_node?",
        "job.yaml:10: log: unknown section; did you mean logs?",
        "job.yaml:12: nnodes: this is no section; elastic.nnodes is the key",
        (
            "job.yaml:14: logs.log_dir: the variable NOPE is not set; write ${NOPE:-default}, or $${NOPE} for the "
            "text itself"
        ),
        "job.yaml:15: logs.tee: one value is wanted here, not a list",
        "job.yaml:16: logs.redirects: one value is wanted for each, not a list or a map",
        "job.yaml:17: logs.log_max_size: true is a yes or no; put it in quotes if the text is meant",
        "job.yaml:19: env.A=B: this is no name of a variable",
        'job.yaml:20: env.EMPTY: there is no value; write "" for an empty text',
        "job.yaml:21: env.LIST: one value is wanted for each, not a list or a map",
        (
            "job.yaml:23: script.path: there is no script '/no/such.py'; -m runs a module, --no-python any other "
            "program"
        ),
        "job.yaml:24: script.module: script.path names the program already",
        "job.yaml:25: script.args: arguments are a list, such as [--lr, 0.1]",
        "job.yaml:26: script.window: unknown key; did you mean restart.restart_window?",
        "job.yaml:27: zzz: unknown section; there are job, elastic, logs, restart, store, env, script",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("script: {args: [1]}", "script.args: there are arguments, and no script.path that they are for"),
        ("script: {module: ''}", "script.module: there is no name"),
        ('script: {command: x, args: ["a\\0b"]}', "script.args[0]: a NUL can be in no argument"),
        ("script: {command: x, args: [~]}", 'script.args[0]: there is no value; write "" for an empty text'),
        ("script: {command: x, args: [{a: b}]}", "script.args[0]: one value is wanted for each"),
        ("logs: {duplicate_stdout_filters: [a, '']}", "a text of the list is empty, or begins with a comma"),
        ("job: {role: {a: b}}", "job.role: one value is wanted here, not a map"),
        ("job: {config: other.yaml}", "job.config: unknown key"),
        ("script: {no_python: true}", "script.no_python: unknown key"),
    ],
)
def test_a_value_of_another_kind_is_a_mistake(text: str, sentence: str, mistakes: Mistakes) -> None:
    (told,) = mistakes(text)
    assert sentence in told
