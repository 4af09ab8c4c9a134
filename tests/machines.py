"""Other machines for the tests: namespaces of network, processes, mounts and host name, joined by a bridge.

Only root may make them, and the command `ip` is needed; `lan` skips a test without.
"""

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from unittest import SkipTest

from tests.cluster import PATIENCE_S, ROOT, Run


def _unused_net():
    """10.213.N, of its own: tests may run at once, and the bridge of a killed one stays."""
    there = (
        subprocess.run(["ip", "-4", "-o", "address"], capture_output=True, text=True) if shutil.which("ip") else None
    )
    nets = (f"10.213.{10 + (os.getpid() + more) % 200}" for more in range(200))
    return next(net for net in nets if there is None or f" {net}." not in there.stdout)


NET = _unused_net()


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)


class Machine:
    """One of them; its first process keeps its namespaces."""

    def __init__(self, number, keys):
        self.name, self.address, self.keys = f"host{number}", f"{NET}.{number + 1}", keys
        self.space, self.cable = f"realm-{os.getpid()}-{number}", f"rl{os.getpid() % 100000}n{number}"
        self.programs, self.variables = [], {}
        ip("netns", "add", self.space)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("link", "set", self.cable, "master", bridge(), "up")
        ip("-n", self.space, "address", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.space, "link", "set", "eth0", "up")
        ip("-n", self.space, "link", "set", "lo", "up")
        self._holder = subprocess.Popen(
            ["ip", "netns", "exec", self.space, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts",
             "sh", "-c", f"hostname {self.name}; exec sleep 100000"],
        )  # fmt: skip
        until(lambda: self.pids() and b"sleep" in _command(self.pids()[0]), "the machine has its first process")

    def pids(self):
        """Its processes, as this machine numbers them, its first one first."""
        children = subprocess.run(["ps", "-eo", "pid=,ppid=,pidns="], capture_output=True, text=True).stdout.split("\n")
        rows = [line.split() for line in children if line.strip()]
        first = [int(pid) for pid, parent, _ in rows if parent == str(self._holder.pid)]
        if not first:
            return []
        space = next((one for pid, _, one in rows if int(pid) == first[0]), None)
        return first + [int(pid) for pid, _, one in rows if one == space and int(pid) != first[0]]

    def start(self, command, out, stdin="", cwd=ROOT, **variables):
        """Start a program there."""
        enter = ["nsenter", "-t", str(self.pids()[0]), "-n", "-p", "-m", "-u", "--"]
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd)]  # a process that enters stands in /
        program = subprocess.Popen(
            [*enter, *there, *command], stdin=subprocess.PIPE, stdout=out.open("ab"), stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "REALM_KEYS_DIR": str(self.keys),
                 **self.variables, **variables},
        )  # fmt: skip
        with suppress(BrokenPipeError):
            program.stdin.write(stdin.encode())
            program.stdin.close()
        self.programs.append(program)
        return program

    def join(self, line, out, **more):
        return self.start([sys.executable, "-m", "realm", "host"], out, f"{line}\n", **more)

    def cut(self):
        """Pull its cable."""
        ip("link", "set", self.cable, "down")

    def mend(self):
        ip("link", "set", self.cable, "up")

    def lose(self, lost, deaf=False):
        """Whether what it sends is lost, or what is sent to it: by a wrong address on the cable, which needs no module
        of the kernel."""
        where, to, cable = ([], self.address, bridge()) if deaf else (["-n", self.space], f"{NET}.1", "eth0")
        if lost:
            wrong = ["lladdr", "02:00:00:00:00:01", "nud", "permanent"]
            ip(*where, "neigh", "replace", to, "dev", cable, *wrong)
        else:
            ip(*where, "neigh", "delete", to, "dev", cable)

    @contextmanager
    def late(self, seconds):
        """For this block each frame comes so much later, both ways. Kernels without `tc netem` have this: its cable
        leaves the bridge and ends here, and so does one that goes on to it."""
        end, far = f"{self.cable}a", f"{self.cable}b"
        ip("link", "add", end, "type", "veth", "peer", "name", far)
        ip("link", "set", self.cable, "nomaster")
        ip("link", "set", far, "master", bridge(), "up")
        ip("link", "set", end, "up")
        sockets, over = [_frames(self.cable), _frames(end)], threading.Event()

        def forward():
            under_way = deque()
            while not over.is_set():
                due = under_way[0][0] if under_way else time.monotonic() + 0.1
                for each in select.select(sockets, [], [], max(0.0, due - time.monotonic()))[0]:
                    under_way.append((time.monotonic() + seconds, sockets[sockets[0] is each], each.recv(1 << 17)))
                while under_way and under_way[0][0] <= time.monotonic():
                    _, to, frame = under_way.popleft()
                    with suppress(OSError):  # it is lost, as on a cable
                        to.send(frame)

        thread = threading.Thread(target=forward)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for each in sockets:
                each.close()
            ip("link", "delete", end)
            ip("link", "set", self.cable, "master", bridge())

    def agent(self):
        """The pid of `realm host` there."""
        return next(pid for pid in self.pids()[1:] if b"\0host" in _command(pid))

    def listens(self):
        """Ports on which somebody listens there."""
        table = subprocess.run(
            ["ip", "netns", "exec", self.space, "cat", "/proc/net/tcp"], capture_output=True, text=True
        )
        rows = [line.split() for line in table.stdout.splitlines()[1:]]
        return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}

    def freeze(self):
        self._signal(signal.SIGSTOP)

    def thaw(self):
        self._signal(signal.SIGCONT)

    def _signal(self, number):
        for pid in self.pids()[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def lose_power(self):
        """Nobody says goodbye: the cable first, then its first process and with it all others."""
        self.cut()
        for pid in self.pids()[:1]:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.pids(), "the machine is off")

    def realm(self):
        """Command lines of the processes of Realm that live there."""
        found = [_command(pid).replace(b"\0", b" ").decode() for pid in self.pids()[1:]]
        return [one for one in found if "realm" in one]

    def remove(self):
        for pid in self.pids()[:1]:
            os.kill(pid, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()
        for program in self.programs:
            program.kill()
            program.wait()
        subprocess.run(["ip", "netns", "delete", self.space], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self.cable], capture_output=True, check=False)


