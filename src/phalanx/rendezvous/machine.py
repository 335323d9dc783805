"""One agent's membership of a job: its lease, its registration, its part in each round, and leading when it leads.

    IDLE ─▶ OPENING ──lease──▶ REGISTERING ──▶ PRESENT ──part ended──▶ DRAINING (host of the store) ─▶ CLOSING ─▶ CLOSED
               ▲                                ▲   │
               └──── lease ended, store reset ──┼── ▼
                                                SILENT (nothing heard for 0.6 ttl: workers must go)

It is level-triggered: after each event it compares what the store says with what it has done, and asks for what is
missing, one transaction per purpose at a time.
"""

from __future__ import annotations

from typing import Any, ClassVar

from phalanx.machine import Arrow, Machine, Void
from phalanx.rendezvous import events
from phalanx.rendezvous.draining import Draining
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.leading import LEAD, Leading
from phalanx.rendezvous.lease import LeaseTimes
from phalanx.rendezvous.opening import Opening
from phalanx.rendezvous.part import Part
from phalanx.rendezvous.pending import Pending
from phalanx.rendezvous.policy import Policy
from phalanx.rendezvous.registration import REGISTER, UNREGISTER, Registration
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.state import GOING, NOTED, MemberState, connected, everywhere
from phalanx.rendezvous.stop_cause import StopCause
from phalanx.rendezvous.view import JobView, RoundTimes
from phalanx.rendezvous.waiting import END_NOT_TOLD, serves_on

__all__ = ["MemberMachine"]

_ABOUT_THE_LEASE = (events.LeaseRenewed, events.LeaseEnded, events.TimePassed)


