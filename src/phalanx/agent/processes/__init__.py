"""The edge: processes, signals, console, the keeper and its fence."""
