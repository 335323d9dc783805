"""Single restarts (``--restart-scope worker``): one worker starts anew, and the others run on."""