class MemberMachine(Machine[MemberState]):
    """See the module's docstring. ``running`` is the round whose workers may be alive on this node."""

    def __init__(self, settings: MembershipSettings, policy: Policy) -> None:
        self.state = MemberState.IDLE
        self._settings = settings
        self._keys = JobKeys(settings.run_id)
        self._lease = LeaseTimes(settings.ttl_s)
        self._pending = Pending()
        self._job = JobView(self._keys)
        self._leading = Leading(settings, self._keys, policy)
        self._here = Registration(settings, self._keys, self._pending)
        self._part = Part(settings, self._keys, self._pending, self._here)
        self._times = RoundTimes()
        self._draining = Draining(settings)
        self._opening = Opening(settings)
        self._is_decided = False
        self._has_failed = False  # no round will form; the workers, if any, are being stopped
        self._part_ended = False

    @property
    def running(self) -> Round | None:
        """The round whose workers may be alive here."""
        return self._part.running

    @property
    def has_untold(self) -> bool:
        """Whether nobody has heard how the last round ended on this node, and nobody will."""
        return self._part.has_untold

    @property
    def is_closed(self) -> bool:
        """The store was left; nothing more will be heard or asked."""
        return self.state is MemberState.CLOSED

    @property
    def is_leading(self) -> bool:
        """Whether this node leads, as far as it knows."""
        return self._leading.is_leading

    def step(self, event: object, now: float) -> list[Any]:
        """As the base, and first of all: whoever slept too long has lost the right to do anything else."""
        late: list[Any] = []
        if self._is_too_late(now) and not isinstance(event, _ABOUT_THE_LEASE):
            late = self._fall_silent(now)
        commands = super().step(event, now)
        self.deadline = self._next_deadline(now)
        return [*late, *commands]

    def _is_too_late(self, now: float) -> bool:
        return self.state in (MemberState.REGISTERING, MemberState.PRESENT) and self._lease.is_silent(now)

    # Opening

    def _open(self, _event: object, now: float) -> list[Any]:
        self.state = MemberState.OPENING
        self._opening.begin(now, heard_at=self._lease.renewed_at)
        self._lease.forget()
        self._pending.clear()
        self._job = JobView(self._keys)
        self._leading.forget()
        self._part.unregistered()
        return [events.OpenSession()]

    def _opened(self, event: events.SessionOpened, now: float) -> list[Any]:
        self.state = MemberState.REGISTERING
        self._opening.succeeded()
        self._draining.opened(event)
        self._lease.renew(event.sent_at)
        if not self._settings.run_id:  # a host that takes over has another id, and no key of the old one
            self._keys.name(event.run_id)
        self._here.leased(event)
        return [events.StartWatch(self._keys.job), self._register()]

    def _not_reached(self, event: events.StoreNotReached, now: float) -> None:
        self._opening.failed(event.reason)

    def _registered(self, event: events.Transacted, now: float) -> list[Any]:
        self._pending.answered(event.purpose, succeeded=event.succeeded)
        if event.purpose == UNREGISTER:
            return [self._register()]
        if self._here.was_registered(event):
            if self.state is MemberState.REGISTERING:
                self.state = MemberState.PRESENT
            return self._reconcile(now)
        if self.state is MemberState.SILENT:
            return []
        commands, failure = self._here.not_registered(event, now)
        return commands if failure is None else self._fail(failure, is_mistake=True)

    def _register(self) -> events.Transact:
        return self._here.register(is_leaving=self._part.is_leaving, is_busy=self._part.running is not None)

    def _register_again(self, event: events.TransactionUnclear, now: float) -> list[Any]:
        self._pending.unclear(event.purpose, now)
        return [self._register()] if event.purpose in (REGISTER, UNREGISTER) else []

    # The lease

    def _renewed(self, event: events.LeaseRenewed, now: float) -> list[Any]:
        self._lease.renew(event.sent_at)
        commands = self._part.fence(self._lease.fenced_at)
        if self.state is MemberState.SILENT and not self._lease.is_silent(now):
            self.state = MemberState.PRESENT if self._here.revision else MemberState.REGISTERING
            commands.append(events.Told("the store answers again"))
            if self.state is MemberState.REGISTERING and not self._pending.is_under_way():
                commands.append(self._register())
        if self._lease.is_silent(now):
            self._part.not_confirmed()
            return commands
        if event.number is not None and not (self._part_ended or self._is_decided or self._has_failed):
            commands += self._part.lease_confirmed(event.number, self._job, self._lease.fenced_at)
        return [*commands, *self._reconcile(now)]

    def _fall_silent(self, now: float) -> list[Any]:
        if self._part_ended and not self._draining.is_local:
            return self._close()
        self.state = MemberState.SILENT
        silence = self._lease.silence(now)
        stop = self._part.stop(silence, StopCause.LOSS, grace_s=self._lease.stop_grace_s, is_own=True)
        return [events.Told(f"{silence}: the others may soon count this node as lost"), *stop]

    def _slept(self, event: events.Slept, now: float) -> list[Any]:
        self._lease.age(event.seconds, now)
        if self._lease.renewed_at is None:
            return []
        if self._is_too_late(now):
            return self._fall_silent(now)
        return [*self._part.fence(self._lease.fenced_at), events.RenewLease()]

    def _lease_ended(self, event: events.LeaseEnded | events.StoreWasReset, now: float) -> list[Any]:
        return self._lose(events.WHY_LOST[type(event)], now)

    def _lose(self, reason: str, now: float) -> list[Any]:
        """Membership is over; what is left of it goes, and this node registers anew."""
        if self._part_ended:
            return self._close()
        stop = self._part.stop(reason, StopCause.LOSS, grace_s=self._lease.stop_grace_s, is_own=True)
        return [events.Told(f"{reason}: joining again"), *stop, *self._open(None, now)]

    def _store_failed(self, event: events.StoreFailed, now: float) -> list[Any]:
        return self._fail(event.reason, is_mistake=not self._opening.was_open)

    def _fail(self, reason: str, *, is_mistake: bool = False) -> list[Any]:
        if self._has_failed:
            return []
        self._has_failed = True
        self._leading.deadline = None
        return [*self._part.stop(reason, StopCause.END), events.MeetingFailed(reason, is_mistake)]

    # What the store says

    def _listed(self, event: events.KeysListed, now: float) -> list[Any]:
        self._pending.seen()
        if event.prefix == self._keys.job:
            self._job = JobView(self._keys)
            self._job.listed(event.revision, event.items)
        else:
            self._leading.hear(event)
        return self._reconcile(now)

    def _changed(self, event: events.KeyChanged, now: float) -> list[Any]:
        self._pending.seen()
        if event.prefix == self._keys.job:
            self._job.changed(event.batch)
        else:
            self._leading.hear(event)
        return self._reconcile(now)

    def _read(self, event: events.KeyRead, now: float) -> list[Any]:
        commands = self._part.read(event, self._job)
        if self._leading.is_leading:
            self._leading.read(event)
        return [*commands, *self._reconcile(now)]

    def _transacted(self, event: events.Transacted, now: float) -> list[Any]:
        if event.purpose in (REGISTER, UNREGISTER):
            return self._registered(event, now)
        self._pending.answered(event.purpose, succeeded=event.succeeded)
        if event.purpose == LEAD:
            if event.succeeded:
                self._leading.succeeded(event.revision)
        elif not event.succeeded and self._here.is_lost(event):
            return self._lease_ended(events.LeaseEnded(), now)
        elif event.succeeded:
            self._part.succeeded(event)
        else:
            self._part.failed(event)
        return self._reconcile(now)

    def _unclear(self, event: events.TransactionUnclear, now: float) -> list[Any]:
        since_s = self._pending.unclear(event.purpose, now)
        if since_s >= self._settings.store_timeout_s:  # it takes renewals, and nothing else: its disk is full
            what = f"the store has taken no write for {since_s:.0f} s (store_timeout)"
            return self._fail(f"{what}: {event.reason}")
        if self._part_ended and self.state is MemberState.PRESENT and not self._part.has_untold_end:
            return self._go(now)  # the revoked lease will tell the others
        commands = self._reconcile(now)
        self._pending.rest()
        return commands

    # What this node does

    def _noted(self, event: object, now: float) -> list[Any]:
        self._part.note(event)
        return self._reconcile(now)

    def _excluded(self, event: events.NodeExcluded, now: float) -> list[Any]:
        return [*self._part.exclusion.begin(event.reason, now), *self._reconcile(now)]

    def _port_not_held(self, event: events.PortNotHeld, now: float) -> list[Any]:
        return self._fail(event.reason)

    def _gone(self, event: events.WorkersGone, now: float) -> list[Any]:
        return [*self._part.workers_gone(event.report, now), *self._reconcile(now)]

    def _part_over(self, event: events.PartEnded, now: float) -> list[Any]:
        self._part_ended = True
        if self.state is MemberState.PRESENT and not self._is_decided and not self._has_failed:
            return self._reconcile(now)
        return self._go(now)

    def _hurry(self, event: events.HurryAsked, now: float) -> list[Any]:
        self._draining.is_hurried = True
        if self.state is MemberState.DRAINING or self._part_ended:
            return self._close()
        return []

    # Going

    def _go(self, now: float) -> list[Any]:
        """Give the registration up; the host of the store stays until nobody needs it, or for so long."""
        if self.state is not MemberState.PRESENT or not self._draining.is_needed(is_used=self._job.is_used):
            return self._close()
        self.state = MemberState.DRAINING
        self._draining.begin(now)
        return [events.RevokeLease(), events.StartWatch(self._keys.nodes)]

    def _drain(self, event: events.KeysListed | events.KeyChanged, now: float) -> list[Any]:
        if event.prefix != self._keys.nodes:
            return []
        self._leading.hear(event)
        others = self._leading.others()
        if not others:  # or not yet again: who lost its lease while we were frozen is about to register anew
            return self._close(lingers=True)
        is_said = self._is_decided or isinstance(event, events.KeyChanged)
        return [] if is_said else [events.Told(serves_on(others, self._draining.ends_at - now))]

    def _close(self, *, lingers: bool = False) -> list[Any]:
        self.state = MemberState.CLOSING
        told = [events.Told(END_NOT_TOLD)] if self._part.has_untold_end and not self._is_decided else []
        return [*told, events.CloseSession(lingers)]

    def _closed(self, event: events.SessionClosed, now: float) -> None:
        self.state = MemberState.CLOSED

    def _opening_time(self, event: events.TimePassed, now: float) -> list[Any]:
        if (reason := self._opening.given_up(now)) is not None:
            return self._fail(reason)
        line = self._opening.line(now)
        return [] if line is None else [events.Told(line)]

    def _time_passed(self, event: events.TimePassed, now: float) -> list[Any]:
        if self._is_too_late(now):
            return self._fall_silent(now)
        if self._here.again_at is not None and now >= self._here.again_at:
            return [self._register()]
        return self._reconcile(now)

    def _silent_time(self, event: events.TimePassed, now: float) -> list[Any]:
        if self._lease.ended_at is None or now < self._lease.ended_at or self._draining.is_local:
            return []  # we were frozen, and our own store with us: it forgives
        # Whoever has the store now counts this node as lost. It may be another store, on another host or on this one.
        return self._lose("the store was not heard for a whole lease", now)

    def _drain_time(self, event: events.TimePassed, now: float) -> list[Any]:
        return self._close() if now >= self._draining.ends_at else []

    def _next_deadline(self, now: float) -> float | None:
        times: list[float | None] = []
        if self.state is MemberState.OPENING and not self._has_failed:
            times = [self._opening.deadline]
        elif self.state in (MemberState.REGISTERING, MemberState.PRESENT):
            times = [self._lease.silent_at, self._here.again_at]
            is_over = self._part_ended or self._is_decided or self._has_failed
            if self.state is MemberState.PRESENT and self._job.is_listed and not is_over:
                times += [self._leading.deadline, self._part.barrier_at, self._part.exclusion.ends_at]
        elif self.state is MemberState.SILENT and not self._has_failed:
            times = [None if self._draining.is_local else self._lease.ended_at]
        elif self.state is MemberState.DRAINING:
            times = [self._draining.ends_at]
        return min((at for at in times if at is not None), default=None)

    # The one place where the store and this node are compared

    def _reconcile(self, now: float) -> list[Any]:
        self._times.see(self._job.round, now)
        if self.state is not MemberState.PRESENT or not self._job.is_listed or self._has_failed:
            return []
        if self._job.broken:
            return self._go(now) if self._part_ended else self._fail(self._job.broken)
        commands: list[Any] = [events.Told(f"passed over: {one}") for one in self._job.take_refused()]
        if self._job.verdict is not None and not self._is_decided:
            self._is_decided = True
            commands.append(events.JobDecided(self._job.verdict.text))
        if self._part_ended:
            is_over = self._is_decided or not self._part.has_to_tell(self._job)
            return [*commands, *(self._go(now) if is_over else self._part.tell(self._job))]
        if self._is_decided:
            return commands
        waiting = self._job.new_waiting()
        commands += [events.Told(f"waiting: {waiting}")] if waiting and self.running is None else []
        commands += self._part.asks.hear(self._job, self.running)
        commands += self._part.exclusion.end_if_due(now)
        commands += [*self._part.tell(self._job), *self._part.follow(self._job)]
        return [*commands, *self._lead(now), *self._part.barrier(now)]

    def _lead(self, now: float) -> list[Any]:
        if self._part.is_leading(self._job) and not self._part.is_leaving:
            begin = [] if self._leading.is_leading else self._leading.begin()
            return [*begin, *self._leading.decide(self._job, self._times, self._pending, now)]
        return [*self._leading.end(), *self._part.campaign(self._job)]

    def check(self) -> None:
        """Workers run in a round that was confirmed; whoever waits for the store gives up some day."""
        running = self._part.running
        assert running is None or running.group_world_size >= 1, "workers run in a settled round"
        waits = self.state in (MemberState.OPENING, MemberState.SILENT) and not self._has_failed
        assert not waits or self._draining.is_local or self._next_deadline(0.0) is not None, (
            "a wait without an end"
        )

    # The table

    table: ClassVar[dict[type, dict[MemberState, Arrow | Void]]] = {
        events.MeetingBegan: {MemberState.IDLE: _open},
        events.SessionOpened: {MemberState.OPENING: _opened, **GOING},
        events.StoreNotReached: {MemberState.OPENING: _not_reached, **GOING},
        events.StoreFailed: everywhere(_store_failed),
        events.StoreWasReset: connected(_lease_ended),
        events.LeaseRenewed: connected(_renewed),
        events.LeaseEnded: connected(_lease_ended),
        events.Slept: everywhere(_slept),
        events.KeysListed: connected(_listed, DRAINING=_drain),
        events.KeyChanged: connected(_changed, DRAINING=_drain),
        events.KeyRead: connected(_read),
        events.Transacted: connected(_transacted),
        events.TransactionUnclear: connected(_unclear, REGISTERING=_register_again),
        events.SessionClosed: {MemberState.CLOSING: _closed},
        **dict.fromkeys(NOTED, everywhere(_noted)),
        events.PortNotHeld: everywhere(_port_not_held),
        events.WorkersGone: everywhere(_gone),
        events.NodeExcluded: everywhere(_excluded),
        events.PartEnded: everywhere(_part_over),
        events.HurryAsked: everywhere(_hurry, DRAINING=_hurry),
        events.TimePassed: {
            MemberState.IDLE: Void("a deadline of the past"),
            **connected(_time_passed, OPENING=_opening_time, SILENT=_silent_time, DRAINING=_drain_time),
        },
    }
