"""`launch/hosts.py` and `launch/host.py` in one process: who may join, what is told, who counts as lost."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from realm.config.keys import AppConfig
from realm.config.load import RunConfig
from realm.errors import ConfigError
from realm.launch.child import ChildArgs
from realm.launch.host import AGENT, LOG_BYTES, HostInfo, _hash, this_host
from realm.launch.hosts import LOST_AFTER_S, Hosts
from realm.wire.codec import Codec, Message, WireError
from realm.wire.control import CONTROL_MAX_BYTES
from realm.wire.curve_keys import CurveKeys, load_keys, make_keys
from realm.wire.sockets import Client

ALGO = "tests.counting"
HERE = this_host(ALGO)
PATIENCE_S = 60.0


@pytest.fixture
def keys(tmp_path: Path) -> CurveKeys:
    make_keys(tmp_path / "keys")
    loaded = load_keys(str(tmp_path / "keys"))
    assert loaded is not None
    return loaded


@pytest.fixture
def hosts(keys: CurveKeys) -> Iterator[Hosts]:
    """For one host."""
    app = SimpleNamespace(hosts=1, bind_host="127.0.0.1", base_port=0, algo=ALGO)  # others reach a real one
    one = Hosts(cast(AppConfig, app), keys, by_hand=True)
    yield one
    one.server.close()


class Agent:
    """What `realm host` says, word by word."""

    def __init__(self, hosts: Hosts, keys: CurveKeys, number: int = 1, run_id: str = "") -> None:
        codec = Codec(run_id or hosts.run_id, "", AGENT, number, CONTROL_MAX_BYTES)
        self.client, self._hosts = Client(codec, hosts.server.address, keys), hosts

    def serve(self) -> None:
        while (received := self._hosts.server.receive()) is not None:
            try:
                self._hosts.take(*received)
            except WireError as error:
                self._hosts.server.reject(received[0], error)

    def answer(self, seq: int) -> Message:
        return self.client.wait(seq, self.serve)

    def say(self, kind: str, **meta: Any) -> Message:
        return self.answer(self.client.ask(kind, meta))

    def report(self, **meta: Any) -> Message:
        return self.say("report", **told(**meta))

    def hello(self, info: HostInfo = HERE) -> int:
        """Its question."""
        traffic = self._hosts.server.traffic
        before = traffic.messages_in
        seq = self.client.ask("hello", dataclasses.asdict(info))
        until(lambda: (self.client.collect(), self.serve(), traffic.messages_in > before)[2])
        return seq


def told(**meta: Any) -> dict[str, Any]:
    """What a report says."""
    return {"ended": [], "log": None, "warnings": [], "left": "", **meta}


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def began(hosts: Hosts, folder: Path) -> None:
    (folder / "log").mkdir()
    hosts.begin(RunConfig(AppConfig(algo=ALGO), {}, {}, {}), folder)


def order(which: tuple[str, int, int], folder: Path) -> ChildArgs:
    return ChildArgs(*which, folder, "", "", 0, "schema", 1000)


def test_all_have_come(hosts: Hosts, keys: CurveKeys, tmp_path: Path) -> None:
    """They get the configuration when the run has begun."""
    agent = Agent(hosts, keys)
    question = agent.hello()
    assert hosts.gather(5.0) == (HERE.cores,)
    began(hosts, tmp_path)
    welcome = agent.answer(question)
    text = welcome.text("config")
    assert welcome.kind == "welcome"
    assert 'bind_host = "127.0.0.1"' in text
    assert 'keys_dir = ""' in text
    assert 'predict_local_or_remote = "local"' in text
    assert agent.report().meta == {"roles": [], "dump": []}
    handle = hosts.place(1, order(("aisrv", 0, 1), tmp_path))
    wanted = {"roles": [["aisrv", 0, 1, 0, "schema", 1000]], "dump": []}
    assert [agent.report().meta for _ in range(2)] == [wanted, wanted]
    handle.write_stacks()
    assert [agent.report().meta["dump"] for _ in range(2)] == [[["aisrv", 0, 1]], []]
    handle.kill()
    assert agent.report().meta == {"roles": [], "dump": []}
    assert handle.exit_code is None
    for _ in range(2):  # the answer was lost
        agent.report(ended=[["aisrv", 0, 1, -9]])
    assert handle.exit_code == -9


@pytest.mark.parametrize("what", ["Python", "torch", "Realm", f"the package {ALGO}"])
def test_another_version_is_refused_by_name(hosts: Hosts, keys: CurveKeys, what: str) -> None:
    agent = Agent(hosts, keys)
    other = dataclasses.replace(HERE, name="odd", versions={**HERE.versions, what: "0.0"})
    refused = agent.answer(agent.hello(other))
    assert refused.kind == "end"
    assert refused.text("cause").startswith(f"odd: {what} is 0.0 there, and {HERE.versions[what]} here")
    with pytest.raises(ConfigError, match=f"odd: {what} is"):
        hosts.gather(5.0)


def test_too_few(hosts: Hosts) -> None:
    with pytest.raises(ConfigError, match=r"hosts = 1, and within start_timeout_s = 0\.1 s there came none; call"):
        hosts.gather(0.1)


def test_who_leaves_while_it_waits_is_no_host(keys: CurveKeys) -> None:
    app = SimpleNamespace(hosts=2, bind_host="127.0.0.1", base_port=0, algo=ALGO)
    hosts = Hosts(cast(AppConfig, app), keys, by_hand=True)
    left, *others = (Agent(hosts, keys, number) for number in range(1, 5))
    left.hello()
    left.client.close()
    with pytest.raises(ConfigError, match=r"hosts = 2, .*there came none"):
        hosts.gather(0.3)
    for agent in others:  # three at once: one too many ends no start
        agent.client.ask("hello", dataclasses.asdict(HERE))
    until(lambda: all(agent.client.collect() is None and agent.client.traffic.messages_out for agent in others))
    assert len(hosts.gather(5.0)) == 2
    assert [host.info.name for host in hosts.living.values()] == [HERE.name, f"{HERE.name}-2"]
    hosts.server.close()


def test_hidden_files_of_an_editor_are_no_source(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("x = 1\n")
    alone = _hash(tmp_path)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "agent-checkpoint.py").write_text("x = 2\n")
    (tmp_path / ".#agent.py").symlink_to("me@here.123")
    assert _hash(tmp_path) == alone != "missing"


def test_one_too_many_is_refused_unless_another_is_lost(hosts: Hosts, keys: CurveKeys, tmp_path: Path) -> None:
    first, second, third = (Agent(hosts, keys, number) for number in (1, 2, 3))
    first.hello()
    began(hosts, tmp_path)
    assert hosts.turn(time.monotonic()) == ({}, [])
    refused = second.answer(second.hello())
    assert refused.text("cause").endswith(f"is one too many: this run has 1 ({HERE.name})")
    assert first.report().kind == "wanted"
    hosts.living[1].heard_at -= 200
    lost, came = hosts.turn(time.monotonic())
    assert (list(lost), came) == ([1], [])
    assert third.answer(third.hello()).kind == "welcome"
    assert hosts.turn(time.monotonic()) == ({}, [1])
    assert first.report().kind == "end"  # it comes back from a cable that was cut


def test_silence_is_a_loss_unless_the_supervisor_itself_stood_still(hosts: Hosts, keys: CurveKeys) -> None:
    Agent(hosts, keys).hello()
    now = time.monotonic()
    assert hosts.turn(now) == ({}, [1])
    assert hosts.turn(now + 60) == ({}, [])
    for later in range(61, 60 + int(LOST_AFTER_S), 3):
        assert hosts.turn(now + later) == ({}, [])
    ((slot, why),) = hosts.turn(now + 62 + LOST_AFTER_S)[0].items()
    assert slot == 1
    assert why.startswith("silent for 1")


def test_who_leaves_is_lost_at_once(hosts: Hosts, keys: CurveKeys) -> None:
    agent = Agent(hosts, keys)
    agent.hello()
    agent.report(left="SIGTERM received")
    assert hosts.turn(time.monotonic()) == ({1: "SIGTERM received"}, [1])


def test_logs_go_into_the_runs_folder_once(hosts: Hosts, keys: CurveKeys, tmp_path: Path) -> None:
    agent, log = Agent(hosts, keys), tmp_path / "log" / "aisrv-0.log"
    agent.hello()
    began(hosts, tmp_path)
    hosts.place(1, order(("aisrv", 0, 1), tmp_path))
    for text in ("one\n", "two\n"):
        agent.report(log=["aisrv-0", text])
    hosts.take(b"peer", Message("report", agent.client._next_seq - 1, told(log=["aisrv-0", "two\n"]), {}, AGENT, 1))
    agent.report(log=["aisrv-0", "x" * 10 * LOG_BYTES])
    assert log.read_text()[:9] == "one\ntwo\nx"
    assert len(log.read_text()) == 8 + 2 * LOG_BYTES
    for label in ("../run.json", "learner-0", "/etc/passwd"):
        agent.client.ask("report", told(log=[label, "x"]))
    until(lambda: (agent.serve(), sum(hosts.server.traffic.bad_frames.values()) == 3)[1])
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["aisrv-0.log"]


def test_an_allowed_key_with_another_runs_id_is_dropped_and_counted(hosts: Hosts, keys: CurveKeys) -> None:
    agent = Agent(hosts, keys, run_id="0123456789abcdef")
    agent.client.ask("hello", dataclasses.asdict(HERE))
    until(lambda: (agent.client.collect(), agent.serve(), sum(hosts.server.traffic.bad_frames.values()) == 1)[2])
    assert hosts.living == {}


def test_the_end_waits_for_all(hosts: Hosts, keys: CurveKeys, tmp_path: Path) -> None:
    agent = Agent(hosts, keys)
    agent.hello()
    began(hosts, tmp_path)
    agent.report()
    ending = threading.Thread(target=hosts.end)
    ending.start()
    assert agent.client.wait(agent.client.ask("report", told()), lambda: None).kind == "end"
    assert ending.is_alive()
    agent.client.ask("report", told(left="end"))  # the answer may be lost with the connection
    until(lambda: (agent.client.collect(), not ending.is_alive())[1])
    assert hosts.living[1].left == "end"
