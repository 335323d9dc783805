"""Whether a failed job is tried again: causes, policy, and what the leader asks of it. Pure."""
