"""The address and the ports of a run: chooses the ports and checks that all can be used."""

from __future__ import annotations

import socket
from contextlib import suppress

import psutil

from realm.config.keys import AppConfig
from realm.errors import ConfigError
from realm.roles.table import ROLES

CONTROL = "supervisor"
"""What `fixed_ports` calls the server of the control channel."""


def fixed_ports(app: AppConfig) -> dict[str, int]:
    """Who serves -> the port to bind; 0 if any free ones will do."""
    names = [*sorted(name for name, row in ROLES.items() if row.answers), CONTROL]
    return {name: app.base_port + offset if app.base_port else 0 for offset, name in enumerate(names)}


def check_ports(app: AppConfig) -> None:
    """Raise ConfigError if the address is not this machine's, or, naming port and owner, if a port is taken."""
    with socket.socket() as probe:
        try:
            probe.bind((app.bind_host, 0))
        except OSError as error:
            raise ConfigError(
                f"bind_host = {app.bind_host} cannot be used: {error.strerror}; it must be an address of this machine"
            ) from error
    ports = fixed_ports(app)
    for role, port in ports.items() if app.base_port else ():
        with socket.socket() as probe:
            # as ZeroMQ binds: a port that was in use a moment ago counts as free, a port with a listener does not
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((app.bind_host, port))
            except OSError as error:
                raise ConfigError(
                    f"port {port} for the {role} (base_port = {app.base_port}) cannot be used: {error.strerror}"
                    f"{_owner(port)}; choose a base_port with {len(ports)} free ports, or 0 for any free ports"
                ) from error


def _owner(port: int) -> str:
    """` (pid 12, name)` of the process that listens on a port, or "" if this user may not see it."""
    with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        for listener in psutil.net_connections("tcp"):
            listens = listener.status == psutil.CONN_LISTEN
            if listens and listener.laddr and listener.laddr.port == port and listener.pid:
                return f" (pid {listener.pid}, {psutil.Process(listener.pid).name()})"
    return ""
