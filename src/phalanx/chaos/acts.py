"""Each act as it is done once: whom it meets, how long it lasts, and the lines that say so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from phalanx.chaos import sentences
from phalanx.chaos.cut import Cut, cut
from phalanx.chaos.faults import Opened, Wait, opened, slowed, stopped
from phalanx.chaos.jobs import Agent, Worker, signal_process
from phalanx.chaos.orders import Orders
from phalanx.chaos.plan import Act, names
from phalanx.multiprocessing.pidfd import has_ended

__all__ = ["Acts"]

_DYING_S = 5.0  # a killed process may have to wait for a CPU to die on
_OUTLIVED_S = 5.0  # who is there so long after a signal that ends a process has other plans with it
_ENDS_NOBODY = frozenset(
    getattr(signal, f"SIG{name}") for name in ("CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH")
)


class Acts:
    """Does what ``orders`` say. ``did``: told of each act, when it is done or has begun; ``say``: of how it ended.

    ``waiting_for``: how an act waits that is over when all of these processes are. Both methods raise
    ``PermissionError``, ``OSError``, ``Uncuttable`` and ``Held`` when nothing was done.
    """

    def __init__(
        self,
        orders: Orders,
        *,
        say: Callable[[str], None],
        did: Callable[[str], None],
        waiting_for: Callable[[list[Opened]], Wait],
    ) -> None:
        self._orders = orders
        self._say = say
        self._did = did
        self._waiting_for = waiting_for
        self._host = os.uname().nodename
        self.outlived = 0
        """How many signals have ended nobody, of those that end a process which says nothing else."""

    def on_agent(self, agent: Agent) -> str | None:
        """Do it to an agent; why not, if it has ended."""
        orders = self._orders
        who = sentences.whom_agent(agent.node, agent.pid, host=self._host)
        with opened([agent.process]) as found:
            if not found:
                return "the agent has ended"
            if orders.act is Act.KILL:
                self._kill(found, who)
                # Who is still seen would be met, and counted, by the next step.
                if orders.signum == signal.SIGKILL:
                    self._waiting_for(found)(time.monotonic() + _DYING_S)
            elif orders.act is Act.FREEZE:
                self._held(found, who, "froze", "goes on", with_children=False)
            else:
                self._cut(agent, found[0], who)
        return None

    def on_workers(self, workers: list[Worker]) -> str | None:
        """Do it to workers of one job; why not, if one has ended."""
        orders = self._orders
        with opened([one.process for one in workers]) as found:
            if len(found) < len(workers):
                return "a worker that is meant has just ended"
            who = sentences.whom(
                [one.rank for one in workers],
                [one.pid for one in workers],
                host=self._host,
                round_number=workers[0].round,
            )
            if orders.act is Act.KILL:
                self._kill(found, who)
                self._say_if_outlived(found, names("rank", [one.rank for one in workers]))
            elif orders.act is Act.STOP:
                self._held(found, who, "stopped", "continued", with_children=True)
            else:
                self._slow(found, who)
        return None

    def _kill(self, found: list[Opened], who: str) -> None:
        for one in found:
            signal_process(one.pidfd, self._orders.signum)
        verb = "killed" if self._orders.signum == signal.SIGKILL else "signalled"
        self._did(f"{verb} {who} by {signal.Signals(self._orders.signum).name}")

    def _say_if_outlived(self, found: list[Opened], ranks: str) -> None:
        """Say it if a signal was to end workers and all of them are still there: nothing was tried then."""
        signum = self._orders.signum
        if signum == signal.SIGKILL or signum in _ENDS_NOBODY:
            return
        is_late = self._waiting_for(found)(time.monotonic() + _OUTLIVED_S)
        if is_late and not any(has_ended(one.pidfd) for one in found):
            self.outlived += 1
            self._say(sentences.outlived(ranks, signal.Signals(signum).name, _OUTLIVED_S, count=len(found)))

    def _held(self, found: list[Opened], who: str, verb: str, after: str, *, with_children: bool) -> None:
        for_s = self._orders.for_s
        stopped(
            found,
            for_s,
            self._waiting_for(found),
            with_children=with_children,
            begun=lambda: self._did(f"{verb} {who} for {sentences.time_words(for_s)} by SIGSTOP"),
        )
        self._say_end(found, f"{after} {who}" if after == "continued" else f"{who} {after}")

    def _slow(self, found: list[Opened], who: str) -> None:
        share, for_s = self._orders.share, self._orders.for_s
        words = f"slowed {who} to {sentences.share_words(share)} for {sentences.time_words(for_s)}"
        slowed(found, for_s, share, self._waiting_for(found), begun=lambda: self._did(words))
        self._say_end(found, f"at full speed again: {who}")

    def _cut(self, agent: Agent, found: Opened, who: str) -> None:
        for_s = self._orders.for_s

        def begun(made: Cut) -> None:
            stores = " and ".join(made.stores)
            self._did(f"cut {who} from its store at {stores} for {sentences.time_words(for_s)}")

        cut(agent, for_s, self._waiting_for([found]), begun=begun)
        self._say_end([found], f"healed the cut of {who}")

    def _say_end(self, found: list[Opened], words: str) -> None:
        """How an act that lasts has ended."""
        ended = [one.process.pid for one in found if has_ended(one.pidfd)]
        if len(ended) == len(found):
            words = f"{names('pid', ended)} ended meanwhile"
        self._say(words)
