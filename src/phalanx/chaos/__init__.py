"""``phalanx chaos``: faults, made on purpose, in the processes and connections of a job on this machine."""
