"""The faults that are done to running processes: each is one function that does it, waits, checks and tells.

Faults of connections are here, too; `network.py` has the means. `table.py` names them all.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil

from tests import hanging
from tests.cluster import ROOT
from tools import common
from tools.soak.network import OPENINGS, SERVERS, WRONG, Line, Peer, RawPeer, addresses, counted, visit
from tools.soak.victim import (
    BEAT,
    STRICT,
    SUPERVISOR,
    Ground,
    Outcome,
    Shim,
    Victim,
    free_ports,
    frozen,
    memory_mb,
    require,
)

KILLS = 5
WORSE = 4.0  # the least share of its pace that a run keeps under a flood is 1 / this

# ---- killed ----


def kill_role(ground: Ground, label: str) -> Outcome:
    took = []
    with ground.victim(BEAT, *STRICT) as run:
        run.wait_updates()
        for number in range(KILLS):
            ground.show(f"kill {number + 1} of {KILLS}")
            took.append(run.kill_and_recover(label))
        require(run.restarts() == KILLS, f"{run.restarts()} restarts after {KILLS} kills")
        run.end()
        lost = f"{run.rows()}; {KILLS} restarts counted"
    return Outcome(f"kill -9 of {label}", KILLS, lost, took)


def kill_worker(ground: Ground) -> Outcome:
    return kill_role(ground, "aisrv-0")


def kill_actor(ground: Ground) -> Outcome:
    return kill_role(ground, "actor-0")


def kill_pool(ground: Ground) -> Outcome:
    return kill_role(ground, "model_pool-0")


def kill_learner_then_buffer(ground: Ground) -> Outcome:
    """While workers write, which is why their lag is free."""
    took, times = [], 3
    with ground.victim(BEAT, "max_version_lag=free", "train_batch_size=20") as run:
        run.wait_updates()
        for number in range(times):
            ground.show(f"kill {number + 1} of {times}")
            run.wait_for(lambda: run.checkpoints()[-1][1] >= 20, "a checkpoint")
            begin = time.monotonic()
            run.kill("learner-0")
            run.kill("buffer-0")
            run.pid("learner-0")
            run.goes_on(5)
            took.append(time.monotonic() - begin)
        log = (run.dir / "log" / "learner-0.log").read_text()
        begun = [int(update) for update in re.findall(r"training from version \d+\.(\d+)", log)]
        require(len(begun) == times + 1 and min(begun[1:]) > 0, f"not resumed from a checkpoint: {begun}")
        require(run.restarts() == 2 * times, f"{run.restarts()} restarts after {2 * times} kills")
        buffer = run.end()["buffer"]
        old = int(buffer["refused_old_epoch"] + buffer["dropped_old_epoch"])
        lost = f"{run.rows()}; {old} samples of old epochs refused and counted"
    require(max(took) <= 60, f"an outage of {max(took):.0f} s")
    return Outcome("kill -9 of the learner, then of the buffer", times, lost, took)


# ---- frozen ----

FREEZES_S = (1, 12, 30, 40)


def freeze_each(ground: Ground) -> Outcome:
    """Every role in turn, and the supervisor, at the default heartbeat: none is started again."""
    took, number = [], 0
    settings = ("report_interval_s=0.5", "eval_cpu_share=0.2", "algo=tests.evaluated", "max_version_lag=0")
    with ground.victim(*settings) as run:
        run.wait_updates()
        before, labels = run.incarnations(), [*run.labels(), SUPERVISOR]
        for label in labels:
            for seconds in FREEZES_S:
                number += 1
                ground.show(f"{number} of {len(labels) * len(FREEZES_S)}: {label} for {seconds} s")
                frozen(run.pid_of(label), seconds)
                took.append(run.goes_on(10, f"training goes on after {label} stood still for {seconds} s"))
        require(run.incarnations() == before, f"started again: {run.incarnations()}, before {before}")
        run.end()
        lost = f"{run.rows()}; 0 restarts"
    return Outcome("a role or the supervisor frozen for 1, 12, 30, 40 s", number, lost, took)


def freeze_for_long(ground: Ground) -> Outcome:
    """At a quick heartbeat, for longer than it allows: each role is started again, once; the supervisor never is."""
    took, times = [], 0
    with ground.victim(BEAT, *STRICT) as run:
        run.wait_updates()
        for label in run.labels():
            ground.show(f"{label}, for good")
            before = run.incarnations()
            pid, begin = run.pid(label), time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            run.wait_for(lambda label=label, pid=pid: run.file()["roles"][label]["pid"] not in (0, pid), "a new one")  # type: ignore[misc]
            run.pid(label)
            run.goes_on(5)
            took.append(time.monotonic() - begin)
            times += 1
            require(run.incarnations() == {**before, label: before[label] + 1}, f"{label}: {run.incarnations()}")
        ground.show("the supervisor for 40 s")
        before = run.incarnations()
        frozen(run.process.pid, 40)
        run.goes_on(10)
        require(run.incarnations() == before, "a role was started again because the supervisor stood still")
        run.end()
        lost = f"{run.rows()}; {times} restarts for {times} roles, 0 for the supervisor"
    return Outcome("a role frozen for good, the supervisor for 40 s", times + 1, lost, took)


def freeze_learner(ground: Ground) -> Outcome:
    """Back-pressure: nothing grows while the learner stands still, and the pace is what it was after 10 s."""
    with ground.victim("report_interval_s=0.5", "max_version_lag=free", "train_batch_size=20") as run:
        run.wait_updates(200)
        labels = [label for label in run.labels() if label != "learner-0"]
        pace = run.pace()
        before = {label: memory_mb(run.pid(label)) for label in labels}
        ground.show("30 s without a learner")
        frozen(run.pid("learner-0"), 30)
        grown = max(memory_mb(run.pid(label)) - before[label] for label in labels)
        took = run.goes_on(10)
        time.sleep(10)
        after = run.pace()
        require(grown < 50, f"memory has grown by {grown:.0f} MB")
        require(run.restarts() == 0, "a role was started again")
        run.end()
        lost = f"{run.rows()}; memory +{max(0.0, grown):.1f} MB; pace {100 * after / pace:.0f} % of the one before"
    return Outcome("the learner frozen for 30 s", 1, lost, [took])


# ---- clocks ----

STEPS_S = (3600, -3600, 86_400, 0)


def step_clock(ground: Ground) -> Outcome:
    """The wall clock of all processes of a run jumps; then `status` and `stop all` must find the run."""
    ground.folder.mkdir(parents=True, exist_ok=True)
    shim, took = Shim(ground.folder), []
    with ground.victim(BEAT, *STRICT, variables=shim.variables()) as run:
        run.wait_updates()
        for seconds in STEPS_S:
            ground.show(f"the clock is {seconds:+,} s ahead")
            shim.step(seconds)
            took.append(run.goes_on(40))
            for clock in (shim.variables(), {}):  # asked by somebody with the same clock, and with another one
                shown = ask_realm("status", run, clock)
                require(f"pid {run.process.pid}" in shown, f"status does not find the run: {shown}")
        require(run.restarts() == 0, "a role was started again")
        shim.step(3600)
        ask_realm("stop", run, {}, "all")
        require(run.finish() == 0, run.text())
        require(run.processes() == [], "processes are left")
        rates = [value for one in common.read_events(run.dir) for tag, value in one.values.items() if "_per_s" in tag]
        require(rates and min(rates) >= 0, f"a rate of {min(rates)}")
        lost = f"{run.rows()}; 0 restarts; the lowest of {len(rates):,} rates is {min(rates):.0f}"
    return Outcome("the wall clock of all roles jumps by +1 h, -1 h, +24 h, back", len(STEPS_S), lost, took)


def ask_realm(command: str, run: Victim, variables: dict[str, str], *words: str) -> str:
    asked = subprocess.run(
        [sys.executable, "-m", "realm", command, *words, "--log-dir", str(run.dir.parent)],
        cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    require(asked.returncode == 0, f"realm {command}: {asked.stderr}")
    return asked.stdout


# ---- hangs ----


def hang_everywhere(ground: Ground) -> Outcome:
    """In user code that a cluster calls: named, and started again; in make_envs the start gives up and says why."""
    took = []
    for place, (_, _, _, role) in hanging.PLACES.items():
        ground.show(f"a hang in {place}")
        folder = ground.folder / place
        folder.mkdir(parents=True)
        variables = hanging.make(folder, place)
        limit = "start_timeout_s=60" if place == "make_envs" else "start_timeout_s=240"
        with ground.victim(BEAT, "algo=hanging", "hanging.learn_s=0.01", limit, variables=variables) as run:
            begin = time.monotonic()
            if place == "make_envs":
                run.wait_for(lambda: "is not ready after" in run.output.read_text(), "it is named")
                took.append(time.monotonic() - begin)
                require(run.finish() == 1, run.text())
                cause = run.file()["cause"]
                require(cause.startswith(f"{role}-") and "was not ready after" in cause, cause)
                require(run.processes() == [], "processes are left")
                continue
            run.wait_for(lambda: "has been silent for" in run.output.read_text(), f"the hang in {place} is named")
            named = [line for line in run.output.read_text().splitlines() if "has been silent for" in line]
            require(f"{role}-" in named[0], f"a hang in {place} is said to be one of {named[0]}")
            run.wait_for(lambda: "starting it again" in run.output.read_text(), "it is started again")
            run.wait_running()
            run.goes_on(10)
            took.append(time.monotonic() - begin)
            stacks = "".join(path.read_text() for path in run.dir.glob(f"log/{role}-*.log"))
            require("in once" in stacks, f"the stacks of the hang in {place} are not in the log")
            run.end()
    lost = "each named with its role and its stacks; 4 started again, the start in make_envs given up with its cause"
    return Outcome(f"a hang in {', '.join(hanging.PLACES)}", len(hanging.PLACES), lost, took)


def hang_in_one_process(ground: Ground) -> Outcome:
    """Nobody watches one process: the second Ctrl+C ends it at once."""
    took = []
    for place in hanging.PLACES:
        ground.show(f"a hang in {place}, in one process")
        folder = ground.folder / f"local-{place}"
        folder.mkdir(parents=True)
        variables = hanging.make(folder, place)
        with ground.victim("wrapper_type=local", "algo=hanging", variables=variables) as run:
            flag = folder / f"hung-{place}"
            run.wait_for(lambda flag=flag: flag.exists(), f"the hang in {place}")  # type: ignore[misc]
            time.sleep(1)
            run.process.send_signal(signal.SIGINT)
            time.sleep(1)
            require(run.process.poll() is None, f"it ended at the first Ctrl+C\n{run.text()}")
            begin = time.monotonic()
            run.process.send_signal(signal.SIGINT)
            require(run.finish() in (-signal.SIGINT, 130), run.text())
            took.append(time.monotonic() - begin)
    return Outcome("the same hangs in one process, Ctrl+C twice", len(took), "each ended at the second Ctrl+C", took)


# ---- children ----


def kill_families(ground: Ground) -> Outcome:
    """Environments with child processes: workers are killed, and at last the supervisor while all stand still."""
    package = ground.folder / "families"
    shutil.copytree(ROOT / "tests" / "counting", package)
    line, definition = "    return CountingEnvs(num_envs", package / hanging.DEFINITION
    child = "    if num_envs > 1:\n        import subprocess\n        subprocess.Popen(['sleep', '10000'])\n"
    definition.write_text(definition.read_text().replace(line, child + line))
    variables, took = {"PYTHONPATH": f"{ground.folder}:{ROOT}"}, []
    with ground.victim(BEAT, "algo=families", variables=variables) as run:
        run.wait_updates()
        for label in ("aisrv-0", "aisrv-1"):
            children = psutil.Process(run.pid(label)).children()
            require(len(children) == 1, f"{label} has {len(children)} children")
            begin = time.monotonic()
            run.kill(label)
            wait_gone(children)
            took.append(time.monotonic() - begin)
            run.pid(label)
        everybody = [psutil.Process(run.pid(label)) for label in run.labels()]
        everybody += [child for one in everybody for child in one.children()]
        for one in everybody:
            one.suspend()
        begin = time.monotonic()
        run.process.kill()
        run.process.wait()
        wait_gone(everybody)
        took.append(time.monotonic() - begin)
        require(run.processes() == [], f"left: {run.processes()}")
    return Outcome("kill -9 of two workers with children, of the supervisor while all are frozen", 3, "0 left", took)


def wait_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 60
    while left := [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
        require(time.monotonic() < deadline, f"left: {left}")
        time.sleep(0.05)


# ---- connections ----

BAD_FRAMES = 2000  # at each port
VISITS = 20  # of each kind of stranger, at each port


def bad_frames_at_each_port(ground: Ground) -> Outcome:
    draw, lines = random.Random(ground.seed), []
    with ground.victim(BEAT, *STRICT) as run:
        run.wait_updates()
        ports = addresses(run)
        peers = {label: Peer(run.file()["run_id"], address) for label, address in ports.items()}
        for label, peer in peers.items():
            ground.show(f"{BAD_FRAMES:,} bad frames and {VISITS * len(OPENINGS)} strangers at {label}")
            peer.send_many(draw, BAD_FRAMES)
            for opening in OPENINGS:
                for _ in range(VISITS):
                    visit(ports[label], opening, draw)
        for label, peer in peers.items():
            for name, number in (("bad_frames", peer.sent), ("refused_peers", VISITS)):
                run.wait_for(lambda a=label, b=name, n=number: counted(run, a, b) >= n, f"{label} counts {name}")  # type: ignore[misc]
                got = counted(run, label, name)
                require(got == number, f"{label} has counted {got:.0f} {name}, {number} were sent")
            lines.append(label)
            peer.close()
        took = run.goes_on(20)
        require(run.restarts() == 0, "a role was started again")
        run.end()
        lost = (
            f"{run.rows()}; at each of {len(lines)} ports {BAD_FRAMES:,} bad frames and {VISITS} wrong passwords "
            f"counted of {BAD_FRAMES:,} and {VISITS}"
        )
    times = len(lines) * (BAD_FRAMES + VISITS * len(OPENINGS))
    return Outcome(f"bad frames, {', '.join(OPENINGS)} ({WRONG} is counted)", times, lost, [took])


def line_to_the_buffer(ground: Ground) -> Outcome:
    """The line between buffer and workers, learner: cut for 30 s, delayed by 200 ms, loses requests, loses answers."""
    ground.folder.mkdir(parents=True, exist_ok=True)
    shim, took, port = Shim(ground.folder), [], free_ports(4)
    line = Line(port + 3, port + 1)  # ports of a run are in the order of the names: actor, buffer, model_pool
    variables = shim.variables(port + 1, port + 3)
    try:
        with ground.victim(BEAT, *STRICT, f"base_port={port}", variables=variables) as run:
            run.wait_updates()
            require(line.connections >= 3, "workers and learner do not go through the line")
            for mode, seconds in (("cut", 30), ("slow", 10), ("there", 5), ("back", 5), ("back", 5), ("there", 5)):
                ground.show(f"the line to the buffer: {mode} for {seconds} s")
                line.set(mode)
                time.sleep(seconds)
                line.set("pass")
                took.append(run.goes_on(20, f"training goes on after {mode}"))
            require(run.restarts() == 0, "a role was started again")
            sums = run.end()
            again = int(sums["aisrv"]["wire/resent"] + sums["learner"]["wire/resent"])
            twice = int(sums["buffer"]["duplicate"])
            lost = f"{run.rows()}; {again} questions sent again, {twice} came twice and were counted once"
    finally:
        line.close()
    return Outcome("the line to the buffer cut 30 s, 200 ms slower, loses requests or answers", 6, lost, took)


FLOOD_S = 10.0


def floods(ground: Ground) -> Outcome:
    """As many broken messages as the line takes, at each port in turn, from a peer with the secret."""
    told, total, slowest, worst = [], 0, 1.0, 0.0
    with ground.victim(BEAT, *STRICT) as run:
        run.wait_updates(100)
        usual = run.pace()
        for label, address in addresses(run).items():
            pid, sent, memory = run.pid_of(label), [], [memory_mb(run.pid_of(label))]
            ground.show(f"a flood at {label}")
            peer = RawPeer(run.file()["run_id"], address)
            thread = threading.Thread(target=lambda peer=peer, sent=sent: sent.append(peer.flood(FLOOD_S)))
            before = run.updates()
            thread.start()
            while thread.is_alive():
                memory.append(memory_mb(pid))
                time.sleep(0.2)
            share = (run.updates()[1] - before[1]) / FLOOD_S / usual
            peer.close()
            run.goes_on(10, f"training goes on after a flood at {label}")
            grown = max(memory) - memory[0]
            rate = sent[0] / FLOOD_S / 1000
            told.append(f"{label} {rate:.0f} k/s: pace {100 * share:.0f} %, +{max(0.0, grown):.0f} MB")
            total, slowest, worst = total + sent[0], min(slowest, share), max(worst, grown)
        restarts = run.incarnations()
        run.end()
        lost = f"{run.rows()}; {'; '.join(told)}"
    require(worst < 100, f"memory grows: {lost}")
    require(slowest >= 1 / WORSE, f"a flood leaves {100 * slowest:.0f} % of the pace: {lost}")
    require(set(restarts.values()) == {1}, f"a role was started again: {restarts}")
    return Outcome("a flood of broken messages at each port", total, lost)


def endless_parts(ground: Ground) -> Outcome:
    """A message whose parts never end, from a peer with the secret. Strangers are among those of the ports."""
    most, told, worst = 300 << 20, [], 0.0
    with ground.victim(BEAT, *STRICT) as run:
        run.wait_updates()
        for label in SERVERS:
            ground.show(f"300 MB of parts at {label}")
            pid, memory = run.pid(label), []
            before = memory_mb(pid)
            peer = RawPeer(run.file()["run_id"], addresses(run)[label])
            sent = peer.endless(1 << 20, most, lambda pid=pid, memory=memory: memory.append(memory_mb(pid)))  # type: ignore[misc]
            peer.close()
            grown = max(memory, default=before) - before
            worst = max(worst, grown)
            told.append(f"{label} +{max(0.0, grown):.0f} MB of {sent >> 20} MB sent")
            run.goes_on(10)
        run.end()
    require(worst < 100, f"memory grows: {'; '.join(told)}")
    return Outcome("a message without an end, from a peer with the secret", len(told), "; ".join(told))
