"""An agent whose rendezvous is a handler that somebody else has written: calls it, in a daemon thread, and tells.

A handler's methods block, for hours at times, and nobody can interrupt them. The thread is one, so that no handler is
called by two; whoever leaves while ``next_rendezvous`` waits leaves the thread behind.

What such a job cannot have: values that workers share through the agents, a verdict of all nodes, the fence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from phalanx.rendezvous.blocking import BlockingCalls
from phalanx.rendezvous.errors import RendezvousClosedError, RendezvousError, RendezvousGracefulExitError
from phalanx.rendezvous.foreign.agreement import NodeOffer, agree, welcome
from phalanx.rendezvous.foreign.events import (
    AwaitOthers,
    CloseHandler,
    HandlerClosed,
    LeaveHandler,
    LookFailed,
    Meet,
    Met,
    NodesArrived,
    NoMeeting,
    NotMet,
    NotNeeded,
    OthersDone,
    WatchNodes,
)
from phalanx.rendezvous.handler import RendezvousHandler, RendezvousInfo
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.store.port import Store

__all__ = ["ForeignSession"]

MONITOR_INTERVAL_S = 0.1  # torchelastic's
CLOSE_WITHIN_S = 30.0  # torchelastic's close timeout
DONE = "phalanx/done/{}/{}"


class ForeignSession:
    """Stands where the ``Session`` stands otherwise: ``perform`` maps commands to what does them.

    ``make_handler`` is called in the thread, too: a handler may connect when it is made.
    """

    def __init__(
        self,
        make_handler: Callable[[], RendezvousHandler],
        post: Callable[[object], None],
        *,
        settings: MembershipSettings,
        on_bug: Callable[[BaseException, object], None],
        monitor_interval_s: float = MONITOR_INTERVAL_S,
    ) -> None:
        self._make_handler = make_handler
        self._post = post
        self._settings = settings
        self._on_bug = on_bug
        self._interval_s = monitor_interval_s
        self._calls = BlockingCalls("phalanx-handler")
        self._handler: RendezvousHandler | None = None
        self._info: RendezvousInfo | None = None
        self._task: asyncio.Task[None] | None = None
        self.perform: dict[type, Callable[[Any], None]] = {
            AwaitOthers: lambda command: self._begin(self._await_others, command),
            CloseHandler: lambda command: self._begin(self._close, command),
            LeaveHandler: self._leave,
            Meet: lambda command: self._begin(self._meet, command),
            WatchNodes: lambda command: self._begin(self._watch_nodes, command),
        }

    @property
    def store(self) -> Store | None:
        """None: what a handler shares between nodes is no store of ours."""
        return None

    async def aclose(self) -> None:
        """Forget the handler. A call that runs goes on in its thread."""
        self._stop()
        self._calls.close()

    # One thing at a time

    def _begin(self, work: Callable[[Any], Coroutine[Any, Any, None]], command: object) -> None:
        self._stop()
        self._task = asyncio.get_running_loop().create_task(self._guarded(work, command))

    def _stop(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None

    async def _guarded(self, work: Callable[[Any], Coroutine[Any, Any, None]], command: object) -> None:
        try:
            await work(command)
        except Exception as error:  # noqa: BLE001 # a task's border: nobody awaits it
            self._on_bug(error, command)

    # Meeting

    async def _meet(self, command: Meet) -> None:
        try:
            settled = await self._calls.start(lambda: self._meet_in_thread(command))
        except Exception as error:  # noqa: BLE001 # the border to code of others: whatever it is, there is no round
            if _is_called(error, RendezvousGracefulExitError):
                self._post(NotNeeded())
            elif _is_called(error, RendezvousClosedError):
                self._post(NoMeeting(_said(error)))
            else:
                self._post(NotMet(f"the rendezvous handler gave no round: {_said(error)}"))
        else:
            self._post(Met(settled))

    def _meet_in_thread(self, command: Meet) -> Round:
        if self._handler is None:
            self._handler = self._make_handler()
        info = self._info = self._handler.next_rendezvous()
        if self._handler.use_agent_store:
            welcome(info)
        return agree(info, self._offer(command, info, self._handler))

    def _offer(self, command: Meet, info: RendezvousInfo, handler: RendezvousHandler) -> NodeOffer:
        settings, where = self._settings, info.bootstrap_store_info
        address, port = settings.local_addr or "", command.port
        if where is not None:
            address = address or where.master_addr
            # At that port the handler's own store listens if workers are to share it. Ours never do, and rank 0 could
            # not bind it.
            port = port if handler.use_agent_store else where.master_port
        return NodeOffer(
            slots=settings.slots,
            role=settings.role,
            number=command.number,
            restart_count=command.restart_count,
            reason=command.reason,
            master_addr=settings.master_addr or address,
            master_port=settings.master_port or port,
        )

    # While workers run, and after

    async def _watch_nodes(self, command: WatchNodes) -> None:
        while not await self._have_nodes_arrived():  # noqa: ASYNC110 # the interface has nothing that can be waited for
            await asyncio.sleep(self._interval_s)

    async def _have_nodes_arrived(self) -> bool:
        assert self._handler is not None, "a round was given"
        try:
            count = await self._calls.start(self._handler.num_nodes_waiting)
        except Exception as error:  # noqa: BLE001 # the border to code of others: the workers need not suffer from it
            self._post(LookFailed(_said(error)))
            return False
        if count > 0:
            self._post(NodesArrived(count))
        return count > 0

    async def _await_others(self, command: AwaitOthers) -> None:
        while True:
            try:
                if await self._calls.start(lambda: self._are_all_done(command.round)):
                    self._post(OthersDone())
                    return
            except Exception as error:  # noqa: BLE001 # the border to code of others: the agent has a limit for this wait
                self._post(LookFailed(_said(error)))
            if await self._have_nodes_arrived():
                return
            await asyncio.sleep(self._interval_s)

    def _are_all_done(self, settled: Round) -> bool:
        """Say that this node is done, which may be said twice; whether all are, or one has closed the rendezvous."""
        assert self._info is not None and self._handler is not None, "a round was given"  # noqa: PT018
        store, keys = (
            self._info.store,
            [DONE.format(settled.number, rank) for rank in range(settled.group_world_size)],
        )
        store.set(keys[settled.group_rank], b"1")
        return bool(store.check(keys)) or bool(self._handler.is_closed())

    # Going

    async def _close(self, command: CloseHandler) -> None:
        reason = ""
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._calls.start(self._close_in_thread)
        except TimeoutError:
            reason = f"its handler has not returned for {CLOSE_WITHIN_S:g} s"
        except Exception as error:  # noqa: BLE001 # the border to code of others: the job is over anyhow
            reason = _said(error)
        self._post(HandlerClosed(reason))

    def _close_in_thread(self) -> None:
        if self._handler is not None:
            self._handler.set_closed()
            self._handler.shutdown()

    def _leave(self, command: LeaveHandler) -> None:
        self._stop()
        self._post(HandlerClosed())


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _is_called(error: BaseException, kind: type[RendezvousError]) -> bool:
    """Whether it is such an error, of ours or of torchelastic: its handlers raise its own, and it is not imported."""
    return any(one.__name__ == kind.__name__ for one in type(error).__mro__)
