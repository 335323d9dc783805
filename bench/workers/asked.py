"""Rank 0 stamps the moment at which it is asked to stop; the other is for the benchmark to kill."""

import os
import signal
import sys

from stamp import stamp

if os.environ["RANK"] == "0":
    # Waiting in the kernel, not in a handler: the interpreter's own latency stays out.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    stamp("ready")
    signal.sigwait([signal.SIGTERM])
    stamp("asked")
    sys.exit(0)
stamp("ready")
# A small process: taking a Python interpreter's memory apart would be counted as the launcher's time.
os.execvp("sleep", ["sleep", "1000"])
