"""Files that somebody sent: each is one sentence, never a traceback, never a wait, never much memory."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loguru import logger

from realm.commands.main import main
from realm.commands.train import configuration_of
from realm.config.flow import check_memory
from realm.config.keys import AppConfig
from realm.config.load import RunConfig, load_config, to_toml
from realm.contract import Evaluation, Version
from realm.data.array_files import ArrayFiles
from realm.env import map as maps
from realm.env.oracle.cache import keep_arrays, kept_arrays
from realm.errors import CheckpointError, ConfigError, plain
from realm.files import read_bytes, read_json
from realm.launch.rundir import RunFile, boot_id, claim_run_dir, find_runs, read_run, start_of
from realm.learn import checkpoint
from realm.learn.best import BestModel
from realm.watch.status import log_plainly
from tests.cluster import PATIENCE_S, ROOT, Run
from tests.console import realm
from tests.learn.test_checkpoint import Agent

BRACKETS = "[" * 100_000


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 << 30)  # a hole: it takes no room


STRANGE: list[tuple[Callable[[Path], None], str]] = [
    (device, "not a regular file"),
    (pipe, "not a regular file"),
    (huge, "too large with 10,737,418,240 bytes"),
]


@pytest.mark.parametrize(("make", "text"), STRANGE)
def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path, make: Callable[[Path], None], text: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(OSError, match=text):
        read_bytes(tmp_path / "x", 1000)
    with pytest.raises(OSError, match="directory"):
        read_bytes(tmp_path, 1000)
    with pytest.raises(OSError, match="too large"):
        read_bytes(Path("/proc/self/status"), 10)  # which says that it has 0 bytes
    assert len(os.listdir("/proc/self/fd")) < 200


def test_a_file_is_read_with_the_memory_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert read_bytes(tmp_path / "x", 1 << 60) == b"abc"  # no machine could set aside what it may have
    assert read_bytes(Path("/proc/self/status"), 1 << 60).startswith(b"Name:")
    os.truncate(tmp_path / "x", 1 << 43)
    with pytest.raises(OSError, match=r"no memory for its 8,796,093,022,208 bytes") as caught:
        read_bytes(tmp_path / "x", 1 << 60)
    assert caught.value.filename == str(tmp_path / "x")


@pytest.mark.system
@pytest.mark.slow
def test_a_run_in_a_narrow_place(tmp_path: Path) -> None:
    narrow = tmp_path / ("é" * 60) / "x y%s 'q' \"d\" {a} [red] <red>" / ("z" * 150)  # no unix socket can lie in it
    narrow.mkdir(parents=True)
    variables = {"TMPDIR": str(narrow), "HOME": "/nowhere", "XDG_CACHE_HOME": "/proc"}
    with Run(narrow, "buffer_backend=native", "max_env_steps=600", variables=variables) as run:
        for limit, value in ((resource.RLIMIT_AS, 3_000_000 << 10), (resource.RLIMIT_NOFILE, 64)):
            resource.prlimit(run.process.pid, limit, (value, value))  # before it has done more than begin
        assert run.finish() == 0, run.text()
    assert set(narrow.iterdir()) == {run.output, run.dir.parent}  # nothing is left in TMPDIR


@pytest.mark.parametrize(
    "text", [BRACKETS, "[" * 100 + "]" * 100, '{"a":' * 5000 + "1" + "}" * 5000, "9" * 5000, "\xff"]
)
def test_json_that_is_no_plain_data(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"nested too deeply|digits|utf-8"):
        read_json(tmp_path / "x", 1 << 20)
    (tmp_path / "x").write_text("[" * 30 + "]" * 30)
    assert isinstance(read_json(tmp_path / "x", 1 << 20), list)


# --- configurations


def config_error(path: Path) -> str:
    started = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert time.process_time() - started < 60  # a time-out, not a speed: what it took before had no end
    assert "\n" not in str(caught.value)
    return str(caught.value)


DEEP = {
    "key": "[env]\n" + ".".join(["a"] * 3000) + " = 1",
    "table": "[env." + ".".join(["a"] * 3000) + "]",
    "tables": "[env]\n" + "x = " + "{a = " * 3000 + "1" + "}" * 3000,
    "arrays": "[env]\n" + "x = " + "[" * 3000 + "]" * 3000,
    "quoted": "[env]\n" + ".".join(["'a.b'"] * 3000) + " = 1",
    "on many lines": "[env]\nx = [\n" + "[\n" * 3000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_a_configuration_that_is_nested_too_deeply(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x.toml").write_text(DEEP[kind])
    line = 1 if kind == "table" else 2
    assert f"x.toml:{line}: " in (text := config_error(tmp_path / "x.toml"))
    assert "is nested too deeply" in text


def test_long_configurations_take_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("[env]\nx = [\n" + "  'some words, # [ { and = signs',  # a comment ]\n" * 4000 + "]\ny = 2\n")
    config = load_config(path)
    assert len(config.env["x"]) == 4000
    assert config.places["env.y"].endswith(":4004")
    path.write_text("[env]\n" + "".join(f"k{i} = {i}\n" for i in range(20_000)) + "k7 = 1\n")
    assert "x.toml:20002: key 'env.k7': already set at line 9;" in config_error(path)
    path.write_text("[env]\n" + "".join(f"k{i} = {i}\n" for i in range(20_000)) + "oh no\n")
    assert "x.toml:20002: 'oh no' is not TOML" in config_error(path)
    path.write_text("[env]\nx = [\n" + "1,\n" * 4000)
    assert "x.toml:2: 'x = [' is not TOML" in config_error(path)


@pytest.mark.parametrize(
    "value",
    [
        '"""a\n[[[ "quoted" \\""" \n"""',
        "'''\n'' [ \\'''",
        '"\\" # ["',
        "'\\'",
        "[ # ]\n1 ]",
        '""""a"""""',
        "1.5",
        "{a.b = [1]}",
    ],
)
def test_quotes_comments_and_brackets_are_told_apart(tmp_path: Path, value: str) -> None:
    (tmp_path / "x.toml").write_text(f"[env]\nx = {value}\ny = 1\n")
    config = load_config(tmp_path / "x.toml")
    assert config.places["env.y"].endswith(f":{3 + value.count(chr(10))}")
    assert set(config.env) == {"x", "y"}


@pytest.mark.parametrize("override", ["env." + ".".join(["a"] * 3000) + "=1", "env.x=" + "[" * 3000 + "]" * 3000])
def test_overrides_that_are_nested_too_deeply(tmp_path: Path, override: str) -> None:
    (tmp_path / "x.toml").write_text("")
    if override.startswith("env.x="):
        assert isinstance(load_config(tmp_path / "x.toml", [override]).env["x"], str)
        return
    with pytest.raises(ConfigError, match="not an override"):
        load_config(tmp_path / "x.toml", [override])


@pytest.mark.parametrize(("make", "text"), STRANGE)
def test_a_configuration_that_is_no_file(tmp_path: Path, make: Callable[[Path], None], text: str) -> None:
    make(tmp_path / "x.toml")
    assert (text if make is huge else "not a file") in config_error(tmp_path / "x.toml")


# --- maps


def a_map(folder: Path) -> Path:
    maps.save(maps.default(), folder)
    return folder


def map_error(folder: Path) -> str:
    with pytest.raises(maps.MapError) as caught:
        maps.load(folder)
    assert len(str(caught.value)) < 400
    return str(caught.value).removeprefix(str(folder))


@pytest.mark.parametrize("name", [maps.FLAGS_FILE, maps.POINTS_FILE])
@pytest.mark.parametrize(("make", "text"), STRANGE)
def test_a_map_that_is_no_file(tmp_path: Path, make: Callable[[Path], None], text: str, name: str) -> None:
    (a_map(tmp_path) / name).unlink()
    make(tmp_path / name)
    assert text in map_error(tmp_path)


def test_numbers_and_nesting_in_a_map(tmp_path: Path) -> None:
    flags, points = tmp_path / maps.FLAGS_FILE, tmp_path / maps.POINTS_FILE
    good = flags.read_text() if flags.exists() else a_map(tmp_path).joinpath(maps.FLAGS_FILE).read_text()
    for wrong in (good.replace("0,", "9" * 5000 + ",", 1), BRACKETS, '{"CellWidth": ' + "9" * 4000 + "}"):
        flags.write_text(wrong)
        map_error(tmp_path)
    flags.write_text(good.replace('"CellWidth": 500', '"CellWidth": "' + "x" * 100_000 + '"'))
    assert "CellWidth is 'xxx" in map_error(tmp_path)
    flags.write_text(good)
    lines = points.read_text().splitlines()
    bomb = "a: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)) + "4: *a59\n"
    for wrong in (
        "9" * 5000,
        "0x" + "f" * 20_000,
        ":".join(["59"] * 5000),
        "59:" * 5000 + "1.5",
        "[" * 5000,
        "1e99999",
    ):
        points.write_text("\n".join([*lines[:4], f"4: [{wrong}, 1]", *lines[5:]]))
        map_error(tmp_path)
        points.write_text("\n".join([*lines, f"{wrong}: [1, 1]"]))
        map_error(tmp_path)
    points.write_text(bomb)
    map_error(tmp_path)
    points.write_text("\n".join([*lines[:4], *bomb.splitlines()[1:], *lines[5:]]).replace("*a0", "1"))
    map_error(tmp_path)


# --- runs


def a_run(folder: Path, pid: int, created: float) -> None:
    folder.mkdir(parents=True)
    RunFile("0" * 16, pid, created, boot_id(), time.time(), state="running").write(folder)


FORGED = {
    "brackets": BRACKETS,
    "a list": "[]",
    "no JSON": "\0\0",
    "a huge number": '{"run_id": "x", "pid": ' + "9" * 5000 + "}",
    "other types": '{"run_id": "x", "pid": "y", "created": []}',
    "roles": '{"run_id": "x", "pid": 1, "created": 1.0, "roles": {"a": {"pid": {}, "created": 1}}}',
}


def forge(folder: Path) -> list[Path]:
    """A folder of runs with every kind of run.json that is none."""
    paths = []
    for kind, text in FORGED.items():
        paths.append(folder / kind.replace(" ", "-") / "run.json")
        paths[-1].parent.mkdir(parents=True)
        paths[-1].write_text(text)
    for make, _ in STRANGE:
        paths.append(folder / make.__name__ / "run.json")
        paths[-1].parent.mkdir(parents=True)
        make(paths[-1])
    return paths


def test_every_run_json_that_is_none_is_named_and_passed_over(tmp_path: Path) -> None:
    wrong = forge(tmp_path)
    a_run(tmp_path / "good", os.getpid(), start_of(os.getpid()))
    said: list[str] = []
    assert [path.name for path, _ in find_runs(tmp_path, said.append)] == ["good"]
    assert sorted(said) == sorted(one for one in said if "skipped, it is not the run.json of a run" in one)
    assert [one.partition(":")[0] for one in sorted(said)] == sorted(map(str, wrong))
    assert all(len(one) < 400 for one in said)
    assert read_run(tmp_path / "nowhere", said.append) is None
    assert len(said) == len(wrong)


@pytest.mark.system
def test_other_runs_can_still_be_stopped(tmp_path: Path) -> None:
    wrong = forge(tmp_path)
    process = subprocess.Popen(["sleep", "600"])
    try:
        a_run(tmp_path / "good", process.pid, start_of(process.pid))
        code, out, err = realm("status", "--log-dir", tmp_path)
        assert (code, len(err.splitlines())) == (0, len(wrong)), err
        assert f"{tmp_path}/good: running" in out
        code, out, err = realm("stop", "all", "--log-dir", tmp_path)
        assert code == 0, err
        assert f"stopped {tmp_path}/good" in out
        assert all(f"warning: {path}: skipped" in err for path in wrong)
        assert "Traceback" not in err
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "[env]\nspeed = 1\n"])
def test_an_empty_configuration_is_not_resumed_with_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"config.toml: has no key 'algo', and Realm wrote all: the file is damaged"):
        configuration_of(tmp_path, [])


