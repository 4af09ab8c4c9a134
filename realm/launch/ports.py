"""The ports of a run: chooses them and checks that they are free."""

from __future__ import annotations

import socket

import psutil

from realm.config.keys import AppConfig
from realm.errors import ConfigError
from realm.roles.table import SERVERS


def fixed_ports(app: AppConfig) -> dict[str, int]:
    """Server role -> the port to bind; empty if any free ports will do."""
    return {name: app.base_port + offset for offset, name in enumerate(sorted(SERVERS))} if app.base_port else {}


def check_ports(app: AppConfig) -> None:
    """Raise ConfigError, naming port and owner, if a port of the run is taken."""
    for role, port in fixed_ports(app).items():
        with socket.socket() as probe:
            # as ZeroMQ binds: a port that was in use a moment ago counts as free, a port with a listener does not
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((app.bind_host, port))
            except OSError as error:
                raise ConfigError(
                    f"port {port} for the {role} (base_port = {app.base_port}) cannot be used: {error.strerror}"
                    f"{_owner(port)}; choose a base_port with {len(SERVERS)} free ports, or 0 for any free ports"
                ) from error


def _owner(port: int) -> str:
    """` (pid 12, name)` of the process that listens on a port, or "" if this user may not see it."""
    try:
        for listener in psutil.net_connections("tcp"):
            listens = listener.status == psutil.CONN_LISTEN
            if listens and listener.laddr and listener.laddr.port == port and listener.pid:
                return f" (pid {listener.pid}, {psutil.Process(listener.pid).name()})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return ""
    return ""
