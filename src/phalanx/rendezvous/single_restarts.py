"""Single restarts (``--restart-scope worker``): who asks for one, and what the leader answers. Pure.

A single restart is that of one worker beside others that run on. A node asks with ``nodes/reports/<round>/<node
id>/single/<sequence>``, one question at a time; the leader answers with ``job/single/<node id>`` in the transaction
that charges the failure to the round: both happen or neither. A question is answered once, for the answer names the
last one; whatever is open when the round ends is void with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, MutableMapping
from typing import Any

from phalanx.records import changed
from phalanx.rendezvous.events import SingleFailed, StartSingle
from phalanx.rendezvous.jitter import jitter
from phalanx.rendezvous.keys import SINGLE, JobKeys
from phalanx.rendezvous.policy import EndJob, MemberReport, Policy, RoundReports
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stored import Answer, Member, Phase, Report, RoundRecord, VerdictRecord, encode
from phalanx.rendezvous.view import JobView, View
from phalanx.store.port import Delete, Operation, Put

__all__ = ["Questions", "answers"]

# Two operations each; etcd takes 128 in a transaction by default, and one with very many evidences would be slow.
ANSWERS_MAX = 32


class Questions:
    """What one node asks in one round: its failed workers, one after the other. ``reports`` is where a question is put,
    as a kind of report.
    """

    def __init__(self, node_id: str, reports: MutableMapping[str, bytes]) -> None:
        self._node_id = node_id
        self._reports = reports
        self._open: deque[SingleFailed] = deque()
        self._number = 0
        self._sequence = 0  # of the first of them, if it was asked; else of the last one that was answered
        self._is_asked = False

    def add(self, failure: SingleFailed) -> None:
        """A worker has failed, and nothing of it is left."""
        self._open.append(failure)

    def drop(self) -> None:
        """The workers are being stopped, and none is started again: what was not sent yet is not asked any more."""
        self._open.clear()
        if self._is_asked:
            self._reports.pop(self._kind, None)

    def follow(self, job: JobView, running: Round | None) -> list[Any]:
        """Take the answer, if it has come, and ask the next question. Nothing is open outside of a settled round."""
        record = job.round
        number = 0 if running is None else running.number
        if record is None or record.number != number or record.phase is not Phase.SETTLED:
            self._open.clear()
            return []
        if number != self._number:
            self._number, self._sequence, self._is_asked = number, 0, False
        taken = self._take(job.answers.get(self._node_id))
        if self._open and not self._is_asked:
            self._sequence += 1
            self._is_asked = True
            self._reports[self._kind] = encode(self._open[0].report)
        return taken

    @property
    def _kind(self) -> str:
        return f"{SINGLE}{self._sequence}"

    def _take(self, answer: Answer | None) -> list[Any]:
        if answer is None or (answer.number, answer.sequence) != (self._number, self._sequence):
            return []
        if not self._is_asked or not self._open:
            return []
        self._is_asked = False
        self._reports.pop(self._kind, None)  # nobody needs it told any more
        asked = self._open.popleft()
        return [StartSingle(asked.local_rank, answer.restart_count, answer.reason, answer.delay_s)]


def answers(
    view: View, record: RoundRecord, settings: MembershipSettings, policy: Policy, keys: JobKeys
) -> tuple[Operation, ...]:
    """The writes that answer open questions of a settled round; none if there are none.

    One failure that ends the job ends it for all who ask.
    """
    writes: list[Operation] = []
    open_s, ran_s = view.open_s, view.ran_s
    for member, sequence, report in _open_questions(view, record)[:ANSWERS_MAX]:
        decision = policy.decide(
            RoundReports(
                # As in a round that ended by a failure: nothing else has happened that could explain it.
                round=changed(record, is_failure=True),
                world_size=sum(one.slots for one in view.members),
                members=_member_reports(view, member, report, view.excluded(settings.min_nodes)),
                open_s=open_s,
                ran_s=ran_s,
                jitter=jitter(f"{settings.node_id} {member.node_id} {record.number} {sequence}"),
            )
        )
        if isinstance(decision, EndJob):
            return (Put(keys.verdict, encode(VerdictRecord(text=decision.text))),)
        record = changed(record, restart_count=decision.restart_count, policy_state=decision.policy_state)
        answer = Answer(
            number=record.number,
            sequence=sequence,
            restart_count=decision.restart_count,
            reason=decision.reason,
            delay_s=decision.delay_s,
        )
        writes += (
            Put(keys.answer(member.node_id), encode(answer)),
            Delete(keys.report(record.number, member.node_id, f"{SINGLE}{sequence}")),
        )
        open_s = ran_s = 0.0
    return (Put(keys.round, encode(record)), *writes) if writes else ()


def _open_questions(view: View, record: RoundRecord) -> list[tuple[Member, int, Report]]:
    """What was asked and is not answered. Copies of answered questions, written late, are none."""
    found = []
    for member in view.members:
        answer = view.answers.get(member.node_id)
        last = answer.sequence if answer is not None and answer.number == record.number else 0
        report = view.questions.get(member.node_id, {}).get(last + 1)
        if report is not None:
            found.append((member, last + 1, report))
    return found


def _member_reports(
    view: View, failed: Member, report: Report, excluded: Collection[str]
) -> tuple[MemberReport, ...]:
    """One member has failed, the others run."""
    reports = []
    first_rank = 0
    for place, member in enumerate(view.members):
        reports.append(
            MemberReport(
                member=member,
                group_rank=place,
                first_rank=first_rank,
                report=report if member == failed else None,
                signed_at=None,
                is_lost=False,
                is_leaving=False,
                is_running=member != failed and member.node_id not in view.reports,
                is_excluded=member.node_id in excluded,
            )
        )
        first_rank += member.slots
    return tuple(reports)
