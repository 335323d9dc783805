"""Handlers that somebody else has written take the place of our own rendezvous: torchelastic's interface, driven."""
