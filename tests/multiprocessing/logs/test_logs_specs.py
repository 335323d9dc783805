"""Where logs go: torchelastic's layout, and nothing that exists is ever removed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from phalanx.multiprocessing.logs import DefaultLogsSpecs, LogDirError, LogsDest, LogsSpecs
from phalanx.multiprocessing.std import Std


def _envs(count: int = 2, **more: str) -> dict[int, dict[str, str]]:
    return {
        rank: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2", **more}
        for rank in range(count)
    }


def _inside(dest: LogsDest, root: Path) -> list[str]:
    return (
        re.sub(r"job_\w{8}", "job_X", "\n".join(sorted(dest.error_files.values())))
        .replace(f"{root}/", "")
        .split()
    )


def test_each_worker_has_a_folder_and_learns_its_error_file(tmp_path: Path) -> None:
    envs = _envs()
    dest = DefaultLogsSpecs(log_dir=str(tmp_path)).reify(envs)
    assert _inside(dest, tmp_path) == ["job_X/attempt_2/0/error.json", "job_X/attempt_2/1/error.json"]
    assert [env["TORCHELASTIC_ERROR_FILE"] for env in envs.values()] == list(dest.error_files.values())
    folder = Path(dest.error_files[0]).parent
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(folder.iterdir())


def test_the_round_names_the_attempt_when_there_is_one(tmp_path: Path) -> None:
    dest = DefaultLogsSpecs(log_dir=str(tmp_path)).reify(_envs(PHALANX_ROUND="5"))
    assert _inside(dest, tmp_path)[0] == "job_X/attempt_4/0/error.json"


def test_attempts_of_one_job_share_its_folder(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(log_dir=str(tmp_path))
    for number in ("1", "2"):
        specs.reify(_envs(PHALANX_ROUND=number))
    (job,) = tmp_path.iterdir()
    assert sorted(path.name for path in job.iterdir()) == ["attempt_0", "attempt_1"]


def test_an_attempt_folder_that_exists_is_kept_and_another_is_made(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects=Std.ALL)
    first = Path(specs.reify(_envs()).stdouts[0])
    first.write_text("precious")
    others = [Path(specs.reify(_envs()).stdouts[0]).parent.parent.name for _ in range(2)]
    assert others == ["attempt_2.1", "attempt_2.2"]
    assert first.read_text() == "precious"


def test_rivals_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    dests = [DefaultLogsSpecs(log_dir=str(tmp_path)).reify(_envs(1)).error_files[0] for _ in range(20)]
    assert len(set(dests)) == 20


def test_a_run_id_cannot_name_a_folder_elsewhere(tmp_path: Path) -> None:
    dest = DefaultLogsSpecs(log_dir=str(tmp_path)).reify(_envs(1, TORCHELASTIC_RUN_ID="../team/job"))
    assert Path(dest.error_files[0]).relative_to(tmp_path).parts[0].startswith(".._team_job_")


def test_a_tee_is_a_redirect_that_is_shown(tmp_path: Path) -> None:
    dest = DefaultLogsSpecs(log_dir=str(tmp_path), redirects={0: Std.ERR}, tee={1: Std.OUT}).reify(_envs())
    assert [os.path.basename(path) for path in dest.stdouts.values()] == ["", "stdout.log"]
    assert [os.path.basename(path) for path in dest.stderrs.values()] == ["stderr.log", ""]
    assert dest.tee_stdouts == {1: dest.stdouts[1]}
    assert dest.tee_stderrs == {}


def test_the_null_folder_keeps_nothing(tmp_path: Path) -> None:
    envs = _envs(1)
    dest = DefaultLogsSpecs(log_dir=os.devnull, redirects=Std.ALL).reify(envs)
    assert (dest.stdouts, dest.stderrs, dest.error_files) == ({0: ""}, {0: ""}, {0: os.devnull})
    assert envs[0]["TORCHELASTIC_ERROR_FILE"] == ""


def test_options_of_the_destination_are_passed_on(tmp_path: Path) -> None:
    dest = DefaultLogsSpecs(log_dir=str(tmp_path), stderr_tail=7, max_bytes=9).reify(_envs(1))
    assert (dest.stderr_tail, dest.max_bytes) == (7, 9)
    assert (LogsDest().stderr_tail, LogsDest().max_bytes) == (65536, None)


def test_the_temporary_folder_is_made_late_and_goes_when_nothing_was_written(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    specs = DefaultLogsSpecs(redirects=Std.ALL)
    assert not list(tmp_path.iterdir())
    Path(specs.reify(_envs()).stdouts[0]).touch()
    (made,) = tmp_path.iterdir()
    assert re.fullmatch(r"torchelastic_\w{8}", made.name)
    assert made.stat().st_mode & 0o777 == 0o700
    assert specs.discard_if_empty()
    assert not list(tmp_path.iterdir())


def test_the_temporary_folder_stays_when_one_byte_was_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    specs = DefaultLogsSpecs()
    Path(specs.reify(_envs()).error_files[1]).write_text("{")
    assert not specs.discard_if_empty()
    assert Path(specs.root_log_dir).is_dir()


def test_a_folder_that_was_given_is_never_discarded(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(log_dir=str(tmp_path / "mine"))
    dest = specs.reify(_envs())
    assert not specs.discard_if_empty()
    assert Path(dest.error_files[0]).parent.is_dir()


def test_tmpdir_is_honoured_without_importing_tempfile(tmp_path: Path) -> None:
    script = (
        "import sys; from phalanx.multiprocessing.logs import DefaultLogsSpecs\n"
        "print(DefaultLogsSpecs().root_log_dir, 'tempfile' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    folder, is_imported = result.stdout.split()
    assert Path(folder).parent == tmp_path
    assert is_imported == "False"


def test_a_log_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/logs")):
        with pytest.raises(LogDirError, match=r"cannot use the log folder .*; choose") as caught:
            DefaultLogsSpecs(log_dir=str(path))
        assert isinstance(caught.value, OSError)
        assert "\n" not in str(caught.value)


def test_a_folder_that_became_unusable_later_is_the_same_sentence(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"))
    (tmp_path / "logs").rmdir()
    with pytest.raises(LogDirError, match="No such file"):
        specs.reify(_envs())


def test_folders_that_somebody_removed_meanwhile_get_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    specs = DefaultLogsSpecs()
    for is_root_removed in (False, True):
        specs.reify(_envs())
        assert specs.run_log_dir is not None
        shutil.rmtree(specs.root_log_dir if is_root_removed else specs.run_log_dir)
        env: dict[str, str] = {"TORCHELASTIC_RUN_ID": "job"}
        for error_files in (specs.reify_single(1, env).error_files, specs.reify(_envs()).error_files):
            assert all(os.path.isdir(os.path.dirname(path)) for path in error_files.values())
            assert all(path.startswith(str(specs.run_log_dir)) for path in error_files.values())
        assert env["TORCHELASTIC_ERROR_FILE"].startswith(str(specs.run_log_dir))
    assert os.listdir(tmp_path) == [os.path.basename(specs.root_log_dir)]


def test_a_given_folder_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"))
    specs.reify(_envs())
    shutil.rmtree(tmp_path / "logs")
    with pytest.raises(LogDirError, match="No such file"):
        specs.reify(_envs())


def test_no_workers_is_no_error(tmp_path: Path) -> None:
    assert DefaultLogsSpecs(log_dir=str(tmp_path)).reify({}).stdouts == {}


def test_specs_of_ones_own_need_two_members() -> None:
    class Mine(LogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            return LogsDest(stdouts={rank: f"/logs/{rank}" for rank in envs})

        @property
        def root_log_dir(self) -> str:
            return "/logs"

    assert Mine(log_dir=None, redirects=Std.NONE, tee=Std.NONE, local_ranks_filter=None).reify(
        {3: {}}
    ).stdouts == {3: "/logs/3"}
    with pytest.raises(TypeError):
        LogsSpecs()  # type: ignore[abstract]


def test_a_worker_that_is_started_again_alone_has_a_numbered_folder_beside_the_first(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(
        log_dir=str(tmp_path), redirects=Std.OUT, tee={1: Std.ERR}, local_ranks_filter={1}
    )
    first = logs.reify(_envs())
    env: dict[str, str] = {}
    again = [logs.reify_single(1, env) for _ in range(2)]
    assert [_inside(one, tmp_path) for one in again] == [
        ["job_X/attempt_2/1.1/error.json"],
        ["job_X/attempt_2/1.2/error.json"],
    ]
    assert env["TORCHELASTIC_ERROR_FILE"] == again[1].error_files[1]
    attempt = Path(first.error_files[0]).parents[1]
    assert again[1].stdouts == {1: str(attempt / "1.2/stdout.log")}
    assert again[1].tee_stderrs == {1: str(attempt / "1.2/stderr.log")}
    assert logs.reify_single(0, {}).stderrs == {0: os.devnull}, "of a rank that is not to be seen"


def test_nothing_is_kept_of_any_life_under_dev_null() -> None:
    logs = DefaultLogsSpecs(log_dir=os.devnull)
    logs.reify(_envs())
    env: dict[str, str] = {}
    assert logs.reify_single(0, env).error_files == {0: os.devnull}
    assert env == {"TORCHELASTIC_ERROR_FILE": ""}


def test_log_specs_that_know_nothing_of_single_workers_are_asked_for_one(tmp_path: Path) -> None:
    class Own(LogsSpecs):
        root_log_dir = str(tmp_path)

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            return LogsDest(error_files={rank: f"{tmp_path}/{rank}" for rank in envs})

    assert Own().reify_single(3, {}).error_files == {3: f"{tmp_path}/3"}
