"""Workers that are restarted one by one (``--restart-scope worker``)."""
