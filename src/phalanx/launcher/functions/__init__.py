"""Workers that are Python functions: ``phalanx.launch`` and ``phalanx.start``."""