WAYS_OUT = {
    "ckpt": "folder", "best_ckpt": "folder", "user_ckpt": "nothing", "log": "folder", "log/tensorboard": "folder",
    "log/learner-0.log": "file", "log/warnings.log": "same file", "replay": "folder", "replay/reward.npy": "same file",
    "evaluations.jsonl": "file", "config.toml": "file", "run.json": "file", "summary.json": "nothing", ".lock": "file",
    ".run.json.77": "file", "ckpt/model.ckpt-1-3": "folder", "user_ckpt/.writing-model.ckpt-1-3": "nothing",
    "progress": "pipe", "models/x.pkl": "same file", "log/up": "..", "tty": "device",
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), WAYS_OUT.items())
def test_a_run_folder_that_leads_out_of_itself_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    other = tmp_path / "other"
    (other / "model.ckpt-1-1").mkdir(parents=True)
    (other / "file").write_text("mine")
    path = tmp_path / "runs" / "one" / name
    path.parent.mkdir(parents=True)
    to = {"folder": other, "file": other / "file", "nothing": other / "new", "device": Path("/dev/tty")}
    if kind == "same file":
        path.hardlink_to(other / "file")
    elif kind == "pipe":
        pipe(path)
    else:
        path.symlink_to("../../.." if kind == ".." else to[kind])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=rf"one/{name}: is (neither a file|a link out|a hard link)"):
        claim_run_dir(AppConfig(run_name="one", log_dir=str(tmp_path / "runs")), fresh=False)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was made or deleted, here or there
    assert (other / "file").read_text() == "mine"


