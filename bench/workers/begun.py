"""Stamps its beginning, and sleeps."""

import time

from stamp import stamp

stamp("begun")
time.sleep(1000)
