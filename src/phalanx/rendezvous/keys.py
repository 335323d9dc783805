"""Where things are in the store: the keys of one job. Pure.

Two halves, by who watches. ``job/`` is watched by every agent and stays small; ``nodes/`` is written by every agent
and watched by the leader alone, so that the messages of a round grow linearly with the nodes.
"""

from __future__ import annotations

__all__ = ["SINGLE", "JobKeys", "job_prefix"]

SINGLE = "single/"  # a kind of report, with a number behind it: a question for a single restart


def job_prefix(run_id: str) -> str:
    """Everything that belongs to a job begins with this."""
    return f"/phalanx/{run_id}/"


class JobKeys:
    """The keys of the job ``run_id``; prefixes end with a slash.

    A job whose id nobody gave learns it from the store: until then ``run_id`` is empty and nothing is read or written.
    """

    def __init__(self, run_id: str) -> None:
        self.name(run_id)

    def name(self, run_id: str) -> None:
        """From now on these are the keys of this job."""
        self.run_id = run_id
        root = job_prefix(run_id)
        self.job = f"{root}job/"
        self.leader = f"{self.job}leader"
        self.round = f"{self.job}round"
        self.verdict = f"{self.job}verdict"
        self.waiting = f"{self.job}waiting"
        self.nodes = f"{root}nodes/"
        self.signals = f"{self.job}signals/"
        self.all_answers = f"{self.job}{SINGLE}"
        self.asks = f"{self.job}asks/"
        self.all_here = f"{self.nodes}here/"
        self.all_joined = f"{self.nodes}joined/"
        self.all_reports = f"{self.nodes}reports/"
        self._members = f"{root}members/"
        self._values = f"{root}kv/"

    def here(self, node_id: str) -> str:
        """A node's registration; leased."""
        return f"{self.all_here}{node_id}"

    def joined(self, number: int, node_id: str = "") -> str:
        """A node is ready for round ``number``; leased. Without a node: the prefix of all."""
        return f"{self.all_joined}{number}/{node_id}"

    def reports(self, number: int) -> str:
        """What the members of round ``number`` report."""
        return f"{self.all_reports}{number}/"

    def report(self, number: int, node_id: str, kind: str) -> str:
        """One report of a member: ``first_sign``, ``failing``, ``straggling`` or ``outcome``."""
        return f"{self.reports(number)}{node_id}/{kind}"

    def ask(self, kind: str, who: str) -> str:
        """What is asked of all nodes of a round, by the nodes or, without a name, by the leader."""
        return f"{self.asks}{kind}/{who}"

    def signal(self, number: int) -> str:
        """The last time that an agent was sent this signal."""
        return f"{self.signals}{number}"

    def answer(self, node_id: str) -> str:
        """The leader's answer to the last question of this node, which the node alone waits for."""
        return f"{self.all_answers}{node_id}"

    def members(self, number: int) -> str:
        """Who is in round ``number``, in the order of the group ranks."""
        return f"{self._members}{number}"

    def values(self, number: int) -> str:
        """What the workers of round ``number`` share."""
        return f"{self._values}{number}/"