def test_links_that_stay_inside_are_allowed(tmp_path: Path) -> None:
    run = tmp_path / "disk" / "runs" / "one"
    model = run / "ckpt" / "model.ckpt-1-3"
    model.mkdir(parents=True)
    (model / "state.pt").write_text("x")
    (tmp_path / "kept.pt").hardlink_to(model / "state.pt")  # a checkpoint that somebody keeps
    (run / "newest").symlink_to("ckpt/model.ckpt-1-3")
    (run / "notes").write_text("x")
    (run / "notes-2").hardlink_to(run / "notes")
    (tmp_path / "train").symlink_to(tmp_path / "disk" / "runs")
    (tmp_path / "disk" / "runs" / "two").symlink_to("one")
    for name in ("one", "two"):  # the folder of runs is a link, and so may a run be
        run_dir, run_file = claim_run_dir(AppConfig(run_name=name, log_dir=str(tmp_path / "train")), fresh=False)
        run_file.lock.close()
        assert run_dir.samefile(run)


@pytest.mark.system
@pytest.mark.slow
def test_a_resume_touches_no_other_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    settings = ("wrapper_type=local", f"log_dir={runs}", "max_env_steps=100", "modelpool_max_save_model_count=1")
    given = ["--config", "tests/counting/counting.toml", *(text for one in settings for text in ("--set", one))]
    assert realm("start", *given, "--set", "run_name=mine")[0] == 0
    shutil.copytree(runs / "mine", runs / "sent", ignore=shutil.ignore_patterns("ckpt"))
    (runs / "sent" / "ckpt").symlink_to("../mine/ckpt")
    before = {path: path.stat().st_mtime_ns for path in sorted(runs.rglob("*"))}
    code, _, err = realm("resume", runs / "sent", "--set", "max_env_steps=1000")
    assert code == 2, err
    assert f"error: {runs}/sent/ckpt: is a link out of the run's folder, to ../mine/ckpt" in err
    assert {path: path.stat().st_mtime_ns for path in sorted(runs.rglob("*"))} == before


