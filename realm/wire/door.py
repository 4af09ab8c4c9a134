"""The door of every server: who may connect. Called by `sockets.py` alone.

Without keys, on loopback, the run's id is the password of a connection (ZeroMQ's PLAIN mechanism). With keys, every
connection is encrypted and both ends prove who they are (CURVE): the client knows the server's public key, and the
server lets in the public keys that it knows. Both are asked once per handshake, by ZAP; before that ZeroMQ hands no
message of a peer to the program.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Callable, Collection

import zmq

from realm.errors import ConfigError, RunError
from realm.wire.curve_keys import CurveKeys

_USER = b"realm"
# ZAP's status codes; after the last one the client tries again
_WELCOME, _WRONG, _CLOSING = (b"200", b"OK"), (b"400", b"not allowed"), (b"300", b"this server is closing")
# strangers get this long for a handshake: it also bounds what they can make the server hold
HANDSHAKE_MS = 5000


def guard(server: zmq.Socket[bytes], password: str, keys: CurveKeys | None, refuse: Callable[[str], None]) -> str:
    """Let in only peers with an allowed key, or without keys those with the password. Call it before `bind`.

    refuse: a bound method that gets the IP address of each peer with a wrong key or password, in the door's thread.
    Returns the name under which `forget` takes it back.
    """
    domain = secrets.token_hex(8)
    server.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    server.setsockopt_string(zmq.ZAP_DOMAIN, domain)
    server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else CURVE lets all in when nobody answers for the door
    if keys is None:
        server.setsockopt(zmq.PLAIN_SERVER, 1)
        allowed: Collection[tuple[bytes, ...]] = {(b"PLAIN", _USER, password.encode())}
    else:
        server.setsockopt(zmq.CURVE_SERVER, 1)
        server.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        allowed = {(b"CURVE", key) for key in keys.allowed}
    _doorkeeper().servers[domain] = allowed, weakref.WeakMethod(refuse)
    return domain


def forget(domain: str) -> None:
    """The server closes: nobody may connect to it any more."""
    _doorkeeper().servers.pop(domain, None)


def introduce(client: zmq.Socket[bytes], password: str, keys: CurveKeys | None) -> None:
    """Prepare a client for such a server. Call it before `connect`."""
    if keys is None:
        client.setsockopt(zmq.PLAIN_USERNAME, _USER)
        client.setsockopt(zmq.PLAIN_PASSWORD, password.encode())
    else:
        client.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
        client.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        client.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def refusal(address: str, by_zap: bool, keys: CurveKeys | None) -> ConfigError | RunError:
    """The error of a client that was turned away; ZeroMQ does not try again then.

    by_zap: the server did not accept its key or password; otherwise the handshake did not get that far.
    """
    if by_zap and keys is None:
        return RunError(f"{address}: refused this run's id; by now it is the port of another run")
    if by_zap and keys is not None:
        return ConfigError(
            f"{address}: the key of this machine is not allowed there; copy {keys.folder}/public.key into the folder "
            "allowed/ of that machine's keys, and start the run there again"
        )
    if keys is None:
        return ConfigError(f"{address}: wants a key, and keys_dir names none here; or it is no server of Realm")
    return ConfigError(f"{address}: has no keys, unlike keys_dir = {keys.folder} here; or it is no server of Realm")


class _Doorkeeper:
    """Judges new connections for all servers of a ZeroMQ context: its ZAP handler, in one thread.

    servers: ZAP domain -> mechanism and credentials of each peer that may connect, and who gets the others' addresses.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.context = context
        self.servers: dict[str, tuple[Collection[tuple[bytes, ...]], weakref.WeakMethod[Callable[[str], None]]]] = {}
        door: zmq.Socket[bytes] = context.socket(zmq.REP)
        door.setsockopt(zmq.LINGER, 0)
        door.bind("inproc://zeromq.zap.01")
        threading.Thread(target=self._serve, args=(door,), name="doorkeeper", daemon=True).start()

    def _serve(self, door: zmq.Socket[bytes]) -> None:
        """Answer ZeroMQ's I/O thread, which asks once per handshake."""
        while True:
            try:
                version, request, domain, address, _, mechanism, *credentials = door.recv_multipart()
                allowed, method = self.servers.get(domain.decode(), ((), None))
                refuse = method() if method is not None else None
                good = refuse is not None and (mechanism, *credentials) in allowed
                status = _WELCOME if good else _WRONG if refuse else _CLOSING
                door.send_multipart([version, request, *status, b"", b""])
            except zmq.ContextTerminated:
                door.close()
                return
            if not good and refuse is not None:
                refuse(address.decode())


_door: _Doorkeeper | None = None
_door_lock = threading.Lock()


def _doorkeeper() -> _Doorkeeper:
    """The doorkeeper of this process's ZeroMQ context; ZeroMQ takes one for each context."""
    global _door
    with _door_lock:
        if _door is None or _door.context is not zmq.Context.instance():
            _door = _Doorkeeper(zmq.Context.instance())
        return _door
