"""The ports of a run: which ones it wants, and who has them already."""

from __future__ import annotations

import socket

import psutil

from realm.config.keys import AppConfig
from realm.errors import ConfigError
from realm.roles.table import SERVERS


def fixed_ports(app: AppConfig) -> dict[str, int]:
    """Server role -> the port it is to bind; empty if any free ones will do."""
    return {name: app.base_port + offset for offset, name in enumerate(sorted(SERVERS))} if app.base_port else {}


def check_ports(app: AppConfig) -> None:
    """Raise ConfigError, naming port and owner, if a port that the run wants is taken."""
    for role, port in fixed_ports(app).items():
        with socket.socket() as probe:
            # as ZeroMQ binds: a port that was in use a moment ago is free, one that somebody listens on is not
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((app.bind_host, port))
            except OSError as error:
                raise ConfigError(
                    f"port {port} for the {role} (base_port = {app.base_port}) cannot be used: {error.strerror}"
                    f"{_owner(port)}; choose a base_port with {len(SERVERS)} free ports, or 0 for any free ones"
                ) from error


def _owner(port: int) -> str:
    """` (pid 12, name)` of the process that listens on a port, as far as this user may know it."""
    try:
        for one in psutil.net_connections("tcp"):
            if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN and one.pid:
                return f" (pid {one.pid}, {psutil.Process(one.pid).name()})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return ""
    return ""