STEERING = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\b\rerror: forged\nerror: forged\u202e\u2028[red]{}<red>%s"


def test_a_line_for_a_terminal() -> None:
    assert plain("a [red]b[/red] {} <red> \t日本語 é 'x' \\") == "a [red]b[/red] {} <red> \t日本語 é 'x' \\"
    steers = [*range(9), *range(10, 32), *range(127, 160), 0x200E, 0x2028, 0x202E, 0x2066, 0xDC80]
    shown = plain("".join(map(chr, steers)))
    assert shown.isascii()
    assert shown.isprintable()
    assert plain(STEERING).startswith(
        "\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\x7f\\x08\\rerror: forged\\nerror: forged\\u202e"
    )


@pytest.mark.parametrize("doctor", [False, pytest.param(True, marks=pytest.mark.slow)])  # it imports all libraries
def test_nothing_of_a_run_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], doctor: bool) -> None:
    folder = tmp_path / f"one{STEERING}"
    (folder / "log").mkdir(parents=True)
    (folder / "log" / "learner-0.log").write_text(STEERING.replace("\r", "").replace("\n", ""))
    pipe(folder / "log" / "actor-0.log")
    (folder / "evaluations.jsonl").write_text(json.dumps({"statistic": STEERING, "best": 1.0, "score": 1.0}))
    path = saved(folder / "best_ckpt")
    path.with_name(f"{path.name}.json").write_text(json.dumps({"statistic": STEERING, "score": 1.0, "env_steps": 1}))
    config = to_toml(RunConfig(AppConfig(), {STEERING: STEERING, "n": 1}, {}, {}))
    (folder / "config.toml").write_text(config)
    run = RunFile("0" * 16, 1, 1.0, cause=STEERING, state=STEERING, statistic=STEERING, beginning=[STEERING])
    run.write(folder)
    shutil.copytree(folder, tmp_path / "two", ignore=shutil.ignore_patterns("log"))
    (tmp_path / "two" / "config.toml").write_text(config.replace("n = 1", "n = 2"))
    broken = tmp_path / f"three{STEERING}"
    broken.mkdir()
    (broken / "run.json").write_text(f'{{"{STEERING}')
    one, where = str(folder), ["--log-dir", str(tmp_path)]
    commands = [
        ["status"], ["runs"], ["runs", "--prune", "--keep", "0"], ["compare", one, "two"], ["logs", one], ["eval", one],
        ["stop", "all"], ["save"], ["plot", one, "--out", str(tmp_path / STEERING / "x.png")], ["attach", one],
        ["resume", one], ["eval", one, "--id", STEERING], [STEERING],
    ]  # fmt: skip
    for command in [["doctor"]] if doctor else commands:
        main([*command, *(where if command[0] != STEERING else [])])
        out, err = capsys.readouterr()
        assert out + err, command
        assert not set(out + err) & set(STEERING) - set(map(chr, range(32, 127))) - {"\n"}, command
        assert not re.search("^error: forged", out + err, re.MULTILINE), command


