"""A network namespace for one thread and all threads that it starts: no other process reaches a port that they open.

For reverb, whose server listens on all interfaces. A socket stays in the namespace in which it was opened, and so does
a thread: ZeroMQ's thread and sockets, which are there before `enter`, go on as before. Only Linux has namespaces, and
some systems refuse them to their users. The namespace ends with its threads.

`possible` is asked at the start of a run (`config/plan.py`), `prepare` is called in the first lines of the process
(`launch/place.py`), `enter` just before reverb is loaded (`launch/child.py`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21


def possible() -> bool:
    """Whether a process of this user may have a network namespace: a short-lived fork tries it."""
    if sys.platform != "linux":
        return False
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):  # the answer is no; nothing else may run in this fork
            prepare()
            enter()
            os.write(there, b"yes")
        os._exit(0)
    os.close(there)
    with open(here, "rb") as answer:
        said_yes = answer.read() == b"yes"
    with suppress(ChildProcessError):  # where SIGCHLD is ignored nobody can wait for it
        os.waitpid(child, 0)
    return said_yes


def prepare() -> None:
    """Get the right to call `enter`: without it, this process moves into a user namespace that has it.

    The process must have a single thread. Its user and its access to files stay the same. Raises OSError.
    """
    status = Path("/proc/self/status").read_text()
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    if all(rights >> number & 1 for number in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN)):
        return
    user, group = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")  # else the next line but one is forbidden
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def enter() -> None:
    """Move this thread into a new network namespace, with a loopback interface and no other. Raises OSError."""
    _unshare(_CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _unshare(flag: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flag) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this process gets no namespace of its own: {os.strerror(number)}")
