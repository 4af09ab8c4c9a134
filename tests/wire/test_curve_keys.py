"""Keys for sockets that leave the loopback: who may connect, and what each side says when not."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from realm.errors import ConfigError, RunError
from realm.wire import door
from realm.wire.codec import Codec, Message
from realm.wire.curve_keys import CurveKeys, load_keys, make_keys
from realm.wire.sockets import Client, Server, wait_any
from tests.cluster import Run
from tests.console import ROOT, realm

CODEC = Codec("the run's id", "abcd1234", "aisrv-0", 1, 4 << 20)
NATIVE = "buffer_backend=native"


def own_address() -> str:
    """The address that this machine has for others; "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # sends nothing: the system only chooses where it would go out
        except OSError:
            return ""
        return str(probe.getsockname()[0])


NEEDS_ADDRESS = pytest.mark.skipif(not own_address(), reason="this machine has the loopback alone")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def here(tmp_path: Path) -> CurveKeys:
    """The keys of the machine with the servers; it lets in `there`."""
    make_keys(tmp_path / "here")
    make_keys(tmp_path / "there")
    (tmp_path / "here/allowed/there.key").write_bytes((tmp_path / "there/public.key").read_bytes())
    (tmp_path / "there/server.key").write_bytes((tmp_path / "here/public.key").read_bytes())
    return loaded(tmp_path / "here")


def loaded(folder: Path) -> CurveKeys:
    keys = load_keys(str(folder), joins=True)
    assert keys is not None
    return keys


@pytest.fixture
def server(here: CurveKeys) -> Iterator[Server]:
    """A server with keys that answers everything, at an address that other machines reach where there is one."""
    server, over = Server(CODEC, own_address() or "127.0.0.1", keys=here), threading.Event()

    def answer() -> None:
        while not over.is_set():
            wait_any([server], 20)
            while (received := server.receive()) is not None:
                server.send(received[0], Message("answer", received[1].seq, received[1].meta, received[1].arrays))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield server
    over.set()
    thread.join()
    server.close()


def test_a_machine_that_leads_trusts_its_own_servers(tmp_path: Path, here: CurveKeys) -> None:
    """Also if it was a host of another's run, and so has a server.key."""
    leading = load_keys(str(tmp_path / "there"))
    assert leading is not None
    assert leading.server == leading.public != loaded(tmp_path / "there").server == here.public


def ask(address: str, keys: CurveKeys | None, codec: Codec = CODEC) -> Message:
    """One question over a connection of its own. Raises what the client raises."""
    client = Client(codec, address, keys)
    deadline = time.monotonic() + 60

    def check() -> None:
        assert time.monotonic() < deadline, "neither an answer nor an error"

    try:
        return client.wait(client.ask("question", {"n": 1}, {"x": np.arange(200_000)}), check)
    finally:
        client.close()


# --- the files


def test_the_command_makes_keys_and_never_overwrites_them(tmp_path: Path) -> None:
    code, text, _ = realm("keys", "new", tmp_path / "mine")
    assert code == 0
    assert "secret.key" in text
    assert "allowed/NAME.key" in text
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"secret.key", "public.key", "allowed"}
    assert (tmp_path / "mine/secret.key").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "mine/secret.key").read_bytes()
    code, text, error = realm("keys", "new", tmp_path / "mine")
    assert (code, text, error.count("\n")) == (2, "", 1)
    assert "exists, and keys are never overwritten" in error
    assert (tmp_path / "mine/secret.key").read_bytes() == before
    keys = loaded(tmp_path / "mine")
    assert keys.server == keys.public
    assert keys.allowed == {keys.public}
    assert keys.secret.hex() not in repr(keys)


def test_a_folder_of_keys(tmp_path: Path, here: CurveKeys) -> None:
    there = loaded(tmp_path / "there")
    (tmp_path / "here" / "allowed" / "of last year").mkdir()
    assert here.allowed == loaded(tmp_path / "here").allowed == {here.public, there.public}
    assert there.server == here.public
    assert load_keys("") is None


