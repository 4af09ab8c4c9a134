"""Faults of other machines, which Ray has found: R1 to R9. They are namespaces of this one (`tests/machines.py`).

Worker 1 of each run belongs to a host. A fault is done to it at a random moment; then it must work elsewhere, which is
here, and must come back to a host, all within limits. Chunks have names, so what was lost is counted exactly.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from tests.console import finished
from tests.counting import tally
from tests.machines import Led, Machine, bridge, ip, lan, ready_at, until
from tests.ray_cluster import Cluster, actor, agent, host_of, raylet
from tools.soak.victim import Ground, Outcome, require

ENVS = 6  # of a worker, as tests/counting says: a round has as many chunks
END_S, DEAD_S = 15.0, 40.0
CUT_S, LATE_S = 5.0, 0.2


@dataclass
class Row:
    """One fault, made several times. Seconds from the fault on. lost: rounds that were played and not trained on."""

    fault: str
    what: str
    gone_s: list[float] = field(default_factory=list)
    elsewhere_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)


@dataclass
class Field:
    """A cluster of Ray's with a run, and the rows of its faults. begin: starts the run, or goes on with it."""

    ground: Ground
    cluster: Cluster
    begin: Callable[[], Led]
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run, self.draw = self.begin(), random.Random(self.ground.seed)

    def rounds(self, fault: str, what: str) -> Iterator[Row]:
        """The same row for each round, at a random moment."""
        self.rows.append(Row(fault, what))
        for number in range(self.ground.rounds):
            self.ground.show(f"{what}, {number + 1} of {self.ground.rounds}")
            self.home()
            goes_on(self.run)
            time.sleep(self.draw.uniform(0, 3))
            yield self.rows[-1]

    def home(self, after: int = 0) -> tuple[Machine, int]:
        """Wait until worker 1 is ready on a host; returns it, and the worker's incarnation, above `after`."""
        name, incarnation = self.run.wait_for(lambda: host_of(self.run, after), "worker 1 is ready on a host")
        return next(machine for machine in self.cluster.machines if machine.name == name), incarnation

    def end(self, lost: list[tuple[Row, int, int]] | None) -> Outcome:
        """Ctrl+C; nothing is left anywhere. lost: a row, and the incarnations of worker 1 (from, to) that a fault ended
        or moved. Their rounds that were played and not trained on are counted. Nobody else has lost any, and none was
        trained on twice. None: of several runs."""
        goes_on(self.run)
        since, code = time.monotonic(), self.run.interrupt()
        require(code == 0, self.run.text())
        until(lambda: not any(machine.realm() for machine in self.cluster.machines), "all have ended", END_S)
        require(self.run.processes() == [] and time.monotonic() - since <= END_S, "it took too long")
        if lost is not None:
            played, twice = tally.compare(self.ground.folder / "tally")
            for row, old, new in lost:
                row.lost.append(sum(played.pop((1, which), (0, 0, 0))[1] for which in range(old, new)) / ENVS)
            require(twice == 0, f"{twice} chunks were trained on twice")
            inside = {who: chunks for who, (_, _, chunks) in played.items() if chunks}
            require(not inside, f"chunks of others were lost: {inside}")
        rows, times = [asdict(row) for row in self.rows], sum(len(row.lost) for row in self.rows)
        return Outcome("on hosts", times, "within all limits", hosts=rows)


@contextmanager
def cluster_of(machines: int, ground: Ground) -> Iterator[Field]:
    (notes := ground.folder / "tally").mkdir(parents=True)
    settings = (f"counting.tally={notes}", "counting.learn_s=0.1", "restart_budget=1000", *ground.settings)
    with lan(ground.folder, machines) as there, Cluster(ground.folder, there) as cluster, ExitStack() as runs:
        yield Field(ground, cluster, lambda: runs.enter_context(cluster.run("one", *settings)))


def goes_on(run: Led) -> None:
    epoch, update = run.checkpoints()[-1] if run.checkpoints() else (1, 0)
    run.wait_trained(update + 20, epoch)


def roles_of(machine: Machine) -> set[str]:
    """Each of a run's processes has the scratch folder of its agent in its name."""
    return {line for line in machine.realm() if "/realm-host-" in line}


# ---- a host is lost: R1, R3 to R6 ----

Fault = Callable[[Field, Machine], Callable[[], Any] | None]


