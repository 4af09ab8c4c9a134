"""Has Ray run `realm host` on the other machines of a run, and on others where one is lost.

The only file that imports Ray. `hosts.py` owns an `OnRay`, whose process is a driver of Ray's; the supervisor is none,
since Ray ends the drivers of a cluster that is gone. It reserves a core of each host, ships the folder where the user
stands, and keeps an actor on each host, whose only work is the child `realm host`. When the driver ends, so do they.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from realm.config.keys import AppConfig
from realm.errors import ConfigError, one_line, to_install
from realm.launch.place import Handle, place

_AGAIN_S = 12.0  # until what has ended starts again: by then the supervisor knows that the host is lost
_MOST_BYTES = 100 << 20  # of a folder to ship
_LEFT_OUT = {"run.json", "secret.key", "pyvenv.cfg"}  # each is in a folder that stays here: runs, keys, a .venv
_SENTENCE = re.compile(r"(INFO|WARNING|ERROR) (.+)")  # that the driver prints; Ray prints, too
_CHILD = "import signal; from realm.launch.guard import when_parent_ends; when_parent_ends(signal.SIGTERM); "
_CHILD += "import sys; from realm.__main__ import console; sys.exit(console())"


class OnRay:
    """The driver, as the supervisor sees it. line: that an agent must be told. said: the last sentence."""

    def __init__(self, line: str, app: AppConfig) -> None:
        self.said, self._due = "", 0.0
        self._job, self._title = (line, app.hosts, os.path.abspath(app.keys_dir)), f"on-ray {app.log_dir}"
        self._log = tempfile.NamedTemporaryFile("r", prefix="realm-on-ray-", errors="replace")  # noqa: SIM115
        self._driver: Handle | None = None

    def turn(self, now: float) -> list[tuple[str, str]]:
        """Start the driver where there is none. Returns what is new: levels and sentences."""
        if self._driver is None and now >= self._due:
            self._due = now + _AGAIN_S
            with suppress(ConfigError, OSError):
                self._driver = place(_drive, self._job, os.environ, Path(self._log.name), self._title, False)
        code = self._driver.exit_code if self._driver else None
        said = [(found[1], found[2]) for line in self._log if (found := _SENTENCE.match(line))]
        if self._driver and code is not None:
            self._driver.kill()  # what it has started
            self._driver, self._due = None, now + _AGAIN_S
            said = said or [("WARNING", f"the process that talks to Ray has ended ({code}), and starts again")]
        before, self.said = self.said, said[-1][1] if said else self.said
        return [sentence for sentence in said if sentence[1] != before]

    def end(self) -> None:
        if self._driver:
            self._driver.kill()
            self._driver.join()


def pack(folder: Path, file: Path) -> None:
    """Zip a folder without runs, keys and what is hidden. Raises ConfigError if it is too large."""
    sizes = Counter[str]()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for root, folders, names in os.walk(folder):
            within = Path(root).relative_to(folder)
            stays = bool(within.parts) and not _LEFT_OUT.isdisjoint(names)
            folders[:] = [name for name in folders if not (stays or name[0] == "." or name == "__pycache__")]
            for path in [] if stays else [within / name for name in names if name[0] != "." and name[-4:] != ".key"]:
                if (folder / path).is_file():
                    archive.write(folder / path, path)
                    sizes[path.parts[0]] += (folder / path).stat().st_size
                if sizes.total() > _MOST_BYTES:
                    most = f"more than {_MOST_BYTES >> 20} MiB, most of it in {sizes.most_common(1)[0][0]}"
                    raise ConfigError(f"{folder}: has {most}: too much to ship to other machines; start where less is")


def is_open() -> bool | None:
    """Whether the Ray here lets in whoever has no token; None if nobody answers."""
    command = ["env", "RAY_AUTH_MODE=disabled", sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    return None


class Agent:
    """On a host. Ray makes it there from its source, so it uses nothing of Realm's."""

    pause_s = 0.0

    def work(self, line: str, keys_dir: str) -> tuple[str, int, str]:
        """Run `realm host` until it fails, as Ray hears late of what ends during a cut: name, exit code, last line."""
        while True:
            time.sleep(self.pause_s)
            self.pause_s = _AGAIN_S  # there alone: another machine starts at once
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD, "host"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                errors="replace", stderr=subprocess.STDOUT,
                env={"REALM_KEYS_DIR": keys_dir, **os.environ, "REALM_RUN": line},
            )  # fmt: skip
            last = deque(filter(None, map(str.strip, child.stdout or ())), maxlen=1)
            if code := child.wait():
                return os.uname().nodename, code, "".join(last).removeprefix("error: ")


def _drive(job: tuple[str, int, str]) -> int:
    """The driver's process; it ends by itself only after an error. job: the line, hosts, the folder of their keys."""
    try:
        import ray

        if (anybody := is_open()) is None:
            raise ConnectionError(f"nobody answers at {os.environ.get('RAY_ADDRESS', 'the address of the last one')}")
        if anybody:
            raise ConfigError("Ray asks for no token, so whoever reaches it runs code as you: set RAY_AUTH_MODE=token")
        with tempfile.TemporaryDirectory(prefix="realm-on-ray-") as folder:
            pack(Path.cwd(), file := Path(folder, "folder.zip"))
            ray.init("auto", log_to_driver=False, logging_level="ERROR", runtime_env={"working_dir": str(file)})
        _keep(ray, *job)
    except ImportError as error:
        text = f"{one_line(error)}; Ray starts the agents: " + to_install("'ray==2.60.*'") + ", or say --by-hand"
    except ConnectionError as error:
        text = f"no connection to Ray ({one_line(error)}): start it on all machines, with one token, or say --by-hand"
    except Exception as error:
        text = one_line(error)
    print(f"ERROR {text}", flush=True)
    return ConfigError.exit_code


def _keep(ray: Any, line: str, hosts: int, keys_dir: str) -> NoReturn:
    """Keep an agent on each of so many other machines."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    own = ray.get_runtime_context().get_node_id()
    here = [{f"node:{node['NodeManagerAddress']}": 0.001} for node in ray.nodes() if node["NodeID"] == own]
    group = ray.util.placement_group([*here, *[{"CPU": 1}] * hosts], strategy="STRICT_SPREAD")  # no agent comes here
    while not group.wait(_AGAIN_S):
        free = ray._private.state.available_resources_per_node()
        others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]
        names = [f"{node['NodeManagerHostname']} ({free.get(node['NodeID'], {}).get('CPU', 0):g})" for node in others]
        print(f"INFO Ray's other machines, and their free cores: {', '.join(names) or 'none'}", flush=True)
    calls, for_ever = {}, {"num_cpus": 1, "max_restarts": -1, "max_task_retries": -1}  # also on another machine
    for number in range(1, hosts + 1):
        there = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, number)
        agent = ray.remote(**for_ever, scheduling_strategy=there)(Agent).remote()
        calls[agent.work.remote(line, keys_dir)] = agent
    while True:
        (call,), _ = ray.wait([*calls])
        agent, (name, code, last) = calls.pop(call), ray.get(call)
        print(f"{'ERROR' if code == ConfigError.exit_code else 'WARNING'} {name}: {one_line(last)}", flush=True)
        calls[agent.work.remote(line, keys_dir)] = agent