WRONG = {
    "a readable secret": ("here/secret.key", 0o640, None, "other users .* can read it .mode 0640.; call `chmod 600 "),
    "an allowed folder for all": ("here/allowed", 0o777, None, "can change it .mode 0777.; call `chmod go-w "),
    "a folder for all": ("here", 0o770, None, "can change it"),
    "a server key for all": ("there/server.key", 0o666, None, "can change it"),
    "a secret key that was given away": ("here/allowed/there.key", 0o600, "secret", "a secret key; .* never leaves"),
    "no key": ("here/allowed/there.key", 0o644, "-----BEGIN", "holds no key; it must be a public key that"),
    "half a key": ("here/secret.key", 0o600, "realm-secret-key 12", "holds no key; it must be a secret key that"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_one_sentence(tmp_path: Path, here: CurveKeys, what: str) -> None:
    name, mode, content, sentence = WRONG[what]
    path = tmp_path / name
    if content:
        path.write_text((tmp_path / "there/secret.key").read_text() if content == "secret" else content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"^{path}: .*{sentence}") as caught:
        load_keys(str(tmp_path / name.partition("/")[0]), joins=True)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_of_another_user_is_refused(tmp_path: Path, here: CurveKeys) -> None:
    os.chown(tmp_path / "here/secret.key", 12345, -1)
    with pytest.raises(ConfigError, match=r"secret.key: belongs to the user with the id 12345; "):
        load_keys(here.folder)


def test_a_folder_without_keys_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no secret.key; `.*realm keys new .*/none` makes"):
        load_keys(str(tmp_path / "none"))


# --- the sockets


def test_a_machine_with_an_allowed_key_passes(tmp_path: Path, here: CurveKeys, server: Server) -> None:
    for keys in (here, loaded(tmp_path / "there")):
        answer = ask(server.address, keys)
        assert (answer.arrays["x"] == np.arange(200_000)).all()
    assert server.traffic.refused_peers == 0


def test_an_unknown_key_is_a_sentence_on_both_sides(
    tmp_path: Path, here: CurveKeys, server: Server, logged: list[str]
) -> None:
    make_keys(tmp_path / "stranger")
    stranger = dataclasses.replace(loaded(tmp_path / "stranger"), server=here.public)
    honest = loaded(tmp_path / "there")
    for count in (1, 2):
        with pytest.raises(ConfigError, match=r"the key of this machine is not allowed there; copy .*stranger/public"):
            ask(server.address, stranger)
        until(lambda count=count: server.traffic.refused_peers == count)
        assert ask(server.address, honest).meta == {"n": 1}
    said = [line for line in logged if "turned away" in line]
    host = server.address.removeprefix("tcp://").partition(":")[0]
    assert said == [f"WARNING {server.address}: turned away a peer at {host} with an unknown key (1 so far)"]
    assert server.traffic.messages_in == 2


def test_without_a_key_nobody_gets_in(here: CurveKeys, server: Server) -> None:
    with pytest.raises(ConfigError, match="wants a key, and keys_dir names none here"):
        ask(server.address, None)
    raw: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    raw.setsockopt(zmq.LINGER, 0)
    events = raw.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    raw.connect(server.address)
    assert events.poll(60_000)
    raw.disable_monitor()
    raw.close()
    assert ask(server.address, here).meta == {"n": 1}
    assert server.traffic.messages_in == 1


def test_an_allowed_key_alone_does_not_say_the_runs_id(here: CurveKeys, server: Server) -> None:
    client = Client(dataclasses.replace(CODEC, run_id="another run"), server.address, here)
    client.ask("question", {})
    until(lambda: (client.collect(), server.traffic.bad_frames)[1])
    assert next(iter(server.traffic.bad_frames)).endswith("a message of another run")
    client.close()


def test_a_server_with_another_key_than_expected(
    tmp_path: Path, here: CurveKeys, server: Server, logged: list[str]
) -> None:
    """It may be another machine at this address: nothing is said to it."""
    client = Client(CODEC, server.address, dataclasses.replace(here, server=loaded(tmp_path / "there").public))
    client.ask("question", {})
    until(lambda: (client.collect(), logged)[1])
    assert "breaks off every connection; if it is the right machine, its public.key is not the one in" in logged[0]
    client.close()


def test_keys_for_a_server_without(tmp_path: Path, here: CurveKeys) -> None:
    server = Server(CODEC, "127.0.0.1")
    with pytest.raises(ConfigError, match="has no keys, unlike keys_dir = "):
        ask(server.address, here)
    with pytest.raises(RunError, match="refused this run's id; by now it is the port of another run"):
        ask(server.address, None, dataclasses.replace(CODEC, run_id="another run"))
    server.close()


def test_strangers_that_say_nothing_are_thrown_out(here: CurveKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds a descriptor, and as much memory as it has sent: not for long."""
    monkeypatch.setattr(door, "HANDSHAKE_MS", 300)
    server = Server(CODEC, "127.0.0.1", keys=here)
    port = int(server.address.rpartition(":")[2])
    before = psutil.Process().num_fds()
    strangers = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(50)]
    for stranger in strangers:
        with suppress(ConnectionError):  # thrown out by now
            stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15) + b"\x00" + bytes(31))
            stranger.sendall(b"\x02" + (3 << 20).to_bytes(8, "big") + bytes(1000))  # the head of 3 MB
    for stranger in strangers:
        with suppress(ConnectionError):
            while stranger.recv(4096):
                pass
        stranger.close()
    until(lambda: psutil.Process().num_fds() <= before)
    server.close()


OTHER = """
import sys
import numpy as np
from realm.wire.codec import Codec
from realm.wire.curve_keys import load_keys
from realm.wire.sockets import Client
keys = load_keys(sys.argv[2], joins=True)
client = Client(Codec("the run's id", "abcd1234", "aisrv-0", 1, 4 << 20), sys.argv[1], keys)
print(client.wait(client.ask("question", {"n": 7}, {"x": np.arange(3)}), lambda: None).meta)
"""


@NEEDS_ADDRESS
@pytest.mark.system
def test_another_process_with_the_keys_connects_to_this_machines_address(tmp_path: Path, server: Server) -> None:
    assert not server.address.startswith("tcp://127.")
    command = [sys.executable, "-c", OTHER, server.address, str(tmp_path / "there")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'n': 7}\n", done.stderr


# --- whole runs


@NEEDS_ADDRESS
@pytest.mark.system
@pytest.mark.slow
def test_a_run_with_keys_at_this_machines_address(tmp_path: Path, here: CurveKeys) -> None:
    address = own_address()
    with Run(tmp_path, NATIVE, f"bind_host={address}", f"keys_dir={here.folder}", "restart_budget=2") as run:
        run.wait_running()
        run.wait_trained(20)
        addresses = [run.file()["control"], *(role["address"] for role in run.file()["roles"].values())]
        assert all(one.startswith(f"tcp://{address}:") for one in addresses if one)
        code, text, _ = realm("status", "--log-dir", tmp_path / "runs")
        assert code == 0
        assert re.search(r"learner-0 +ready", text), text
        with pytest.raises(ConfigError, match="wants a key"):
            ask(run.file()["control"], None)
        os.kill(run.file()["roles"]["buffer-0"]["pid"], 9)
        epoch, update = run.checkpoints()[-1]
        run.wait_trained(update + 20, epoch)
        assert run.interrupt() == 0, run.text()
        written = b"".join(path.read_bytes() for path in run.dir.rglob("*") if path.is_file())
        assert here.secret not in written
        assert here.secret.hex().encode() not in written


@pytest.mark.parametrize(
    ("rights", "settings", "sentence"),
    [
        (0o604, "bind_host={address} keys_dir={keys}", "other users of this machine can read it"),
        (0o600, "bind_host=203.0.113.7 keys_dir={keys}", "it must be an address of this machine"),
    ],
)
@pytest.mark.system
def test_what_is_not_safe_does_not_start(
    tmp_path: Path, here: CurveKeys, rights: int, settings: str, sentence: str
) -> None:
    (Path(here.folder) / "secret.key").chmod(rights)
    overrides = settings.format(address=own_address() or "10.0.0.1", keys=here.folder).split()
    with Run(tmp_path, NATIVE, *overrides) as run:
        assert run.finish() == 2
        text = run.output.read_text()
        assert len(text.strip().splitlines()) == 1, text
        assert sentence in text
        assert not run.dir.exists()
