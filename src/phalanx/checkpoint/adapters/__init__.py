"""What is saved through other libraries: each adapter is thin, and its library loads when it is used.

Their names are ``phalanx.checkpoint``'s.
"""
