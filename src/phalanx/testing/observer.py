"""Looks on as a job writes to its store, and notes in the trace what checkers compare with what happened."""

from __future__ import annotations

from collections import Counter

from phalanx.agent.verdict.stored import verdict_from
from phalanx.rendezvous.keys import SINGLE, JobKeys
from phalanx.rendezvous.stored import NodeRecord, Report, RoundRecord, VerdictRecord, decode
from phalanx.store.port import Batch, Change
from phalanx.testing.trace import NodeWritten, ReportWritten, RoundWritten, Trace, VerdictWritten

__all__ = ["Observer"]


class Observer:
    """``excluded`` are the agents whose nodes should not be used just now, as the store says."""

    def __init__(self, run_id: str, trace: Trace) -> None:
        self.excluded: set[str] = set()
        self.exclusions: Counter[str] = Counter()
        """How often each agent was excluded, or more often than that."""
        self.has_begun_anew = False
        """After the job's end was lost with its store, newcomers have begun it anew."""
        self._has_ended = False
        self._keys = JobKeys(run_id)
        self._trace = trace
        self._incarnation = 0

    def see(self, incarnation: int, batch: Batch) -> None:
        """Note what was written."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self.excluded.clear()
            self.has_begun_anew |= self._has_ended
        for change in batch.changes:
            key = change.kv.key
            if key == self._keys.round and not change.is_delete:
                self._trace.add(RoundWritten(incarnation, decode(RoundRecord, change.kv.value)))
            elif key == self._keys.verdict and not change.is_delete:
                verdict = verdict_from(decode(VerdictRecord, change.kv.value).text)
                self._has_ended, self.has_begun_anew = True, False
                self._trace.add(VerdictWritten(incarnation, verdict))
            elif key.startswith(self._keys.all_here):
                self._note_node(key.removeprefix(self._keys.all_here), change)
            elif key.startswith(self._keys.all_reports) and not change.is_delete:
                number, agent, kind = key.removeprefix(self._keys.all_reports).split("/", 2)
                if kind == "outcome" or kind.startswith(SINGLE):
                    self._trace.add(ReportWritten(agent, int(number), decode(Report, change.kv.value)))

    def _note_node(self, agent: str, change: Change) -> None:
        record = None if change.is_delete else decode(NodeRecord, change.kv.value)
        if record is not None and record.excluded:
            self.exclusions[agent] += agent not in self.excluded
            self.excluded.add(agent)
        else:
            self.excluded.discard(agent)
        self._trace.add(NodeWritten(agent, record))