def test_what_is_logged_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log_plainly()
    text = io.StringIO()
    number = logger.add(text, format="{message}")
    logger.warning("{}: {}", "learner-0", STEERING)
    logger.error("the traceback:\n  {}", "\x1b[1mred")
    logger.remove(number)
    assert text.getvalue().count("\n") == 4  # a message may have several lines
    assert set(text.getvalue()) & set(STEERING) <= set(map(chr, range(32, 127))) | {"\n"}


def test_commands_print_by_one_function() -> None:
    allowed = ("json.dumps", "shtab.complete", "wrapped", "lines(")  # what no terminal misreads, logs, and a `Screen`
    for path in sorted((ROOT / "realm" / "commands").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "print":
                assert any(name in ast.unparse(call.args[0]) for name in allowed), f"{path}:{call.lineno}"


# --- models


def saved(folder: Path) -> Path:
    return checkpoint.save(folder, Agent(1), Version(1, 3), 10, "s", 9)  # type: ignore[arg-type]


def resign(path: Path, **entries: Any) -> None:
    """A manifest with other entries and a good digest, and sums of the files as they are."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest.pop("digest")
    for name in manifest["sha256"]:
        manifest["sha256"][name] = checkpoint.hashlib.sha256((path / name).read_bytes()).hexdigest()
    manifest |= entries
    (path / "manifest.json").write_text(json.dumps({**manifest, "digest": checkpoint._digest(manifest)}))


@pytest.mark.parametrize("name", ["manifest.json", "state.pt", "model.safetensors"])
@pytest.mark.parametrize(("make", "text"), STRANGE)
def test_a_checkpoint_with_a_part_that_is_no_file(
    tmp_path: Path, make: Callable[[Path], None], text: str, name: str
) -> None:
    path = saved(tmp_path)
    (path / name).unlink()
    make(path / name)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "entries", [{"env_steps": float("inf")}, {"env_steps": 10**30}, {"version": [1, -1]}, {"version": 1}]
)
def test_numbers_in_a_manifest(tmp_path: Path, entries: dict[str, Any]) -> None:
    path = saved(tmp_path)
    resign(path)
    assert checkpoint.load(path).env_steps == 10
    resign(path, **entries)
    with pytest.raises(CheckpointError, match="not a manifest"):
        checkpoint.load(path)


@pytest.mark.parametrize("text", [BRACKETS, '{"digest": ' + "[" * 900 + "]" * 900 + "}", "9" * 5000, "{}"])
def test_nesting_in_a_manifest(tmp_path: Path, text: str) -> None:
    path = saved(tmp_path)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a manifest"):
        checkpoint.load(path)


def test_a_state_that_would_unpack_to_much(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with zipfile.ZipFile(path / "state.pt") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path / "state.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in {**parts, "archive/data/9": bytes(50 << 20)}.items():
            archive.writestr(name, body)
    resign(path)
    with pytest.raises(CheckpointError, match=r"state\.pt"):
        checkpoint.load(path)


@pytest.mark.parametrize("text", [BRACKETS, '{"setting": {}, "score": ' + "9" * 4000 + "}"])
def test_the_scores_of_a_best_model(tmp_path: Path, text: str) -> None:
    best = BestModel(tmp_path / "best", {})
    result = Evaluation(Version(1, 3), 10, "score", 5.0, 0.0, Version(0, 0), {"score": 5.0})
    assert best.offer(Agent(1), result, "s", {})  # type: ignore[arg-type]
    (tmp_path / "best" / "model.ckpt-1-3.json").write_text(text)
    assert BestModel(tmp_path / "best", {}).version == Version(0, 0)


@pytest.mark.parametrize(("make", "text"), STRANGE)
def test_a_replay_memory(tmp_path: Path, make: Callable[[Path], None], text: str) -> None:
    files = ArrayFiles(tmp_path)
    make(tmp_path / "x.npy")
    with pytest.raises(ConfigError, match=r"x\.npy: is no array"):
        files.array("x", (3,), np.float32)
    (tmp_path / "state.json").write_text(BRACKETS)
    assert files.take() == {}


def test_the_oracles_cache(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    keep_arrays(file, a=np.arange(5))
    assert (kept_arrays(file) or {})["a"].tolist() == [0, 1, 2, 3, 4]
    content = io.BytesIO()
    np.savez_compressed(content, a=np.zeros(65 << 20, np.uint8))  # small as a file, too large once unpacked
    file.write_bytes(content.getvalue())
    assert kept_arrays(file) is None
    for make, _ in STRANGE:
        file.unlink()
        make(file)
        assert kept_arrays(file) is None


# --- numbers that no machine has, and a learner that is killed while the run stops


def test_memory_is_counted_before_anything_starts() -> None:
    numbers = {"workers": 2, "envs_per_worker": 32, "chunk_bytes": 1 << 20, "kept": 128 << 20}
    check_memory(**numbers, usable=1 << 30)
    with pytest.raises(
        ConfigError, match=r"aisrv_count 2 x .* 32 environments .* need at least 0.4 GB .* 0.3 GB are there"
    ):
        check_memory(**numbers, usable=300 << 20)


@pytest.mark.system
def test_more_environments_than_memory(tmp_path: Path) -> None:
    settings = ("aisrv_count=1024", "aisrv_connect_to_kaiwu_env_count=65536", f"log_dir={tmp_path}/runs")
    code, _, err = realm("start", *(text for one in settings for text in ("--set", one)))
    assert code == 2, err
    assert err.startswith("error: aisrv_count 1024 x aisrv_connect_to_kaiwu_env_count 65536 environments and"), err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("order", ["stop, kill", "kill, stop"])
def test_a_learner_killed_while_the_run_stops_is_no_success(tmp_path: Path, order: str) -> None:
    with Run(tmp_path, "buffer_backend=native", "dump_model_freq=1000000", "restart_budget=3") as run:
        run.wait_running()
        pid = run.pid("learner-0")
        os.kill(pid, signal.SIGSTOP)  # so that it cannot end in order between the two
        for step in order.split(", "):
            os.kill(*((run.process.pid, signal.SIGTERM) if step == "stop" else (pid, signal.SIGKILL)))
        assert run.finish() == 1, run.text()
        text = run.output.read_text()
        assert re.search(r"ERROR +the run has ended: .*its updates since the last checkpoint are lost", text), text
        assert run.file()["state"] == "failed"
        assert run.processes() == []
