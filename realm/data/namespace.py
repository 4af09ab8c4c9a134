"""A network of its own for reverb, whose server listens on every interface and asks nobody for a password.

Linux gives each thread its network. The thread that makes reverb's server and client moves into a new, empty one first,
and so do all threads that reverb starts: its port is then out of reach for every other process. ZeroMQ's threads stay
where they are. Root may do this; another user first needs a user namespace, which a process can enter only while it has
one thread (`own_user`). Some kernels and containers refuse both (`refusal`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def own_user() -> None:
    """Enter a user namespace in which this user is the same user, unless networks can be made without one.

    To be called before the process has a second thread. Where the kernel refuses, nothing changes; `own_network` then
    says so.
    """
    if _refuses_network() is None:
        return
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_CLONE_NEWUSER)
    except OSError:
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def own_network() -> None:
    """Move this thread, and the threads that it starts from now on, into a network of nothing but a loopback.

    Raises OSError if the kernel refuses.
    """
    _unshare(_CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def refusal() -> str:
    """Why this machine does not let this user make networks; "" if it does. Changes nothing in this process."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    if _refuses_network() is None:
        return ""
    # a new process, because this one has many threads
    done = subprocess.run([sys.executable, "-S", __file__], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ended"])[-1]


def _refuses_network() -> OSError | None:
    """Try it in a thread that ends at once."""
    refused: list[OSError] = []

    def attempt() -> None:
        try:
            own_network()
        except OSError as error:
            refused.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return refused[0] if refused else None


def _unshare(kinds: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(kinds):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    own_user()
    own_network()
