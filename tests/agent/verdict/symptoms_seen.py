"""What libraries raise when another process is gone, and what looks like it and is something else.

Texts that name gloo or torch's store were seen with torch 2.13.0 on loopback: of two workers one ended at once, was
killed or stood still in the middle of what the name says. Two of gloo's, marked so, are in its library and could not
be brought about. NCCL needs devices that are not here: its texts are those of its sources and of users' reports.
"""

_GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
_PEER = (
    f"{_GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:33195. This is typically caused by a remote worker "
    "crashing. Check the logs of the remote worker before reporting an error. GLHF! \U0001f3d6\ufe0f"
)
_WAIT = f"{_GLOO}/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"
_BARRIER = f"[Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms\n Original exception: \n{_WAIT}"
_NCCL_REMOTE = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, remote process exited or there was a network "
    "error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process "
    "exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer node1<40918>"
)
_NCCL_CONNECT = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled system error (run with NCCL_DEBUG=INFO "
    "for details), NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external library call "
    "failed or device error.\nLast error:\nsocketStartConnect: Connect to 10.0.12.227<48881> failed : Software caused "
    "connection abort"
)
_NCCL_ABORTED = (
    "NCCL communicator was aborted on rank 1. Original reason for failure was: [Rank 1] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600210 milliseconds."
)
_NCCL_DEVICE = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3384, unhandled cuda error, NCCL version "
    "2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)
_RECV = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
_NETWORK = "torch.distributed.DistNetworkError"
_STORE = "torch.distributed.DistStoreError"
_BACKEND = "torch.distributed.DistBackendError"
_PORT = (
    "The server socket has failed to listen on any local network address. port: 22001, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)

# What happens → type of the exception, with its module, and its text.
SYMPTOMS = {
    "gloo: all_reduce, recv, send, barrier, broadcast, all_gather_object": ("RuntimeError", _PEER),
    "gloo: a peer that stands still": ("RuntimeError", _WAIT),
    "gloo: monitored_barrier with a peer that stands still": ("RuntimeError", _BARRIER),
    "gloo: another one timed out first (not seen)": (
        "RuntimeError",
        "Application timeout caused pair closure",
    ),
    "gloo: a peer dies while all connect (not seen)": (
        "RuntimeError",
        f"Gloo connectFullMesh failed with {_PEER}",
    ),
    "store.get, its host is gone": (_NETWORK, _RECV),
    "store.set, its host is gone": (_NETWORK, "Broken pipe"),
    "init_process_group, a peer never comes": (
        _STORE,
        "Timed out after 5 seconds waiting for clients. 1/2 clients joined.",
    ),
    "init_process_group, a peer dies before it has connected": (
        _STORE,
        "wait timeout after 6000ms, keys: /0//cpu//0/1",
    ),
    "init_process_group, rank 0 is gone": (
        _NETWORK,
        "The client socket has timed out after 4000ms while trying to connect to (127.0.0.1, 22002).",
    ),
    "NCCL: all_reduce": (_BACKEND, _NCCL_REMOTE),
    "NCCL: a peer is gone before all have connected": (_BACKEND, _NCCL_CONNECT),
    "NCCL: its watchdog has aborted": (_BACKEND, _NCCL_ABORTED),
    "Python: a socket": ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    "Python: a pipe": ("BrokenPipeError", "[Errno 32] Broken pipe"),
    "Python: a switched-off machine": ("TimeoutError", "[Errno 110] Connection timed out"),
    "Python: a pulled cable": ("OSError", "[Errno 113] No route to host"),
}

# What the process itself did wrong, or a service of the user's, whatever words are in it.
OWN_FAULTS = {
    "a port that is taken": (_NETWORK, _PORT),
    "gloo: a wrong shape": (
        "RuntimeError",
        "ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (3), got (2))",
    ),
    "gloo: a wrong type": ("RuntimeError", "result type Float can't be cast to the desired output type Bool"),
    "NCCL is not there": ("RuntimeError", "Distributed package doesn't have NCCL built in"),
    "NCCL without a device": ("ValueError", "ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    "NCCL: a broken device": (_BACKEND, _NCCL_DEVICE),
    "a user's exception that mentions gloo": ("ValueError", "unknown backend 'gloo', use nccl"),
    "a user's exception that quotes a symptom": ("ValueError", "got 'Connection reset by peer' as a label"),
    "a user's own type": ("train.PeerError", "Connection reset by peer"),
    "another library's type": ("redis.exceptions.ConnectionError", "Connection reset by peer"),
    "a file": ("FileNotFoundError", "[Errno 2] No such file or directory: 'nccl.conf'"),
}