def power(field: Field, machine: Machine) -> Callable[[], Any]:
    machine.lose_power()

    def buy() -> None:
        """Another machine, with the keys of the one that is gone."""
        known = field.cluster.machines
        known[known.index(machine)] = new = Machine(max(int(one.name[4:]) for one in known) + 1, machine.keys)
        machine.remove()
        field.cluster.add(new)

    return buy


def cable(field: Field, machine: Machine) -> Callable[[], Any]:
    machine.cut()
    return lambda: (machine.mend(), field.cluster.keep(machine))


def one_way(deaf: bool, field: Field, machine: Machine) -> Callable[[], Any]:
    machine.lose(True, deaf)
    return partial(machine.lose, False, deaf)


def frozen(field: Field, machine: Machine) -> Callable[[], Any]:
    machine.freeze()
    return machine.thaw


def killed(kill: Callable[[Machine], None], field: Field, machine: Machine) -> Callable[[], Any] | None:
    kill(machine)
    return partial(field.cluster.add, machine) if kill is raylet else None


def on_ray(field: Field, machine: Machine) -> None:
    next(each for each in field.run.processes() if "on-ray" in " ".join(each.cmdline())).kill()


def rays_head(field: Field, machine: Machine) -> Callable[[], Any]:
    field.cluster.kill("gcs_server")

    def again() -> None:
        field.run.wait_for(lambda: "no connection to Ray" in field.run.output.read_text(), "it is said")
        field.cluster.end()
        field.cluster.begin()

    return again


@dataclass(frozen=True)
class Loss:
    """what: for the table. lasts_s: of the fault, before it is mended. Limits: works elsewhere, is back; back counts
    from the mending where a fault lasts."""

    what: str
    do: Fault
    lasts_s: tuple[float, float] = (0.0, 0.0)
    elsewhere_s: float = 15.0
    back_s: float | None = None


LOSSES: dict[str, tuple[float, int, list[Loss]]] = {
    "R1": (8, 2, [Loss("power lost: the link first, then the first process", power, back_s=90.0)]),
    "R3": (14, 1, [
        Loss("cable cut for 60 s", cable, (60.0, 60.0)),
        Loss("one way lost, from the host, for 15 to 25 s", partial(one_way, False), (15.0, 25.0)),
        Loss("one way lost, to the host, for 15 to 25 s", partial(one_way, True), (15.0, 25.0)),
    ]),
    "R4": (7, 1, [Loss("frozen for 60 s, thawed", frozen, (60.0, 60.0))]),
    "R5": (7, 2, [
        Loss("kill -9 of `realm host`", partial(killed, agent), back_s=40.0),
        Loss("kill -9 of Ray's actor", partial(killed, actor), back_s=40.0),
        Loss("kill -9 of the raylet", partial(killed, raylet), back_s=40.0),
    ]),
    "R6": (14, 1, [
        Loss("kill -9 of the process that talks to Ray", on_ray),
        Loss("kill -9 of Ray's head, which is started again", rays_head, elsewhere_s=80.0),
    ]),
}  # fmt: skip
"""Part -> about how many minutes five rounds take, machines, and its faults."""


def lose(name: str, ground: Ground) -> Outcome:
    """The faults of a part, one after another, to one run."""
    _, machines, losses = LOSSES[name]
    with cluster_of(machines, ground) as field:
        incarnations = list[tuple[Row, int, int]]()
        for loss in losses:
            for row in field.rounds(name, loss.what):
                machine, old = field.home()
                before, since = roles_of(machine), time.monotonic()
                mend = loss.do(field, machine)
                ended = partial(lambda before, machine: not before & roles_of(machine), before, machine)
                if not loss.lasts_s[1]:  # else they live on until it is mended, or their agent notices
                    until(ended, "no role lives on", loss.elsewhere_s)
                    row.gone_s.append(time.monotonic() - since)
                moved = field.run.wait_for(partial(ready_at, field.run, "", old), "worker 1 is ready here")
                row.elsewhere_s.append(time.monotonic() - since)
                time.sleep(max(0.0, field.draw.uniform(*loss.lasts_s) - (time.monotonic() - since)))
                if mend:
                    mend()
                since = since if loss.back_s else time.monotonic()
                _, new = field.home(moved)
                row.back_s.append(time.monotonic() - since)
                until(ended, "the old roles were told to end", 45.0)
                incarnations.append((row, old, new))
            row = field.rows[-1]
            require(max(row.elsewhere_s) <= loss.elsewhere_s, f"{row}")
            require(loss.back_s is None or max(row.back_s) <= loss.back_s, f"{row}")
        return field.end(incarnations)


