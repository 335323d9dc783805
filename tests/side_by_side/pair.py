"""Run the same job under torchrun and under Phalanx, and keep what both did."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.compat.marks import shows
from tests.system.launch import TORCHRUN, Event, Job, Launcher, launcher_under_test, two_free_ports

__all__ = ["Seen", "SideBySide", "shows"]


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What one launcher did with a job; `logs` is its `--log-dir`, which may not exist."""

    code: int
    stdout: bytes
    stderr: bytes
    events: tuple[Event, ...]
    logs: Path

    def told(self, name: str) -> list[Event]:
        """The events of this name, by restart and rank."""
        return sorted(
            (event for event in self.events if event.name == name),
            key=lambda event: (event.restart, event.rank),
        )

    def log_files(self) -> set[str]:
        """Paths of all files and folders under `logs`, with `*` for the random end of the run's folder name."""
        found = (str(path.relative_to(self.logs)) for path in self.logs.rglob("*"))
        return {re.sub(r"^(.+)_[A-Za-z0-9_]{8}(/|$)", r"\1_*\2", path) for path in found}


class SideBySide:
    """The fixture `side_by_side`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        source: str,
        *flags: object,
        launchers: tuple[Launcher, Launcher] | None = None,
        **how: Any,
    ) -> tuple[Seen, Seen]:
        """Run the script `source` under both, as `under` does; what torchrun did comes first."""
        torchrun, phalanx = launchers or (TORCHRUN, launcher_under_test())
        return self.under(torchrun, source, *flags, **how), self.under(phalanx, source, *flags, **how)

    def under(
        self,
        launcher: Launcher,
        source: str,
        *flags: object,
        arguments: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        stop_at: str = "",
        signal: int = 0,
        named: tuple[str, ...] = (),
        log_dir: bool = True,
    ) -> Seen:
        """
        Run the script `source` under one launcher with its `flags`; torchrun takes seconds that not all need.

        `stop_at`, `signal`: send the signal to the launcher when a worker tells this event.
        `named`: how the program is named instead of by the script's path. `log_dir`: whether the flag is given.
        """
        script = self._script(source)
        folder = self.folder / launcher.name
        logs = ("--log-dir", str(folder / "logs")) if log_dir else ()
        words = (*logs, *map(str, flags), *(named or (str(script),)), *arguments)
        with Job(launcher, words, folder=folder, env=env or {}) as job:
            if stop_at:
                job.told(stop_at)
                job.send(signal)
            code = job.wait()
            return Seen(code, job.stdout, job.stderr, tuple(job.events), folder / "logs")

    def nodes(
        self, source: str, *nodes: Sequence[object], env: Sequence[Mapping[str, str]] = ()
    ) -> tuple[list[Seen], list[Seen]]:
        """Run one job of several nodes under both, as `nodes_under` does; what torchrun's nodes did comes first."""
        torchrun = self.nodes_under(TORCHRUN, source, *nodes, env=env)
        return torchrun, self.nodes_under(launcher_under_test(), source, *nodes, env=env)

    def nodes_under(
        self,
        launcher: Launcher,
        source: str,
        *nodes: Sequence[object],
        env: Sequence[Mapping[str, str]] = (),
    ) -> list[Seen]:
        """Run one job of several nodes on this machine, each with its own flags.

        `env`: each node's variables, beside its flags. `{port}` in a flag or variable is a free port of this job, and
        the port after it is free too.
        """
        script = self._script(source)
        port = str(two_free_ports())
        with contextlib.ExitStack() as running:
            jobs = []
            for number, flags in enumerate(nodes):
                folder = self.folder / f"{launcher.name}-{number}"
                words = (*(str(flag).replace("{port}", port) for flag in flags), str(script))
                given = env[number] if env else {}
                own = {name: text.replace("{port}", port) for name, text in given.items()}
                jobs.append((running.enter_context(Job(launcher, words, folder=folder, env=own)), folder))
            return [
                Seen(job.wait(), job.stdout, job.stderr, tuple(job.events), folder / "logs")
                for job, folder in jobs
            ]

    def _script(self, source: str) -> Path:
        self.folder.mkdir(exist_ok=True)
        script = self.folder / "train.py"
        script.write_text(textwrap.dedent(source).lstrip("\n"))
        return script
