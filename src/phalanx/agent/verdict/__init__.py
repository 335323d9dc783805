"""Which failure was first, how the job ended, and the form in which the store carries that. Pure."""