# ---- nothing restarts: R2 ----


def short(ground: Ground) -> Outcome:
    with cluster_of(1, ground) as field:
        home = machine, _ = field.home()
        for row in field.rounds("R2", f"cable cut for {CUT_S:g} s"):
            machine.cut()
            time.sleep(CUT_S)
            machine.mend()
            row.lost.append(0.0)  # as is counted at the end
        for row in field.rounds("R2", f"{LATE_S:g} s of delay each way for a minute"):
            with machine.late(LATE_S):
                time.sleep(60.0)
                goes_on(field.run)
            row.lost.append(0.0)
        require(field.home() == home, "worker 1 was started again")
        require("lost" not in field.run.output.read_text(), field.run.output.read_text())
        return field.end([])


# ---- the head dies: R7 ----


def head_dies(ground: Ground) -> Outcome:
    with cluster_of(1, ground) as field:
        (machine,) = field.cluster.machines
        for what, off in (("kill -9 of the supervisor", False), ("the head loses power", True)):
            for row in field.rounds("R7", what):
                since = time.monotonic()
                if off:
                    ip("link", "set", bridge(), "down")
                    for process in field.run.processes():
                        with suppress(Exception):  # it has just ended, as another one has
                            process.kill()
                    field.cluster.kill(here=True)
                field.run.process.kill()
                until(lambda: not roles_of(machine), "no role lives on the host", DEAD_S)
                row.gone_s.append(time.monotonic() - since)
                require(field.run.processes() == [], "a role lives on at the head")
                if off:
                    field.cluster.end()
                    ip("link", "set", bridge(), "up")
                    field.cluster.begin()
                (epoch, update), since = field.run.checkpoints()[-1], time.monotonic()
                field.run = run = field.begin()
                run.wait_for(lambda run=run: run.file()["pid"] == run.process.pid, "it has begun")
                origin = run.wait_for(lambda run=run: run.file()["beginning"][1:], "it has said where it goes on")
                require(f"model.ckpt-{epoch}-{update} " in " ".join(origin), f"{epoch}.{update} was the last: {origin}")
                field.home()
                row.back_s.append(time.monotonic() - since)
                row.lost.append(0.0)
        return field.end(None)


# ---- it ends, and others go on: R8, R9 ----


def two_runs(ground: Ground) -> Outcome:
    """A second run on the same Ray ends in three ways; the first one feels nothing."""
    with cluster_of(2, ground) as field:
        home = field.home()
        (other,) = (machine for machine in field.cluster.machines if machine is not home[0])
        for way, limit in (("Ctrl+C", 0), ("`realm stop all`", 0), ("`max_env_steps`", 8_000)):
            for row in field.rounds("R8, R9", f"{way} ends one of two runs"):
                name = f"two-{len(field.rows)}-{len(row.lost)}"
                with field.cluster.run(name, f"max_env_steps={limit}", *ground.settings) as two:
                    two.wait_for(partial(host_of, two), "worker 1 is ready on a host")
                    if limit:
                        two.wait_for(lambda two=two: two.file()["state"][:4] == "stop", "it ends")
                    else:
                        goes_on(two)
                        time.sleep(field.draw.uniform(0, 2))
                    since = time.monotonic()
                    if way == "Ctrl+C":
                        two.process.send_signal(signal.SIGINT)
                    elif not limit:
                        stopped = finished("-m", "realm", "stop", "all", "--log-dir", two.dir.parent)
                        require(stopped.returncode == 0, stopped.stderr)
                    require(two.finish() == 0, two.text())
                    until(lambda: not other.realm(), "all have ended", END_S)
                    row.gone_s.append(time.monotonic() - since)
                    require(row.gone_s[-1] <= END_S and two.processes() == [], f"{row}, {two.processes()}")
                    require(two.checkpoints()[-1][1] == two.totals("learner")["version_update"], "nothing was saved")
                    row.lost.append(0.0)
                require(field.home() == home, "the other run felt it")
        require("lost" not in field.run.output.read_text(), field.run.output.read_text())
        return field.end([])


HOST_FAULTS: dict[str, tuple[float, Callable[[Ground], Outcome]]] = {
    **{name: (part[0], partial(lose, name)) for name, part in LOSSES.items()},
    "R2": (7, short),
    "R7": (11, head_dies),
    "R8": (8, two_runs),
}
"""Part -> about how many minutes five rounds take, and what is done."""
