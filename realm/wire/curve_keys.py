"""The keys of sockets that other machines can reach: the files of one folder, which the key `keys_dir` names.

    secret.key   this machine's secret key, for its owner's eyes only
    public.key   its public half: other machines get a copy
    allowed/     public keys of the machines that may connect here, one file each
    server.key   public key of the machine that leads, where this one joins a run of another; without it, its own

`realm keys new` makes them, `realm start` reads them once (`launch/start.py`), and the supervisor hands them to every
role. They are CURVE keys; `door.py` says what they do.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from realm.errors import ConfigError

_FORM = re.compile(r"realm-(public|secret)-key ([0-9a-f]{64})\n?")
_COMMAND = ".venv/bin/python -m realm keys new"
_READ, _WRITE = 0o077, 0o022  # rights that nobody but the owner may have to a secret file, and to any other


@dataclass(frozen=True)
class CurveKeys:
    """What one machine knows: its own pair, the servers' public key and the keys it lets in; 32 bytes each."""

    folder: str
    secret: bytes = field(repr=False)
    public: bytes
    server: bytes
    allowed: frozenset[bytes]


def load_keys(folder: str, joins: bool = False) -> CurveKeys | None:
    """Read a folder of keys; None for "". Raises ConfigError, also if others could read or change them.

    joins: this machine runs workers of another's run; else its roles connect to its own servers.
    """
    if not folder:
        return None
    path = Path(folder)
    try:
        if not (path / "secret.key").exists():
            raise ConfigError(f"keys_dir = {folder}: has no secret.key; `{_COMMAND} {folder}` makes a pair of keys")
        _check_rights(path, path.stat(), _WRITE)  # who can write to the folder can put keys into it
        secret = _read(path / "secret.key", "secret")
        public = z85.decode(zmq.curve_public(z85.encode(secret)))
        server = _read(path / "server.key", "public") if joins and (path / "server.key").exists() else public
        allowed = {public}
        if (path / "allowed").exists():
            _check_rights(path / "allowed", (path / "allowed").stat(), _WRITE)
            files = [file for file in (path / "allowed").iterdir() if not (file.name.startswith(".") or file.is_dir())]
            allowed |= {_read(file, "public") for file in sorted(files)}
    except OSError as error:
        raise ConfigError(f"keys_dir = {folder}: {error.strerror}: {error.filename}") from error
    return CurveKeys(folder, secret, public, server, frozenset(allowed))


def make_keys(folder: Path) -> None:
    """Write a new pair and an empty `allowed/`. Raises ConfigError if the folder has keys, or cannot be written."""
    public, secret = map(z85.decode, zmq.curve_keypair())
    made: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "allowed").mkdir(mode=0o700, exist_ok=True)
        for kind, key, mode in (("secret", secret, 0o600), ("public", public, 0o644)):
            path = folder / f"{kind}.key"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made.append(path)
            with open(descriptor, "w") as file:
                file.write(f"realm-{kind}-key {key.hex()}\n")
    except OSError as error:
        for path in made:
            with suppress(OSError):
                path.unlink()  # half a pair is of no use
        if isinstance(error, FileExistsError) and folder.is_dir():
            raise ConfigError(
                f"{error.filename}: exists, and keys are never overwritten; choose another folder, or remove this pair "
                "first: other machines then need the new public.key"
            ) from error
        raise ConfigError(f"{error.filename or folder}: {error.strerror}; the keys cannot be written") from error


def _read(path: Path, kind: str) -> bytes:
    """The key in a file, after a look at the file's owner and rights."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a named pipe must not hold the start
        status = os.fstat(file.fileno())
        content = file.read(200) if stat.S_ISREG(status.st_mode) else b""
    _check_rights(path, status, _READ if kind == "secret" else _WRITE)
    match = _FORM.fullmatch(content.decode("ascii", "replace"))
    if match is None:
        raise ConfigError(f"{path}: holds no key; it must be a {kind} key that `{_COMMAND}` made")
    if match[1] != kind:
        stays = "; a secret key never leaves its machine" if match[1] == "secret" else ""
        raise ConfigError(f"{path}: holds a {match[1]} key; it must be a {kind} key{stays}")
    return bytes.fromhex(match[2])


def _check_rights(path: Path, status: os.stat_result, forbidden: int) -> None:
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"{path}: belongs to the user with the id {status.st_uid}; it must belong to the one who starts the run "
            f"({os.geteuid()})"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & forbidden:
        what, remedy = ("read", "chmod 600") if forbidden == _READ else ("change", "chmod go-w")
        raise ConfigError(
            f"{path}: other users of this machine can {what} it (mode {mode:04o}); call `{remedy} {path}`"
            + ("; if somebody has read it, make a new pair" if forbidden == _READ else "")
        )
