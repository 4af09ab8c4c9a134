"""Disk, memory and file handles: what is said and done before they end, and logs that do not grow without end."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from realm.config.machine_memory import group_memory
from realm.watch import logs, resources
from realm.watch.logs import rotate, rotate_all
from realm.watch.resources import (
    Reading,
    Resources,
    Warner,
    in_words,
    must_hold,
    raise_file_limit,
    shortages,
)
from tests.cluster import ROOT, Run

GIB = 1 << 30
GOOD = Reading(100 * GIB, 1000 * GIB, 8 * GIB, 16 * GIB, {"learner-0": 20, "aisrv-0": 300}, 1024)
RUN = Path("train/one")


# --- decisions


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        ({"disk_free": GIB - 1}, "disk", "train/one: 1,024 MB of the disk are left; when it is full"),
        ({"disk_free": 10 << 20, "disk_total": 400 << 20}, "disk", "train/one: 10 MB of the disk are left"),
        ({"memory_free": GIB // 2}, "memory", "512 MB of 16 GB of memory are left; end other programs"),
        ({"memory_free": 100 << 20, "memory_total": 2 * GIB}, "memory", "100 MB of 2.0 GB of memory"),
        ({"open_files": {"aisrv-0": 820}}, "files of aisrv-0", "aisrv-0 has 820 files and sockets open, and the"),
    ],
)
def test_what_runs_out_is_named(change: dict[str, Any], name: str, says: str) -> None:
    assert shortages(GOOD, (), RUN) == {}
    found = shortages(replace(GOOD, **change), (), RUN)
    assert list(found) == [name]
    assert found[name].startswith(says)


def test_good_again_is_half_as_much_again() -> None:
    between = replace(GOOD, disk_free=GIB + GIB // 4)
    assert shortages(between, (), RUN) == {}
    assert list(shortages(between, {"disk"}, RUN)) == ["disk"]
    assert shortages(replace(GOOD, disk_free=2 * GIB), {"disk"}, RUN) == {}


def test_small_disks_and_containers_are_not_always_short() -> None:
    small = replace(GOOD, disk_free=40 << 20, disk_total=400 << 20, memory_free=300 << 20, memory_total=GIB)
    assert shortages(small, (), RUN) == {}
    assert not must_hold(small, False)


def test_workers_are_held_back_until_there_is_room_again() -> None:
    holding, seen = False, []
    for free in (2000, 1000, 600, 500, 600, 1000, 1100, 600, 400):
        holding = must_hold(replace(GOOD, memory_free=free << 20), holding)
        seen.append(holding)
    assert seen == [False, False, False, True, True, True, False, False, True]


def test_once_and_again_after_it_was_good_and_a_minute_later() -> None:
    warner, bad = Warner(), {"disk": "d"}
    assert warner.heed(bad, 0) == ["d"]
    assert [warner.heed(bad, now) for now in (1, 61, 500)] == [[], [], []]
    warner.heed({}, 501)
    assert warner.heed({**bad, "memory": "m"}, 502) == ["d", "m"]
    warner.heed({}, 503)
    assert warner.heed(bad, 504) == []  # too soon
    assert warner.heed(bad, 562) == ["d"]
    assert warner.heed(bad, 563) == []


def test_sizes_in_words() -> None:
    sizes = [0, 1000, 4096, 20 << 20, 999 << 20, GIB, 1.26 * GIB, 5000 * GIB]
    assert [in_words(size) for size in sizes] == [
        "0 bytes", "1,000 bytes", "4 KB", "20 MB", "999 MB", "1.0 GB", "1.3 GB", "5,000 GB",
    ]  # fmt: skip


# --- the system


def test_control_groups_of_both_versions(tmp_path: Path) -> None:
    """The tightest limit counts, also of a group above; copies of files are no use of memory."""
    new, old = tmp_path / "new", tmp_path / "old"
    (new / "job" / "step").mkdir(parents=True)
    for folder, limit, used in ((new / "job", "1000", "900"), (new / "job" / "step", "max", "800")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 500\nactive_file 100\ninactive_file 200\nshmem 7\n")
    assert list(group_memory(new, "0::/job/step\n")) == [(400, 1000)]
    (old / "memory").mkdir(parents=True)
    (old / "memory" / "memory.limit_in_bytes").write_text("5000")
    (old / "memory" / "memory.usage_in_bytes").write_text("3000")
    (old / "memory" / "memory.stat").write_text("total_active_file 1\ntotal_inactive_file 2\n")
    assert list(group_memory(old, "5:cpu:/a\n4:memory:/the/hosts/path\n0::/\n")) == [(2003, 5000)]
    assert list(group_memory(tmp_path, "0::/\n")) == list(group_memory(new, "")) == []


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    now = resources.read(tmp_path, "me", {"other": 30})
    assert 0 < now.disk_free < now.disk_total
    assert 0 < now.memory_free < now.memory_total
    assert now.open_files["other"] == 30
    assert 3 <= now.open_files["me"] < now.files_limit


def test_the_file_limit_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        raise_file_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (soft, hard) == (min(before[1], 1 << 20), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_look(tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    one, now = Resources(tmp_path), GOOD
    monkeypatch.setattr(resources, "read", lambda *_: now)
    monkeypatch.setattr(one._due, "due", lambda: True)
    told: Any = "supervisor", {"learner-0": {"rss_mb": 700.0, "open_files": 30.0}, "aisrv-0": {"rss_mb": 300.0}}
    assert not one.look(*told)
    assert logged == []
    now = replace(GOOD, memory_free=100 << 20)
    assert [one.look(*told), one.look(*told)] == [True, True]
    assert [line.partition(" of ")[0] for line in logged] == ["WARNING 100 MB"] * 2
    assert "largest processes of the run are learner-0 (700 MB), aisrv-0 (300 MB)" in logged[1]
    assert not Resources(tmp_path).look(*told)  # not yet due
    now = GOOD
    assert not one.look(*told)
    assert logged[2:] == ["INFO 8.0 GB of memory are left: the workers go on"]

    def gone(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(resources, "read", gone)
    assert not one.look(*told)


# --- logs


def test_a_log_is_emptied_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By nobody's doing but the supervisor's: a process, and the processes that it started, write on."""
    monkeypatch.setattr(logs, "MOST_BYTES", 1000)
    log, other = tmp_path / "aisrv-0.log", tmp_path / "outside"
    other.write_text("x" * 5000)
    (tmp_path / "link.log").symlink_to(other)
    with log.open("ab", buffering=0) as file:
        for number in range(4):
            file.write(b"%d" % number * 900)
            assert rotate_all(tmp_path) == {}
            assert log.stat().st_size == 900  # small enough
            file.write(b"%d" % number * 900)
            assert rotate_all(tmp_path) == {}
            assert log.stat().st_size == 0
        subprocess.run([sys.executable, "-c", "print('last')"], stdout=file, check=True)
    assert log.read_text() == "last\n"
    assert [(tmp_path / f"aisrv-0.log.{n}").read_text() for n in (1, 2)] == ["3" * 1800, "2" * 1800]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "aisrv-0.log", "aisrv-0.log.1", "aisrv-0.log.2", "link.log", "outside",
    ]  # fmt: skip
    assert other.read_text() == "x" * 5000


