"""Connections that a server ends: those of too many strangers, and those whose message does not end.

A stranger is a peer that has not sent a message yet. Each connection takes a file handle, and ZeroMQ lets in as many as
come within the time of a handshake. So the server ends the oldest ones of strangers; Realm's own clients connect again.
Any peer may also send part after part of one message.

Called by `sockets.py: Server` alone. ZeroMQ limits the size of a part but not the number of parts, and keeps all of
them until the last one arrives. So the server compares what the kernel has received on each connection with what
ZeroMQ handed over. Only on Linux, whose TCP_INFO counts the bytes; elsewhere nothing is watched.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from realm.watch.progress import Every

_EVERY_S = 0.02
_SLACK_BYTES = 1 << 20
MOST_STRANGERS = 64
"""Of one server, besides clients that it waits for: fewer than the 300 files that a batch system may allow."""
_INFO_BYTES, _RECEIVED = 256, struct.Struct("@Q")
_RECEIVED_AT = 128  # tcpi_bytes_received in struct tcp_info of linux/tcp.h


@dataclass
class _Connection:
    """since: bytes received when its last message was handed over, as far as that is known."""

    since: int = 0
    suspect: bool = False


class Connections:
    """What is known about the connections of one server. Used by one thread."""

    def __init__(self, most_bytes: int) -> None:
        """most_bytes: the largest message that is expected. It and `most_strangers` may be changed later."""
        self.most_bytes, self.most_strangers, self.port = most_bytes, MOST_STRANGERS, 0
        self._connections: dict[int, _Connection] = {}  # by file descriptor, the oldest first
        self._known: set[int] = set()  # those that have sent a message, which may be heard of before the connection
        self._may_look = Every(_EVERY_S, at_once=True)

    def accepted(self, fd: int) -> None:
        self._connections[fd] = _Connection()

    def closed(self, fd: int) -> None:
        self._connections.pop(fd, None)
        self._known.discard(fd)

    def handed_over(self, fd: int) -> None:
        """A whole message came from this connection."""
        self._known.add(fd)
        if fd in self._connections:
            self._connections[fd].suspect = False

    def due(self) -> bool:
        """Whether it is time to `look`."""
        return sys.platform == "linux" and self._may_look.due()

    def look(self) -> int:
        """End strangers that are too many, and the connections that hold more than one message can have; how many of
        the latter. Call it when no message waits.

        A connection that received much is a suspect first. It is ended when it sends as much again without one whole
        message.
        """
        for fd in [fd for fd in self._connections if fd not in self._known][: -self.most_strangers]:
            _with_socket(fd, self._end)
            self.closed(fd)
        ended, most = 0, self.most_bytes + self.most_bytes // 4 + _SLACK_BYTES
        for fd, connection in list(self._connections.items()):
            received = _with_socket(fd, _received)
            was_suspect, connection.suspect = connection.suspect, False
            if received - connection.since <= most:
                connection.suspect = was_suspect
                continue
            connection.since, connection.suspect = received, True
            if was_suspect:
                _with_socket(fd, self._end)
                self.closed(fd)
                ended += 1
        return ended

    def _end(self, connection: socket.socket) -> None:
        """Shut it down: ZeroMQ then closes it, with a reset, and forgets the parts of an unfinished message."""
        if connection.getsockname()[1] != self.port:  # ZeroMQ has just closed it, and this is another one
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)


def _received(connection: socket.socket) -> int:
    """Bytes that this TCP connection has received."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0]) if len(info) >= _RECEIVED_AT + 8 else 0


def _with_socket(fd: int, call: Callable[[socket.socket], int | None]) -> int:
    """Call with the socket of this descriptor, which ZeroMQ may close at any time; 0 if it is none any more."""
    try:
        connection = socket.socket(fileno=fd)  # no copy: there may be no file handle left
    except OSError:
        return 0
    try:
        return call(connection) or 0
    except OSError:
        return 0
    finally:
        connection.detach()