def _command(pid):
    with suppress(OSError):
        return open(f"/proc/{pid}/cmdline", "rb").read()
    return b""


def _frames(device):
    """A socket for all frames that come by a device, with what the kernel leaves to do for each (checksum, cutting)."""
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    for option in (15, 23):  # PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING
        frames.setsockopt(263, option, 1)  # SOL_PACKET
    frames.bind((device, 0))
    return frames


def bridge():
    return f"rb{os.getpid() % 100000}"


def until(condition, what, within_s=PATIENCE_S):
    """Wait; returns the seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - start


@contextmanager
def lan(folder, machines):
    """Other machines on one bridge with this one, which is `NET.1`; each has keys that the others let in."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("ip", "unshare", "nsenter")):
        raise SkipTest("only root can make other machines, with the commands ip, unshare and nsenter")
    from realm.wire.curve_keys import make_keys

    own, theirs = folder / "keys", [folder / f"keys{number}" for number in range(1, machines + 1)]
    for keys in (own, *theirs):
        make_keys(keys)
    for number, keys in enumerate(theirs):
        shutil.copy(keys / "public.key", own / "allowed" / f"{number}.key")
        shutil.copy(own / "public.key", keys / "server.key")
    there = []
    try:
        try:
            ip("link", "add", bridge(), "type", "bridge")
            ip("address", "add", f"{NET}.1/24", "dev", bridge())
            ip("link", "set", bridge(), "up")
            for number, keys in enumerate(theirs, 1):
                there.append(Machine(number, keys))
        except subprocess.CalledProcessError as error:
            raise SkipTest(f"no other machines here: {error.stderr!r}") from error
        yield there
    finally:
        for machine in there:
            machine.remove()
        subprocess.run(["ip", "link", "delete", bridge()], capture_output=True, check=False)


class Led(Run):
    """A run that this machine leads, by hand or with Ray; `there` are the machines that join it at once."""

    def __init__(self, tmp_path, there, *overrides, hosts=None, by_hand=True, **more):
        self.there, self.folder = there, tmp_path
        before = tmp_path / "output.txt"  # a run that goes on writes behind the one before
        self.begins = before.stat().st_size if before.exists() else 0
        hosts = len(there) if hosts is None else hosts
        keys = [f"hosts={hosts}", f"keys_dir={tmp_path / 'keys'}", f"bind_host={NET}.1"]
        super().__init__(tmp_path, *keys, *overrides, options=["--by-hand"] * by_hand, **more)
        for machine in there:
            self.join(machine)

    def line(self):
        """What the start says that the others must be told."""
        found = self.wait_for(
            lambda: re.search(r"^tcp://.*$", self.output.read_text()[self.begins :], re.MULTILINE),
            "it has said how to join",
        )
        return found[0]

    def join(self, machine):
        return machine.join(self.line(), self.folder / f"{machine.name}.txt")

    def text(self):
        agents = self.folder.glob("host*.txt")
        return "\n".join([super().text(), *(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in agents)])


FREE = (
    "buffer_backend=native", "counting.learn_s=0.05", "max_version_lag=free", "train_batch_size=20",
    "counting.remember=true",
)  # fmt: skip
"""Settings of a run that waits for nothing; slow, as what is waited for are seconds."""


def ready_at(run, host, after=0):
    """The incarnation of worker 1 if it is ready on this host ("": the head) and younger than `after`."""
    role = run.file()["roles"]["aisrv-1"]
    there = role["state"] == "ready" and role["host"] == host and role["incarnation"] > after
    return there and role["incarnation"]