def test_a_log_on_a_full_disk_stays_and_the_oldest_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, draft: Path, **_: Any) -> None:
        draft.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logs, "MOST_BYTES", 10)
    log = tmp_path / "learner-0.log"
    for name in ("", ".1", ".2"):
        (tmp_path / f"{log.name}{name}").write_text(f"{name} and so on and on")
    with monkeypatch.context() as disk:
        disk.setattr(shutil, "copyfile", full)
        assert rotate_all(tmp_path) == {str(log): f"{log} is large, and cannot be put aside: No space left on device"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [log.name, f"{log.name}.1"]
    rotate(log)
    assert log.read_text() == ""
    assert (tmp_path / f"{log.name}.2").read_text() == ".1 and so on and on"


# --- whole runs


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with 3 GB of memory, as a container has."""
    root = Path("/sys/fs/cgroup/memory")
    version_1 = root.is_dir()
    folder = (root if version_1 else root.parent) / f"realm-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(3 * GIB))
    except OSError:
        pytest.skip("only root can make a control group, where the system lets it")
    yield folder
    deadline = time.monotonic() + 60
    while folder.exists():
        with suppress(OSError):  # until its last process is gone
            folder.rmdir()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def join(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))


HOG = """
import sys, time
from pathlib import Path
from realm.config.machine_memory import memory
Path(sys.argv[1], "cgroup.procs").write_text("0")
kept = []
while memory()[0] > 120 << 20:
    kept.append(b"x" * (20 << 20))
print("full", flush=True)
time.sleep(3600)
"""


@pytest.mark.system
@pytest.mark.slow
def test_a_run_without_memory_waits_and_goes_on(tmp_path: Path, group: Path) -> None:
    with Run(tmp_path, "buffer_backend=native", "report_interval_s=0.1") as run:
        join(group, run.process.pid)  # before it starts any other
        run.wait_trained(20)
        hog = subprocess.Popen([sys.executable, "-c", HOG, group], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert hog.stdout is not None
            assert hog.stdout.readline() == "full\n"
            run.wait_for(lambda: "so the workers wait" in run.output.read_text(), "the workers were held back")
            still = []  # what was under way is still trained on; then nothing for more than one word of the supervisor
            run.wait_for(lambda: still.append(run.checkpoints()) or still[-240:] == still[-1:] * 240, "training waits")
            before = still[-1]
            assert "the largest processes of the run are" in run.output.read_text()
        finally:
            hog.kill()
            hog.wait()
        run.wait_for(lambda: "the workers go on" in run.output.read_text(), "there was memory again")
        run.wait_trained(before[-1][1] + 40)
        assert run.interrupt() == 0, run.text()
        assert {role["incarnation"] for role in run.file()["roles"].values()} == {1}, run.text()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a folder cannot be followed")
@pytest.mark.parametrize("how", ["renamed", "moved", "parent", "twice", "deleted", "replaced"])
def test_a_runs_folder_that_is_renamed_or_deleted_while_it_runs(tmp_path: Path, how: str, logged: list[str]) -> None:
    folder, other = tmp_path / "runs" / "one", tmp_path / "elsewhere"
    folder.mkdir(parents=True)
    other.mkdir()
    watch = Resources(folder)
    watch._follow()
    assert not logged
    if how == "deleted":
        folder.rmdir()
    elif how == "parent":
        new = folder.parent.rename(tmp_path / "other") / "one"
    else:
        new = folder.rename(other / "b" if how == "moved" else folder.with_name("two"))
    if how == "replaced":
        folder.mkdir()
    watch._follow()
    if how == "twice":
        new = new.rename(other / "c")
        folder.unlink()
        watch._follow()
    if how in ("deleted", "replaced"):
        assert watch.gone.startswith(
            f"{folder}: this run's folder was {'deleted' if how == 'deleted' else 'renamed to'}"
        )
        return
    (folder / "file").write_text("x")
    assert (new / "file").read_text() == "x"
    assert not watch.gone
    assert logged[0].startswith(f"WARNING {folder}: this run's folder was renamed to ")
    watch._follow()
    assert len(logged) == (2 if how == "twice" else 1)
