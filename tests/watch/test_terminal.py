"""What reads from the terminal while a run shows itself there: debuggers and `input()` are seen, and the lines come
back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cluster import ROOT
from tests.console import read_until, start_in_terminal

READERS = """
import pdb, sys, time
from realm.watch.display import live_lines
from realm.watch.progress import busy, counting

def broken():
    try:
        1 / 0
    except ZeroDivisionError:
        pdb.post_mortem(sys.exc_info()[2])

def asks():
    print("over there:", end=" ", flush=True)
    return sys.stdin.readline()

def takes():
    for line in sys.stdin:
        return line

with live_lines() as show:
    show(lambda width: ["the table"])
    print("got", input("a word? "))
    print("got", asks())
    breakpoint()
    pdb.set_trace()
    broken()
    print("got", takes())
    time.sleep(1.1)
    show(lambda width: ["it is", "back"])
    time.sleep(0.6)
with busy("a spinner"):
    breakpoint()
with counting("a bar", 10) as show:
    show(1, 1)
    print("got", input("another word? "))
print("input is as it was:", input.__module__, type(sys.stdin).__name__, type(sys.stdout).__name__)
"""


def test_the_lines_give_way_to_whoever_reads() -> None:
    process, terminal = start_in_terminal(READERS)
    seen = ""
    for wanted, typed in [
        ("a word? ", "one"), ("over there: ", "two"), ("(Pdb) ", "p 6*7"), ("42", "c"), ("(Pdb) ", "p 6*8"),
        ("48", "c"), ("(Pdb) ", "p 6*9"), ("54", "c"), ("", "three"), ("it is", ""), ("(Pdb) ", "p 6*11"), ("66", "c"),
        ("another word? ", "four"),
    ]:  # fmt: skip
        seen += read_until(terminal, wanted.encode()) if wanted else ""
        os.write(terminal, f"{typed}\n".encode() if typed else b"")
    seen += read_until(terminal)
    assert process.wait(60) == 0, seen
    assert [f"got {word}" in seen for word in ("one", "two", "three", "four")] == [True] * 4, seen
    assert "<module>()" in seen  # where the debugger stands, printed before its prompt
    assert "broken()" in seen
    assert "input is as it was: builtins TextIOWrapper TextIOWrapper" in seen


def with_breakpoints(folder: Path) -> None:
    """A copy of the counting package that stops once in each of four functions."""
    shutil.copytree(ROOT / "tests" / "counting", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, head in [
        ("feature/definition.py", "def make_envs(num_envs, seed, config, options):"),
        ("train_workflow.py", "def workflow(envs, policy, context):"),
        ("algorithm/agent.py", "    def predict(self, obs, context):"),
        ("algorithm/agent.py", "    def learn(self, batch, info):"),
    ]:
        text, once = (folder / name).read_text(), head.split()[1].split("(")[0].upper()
        indent = " " * (len(head) - len(head.lstrip()) + 4)
        text = text.replace(head, f"{head}\n{indent}if {once} and {once}.pop():\n{indent}    breakpoint()")
        (folder / name).write_text(text + f"\n\n{once} = [True]\n")


@pytest.mark.slow
@pytest.mark.system
def test_breakpoints_in_a_run_of_one_process(tmp_path: Path) -> None:
    with_breakpoints(tmp_path / "stops")
    settings = ["algo=stops", "wrapper_type=local", "log_dir=runs", "run_name=one", "max_env_steps=100000"]
    words = ["start", "--config", str(ROOT / "conf" / "smoke.toml")] + [
        part for one in settings for part in ("--set", one)
    ]
    process, terminal = start_in_terminal(
        f"import sys\nfrom realm.commands.main import main\nsys.exit(main({words}))", tmp_path
    )
    seen = ""
    for number, function in enumerate(("make_envs", "workflow", "predict", "learn")):
        seen += read_until(terminal, b"(Pdb) ")
        os.write(terminal, f"p 6*{number + 5}\n".encode())
        seen += read_until(terminal, f"\n{6 * (number + 5)}".encode())
        assert f"{function}()" in seen, seen
        os.write(terminal, b"q\n" if function == "learn" else b"c\n")
    seen += read_until(terminal)
    assert process.wait(60) == 1, seen
    assert "error: the debugger was left (by q" in seen
    assert "Traceback" not in seen


def test_a_terminal_that_cannot_write_over_lines_gets_lines() -> None:
    """As that of Emacs: rich would draw nothing there."""
    code = """
import os
os.environ["TERM"] = "dumb"
from realm.watch.display import display
from realm.watch import progress
from realm.watch.status import Status
progress.LINE_EVERY_S = progress.LONG_S = 0.0
with progress.counting("a count", 10) as show:
    show(1, 1)
with display("a run", "Ctrl+C ends the run"):
    print("it is shown")
print("done", progress.has_screen())
"""
    process, terminal = start_in_terminal(code)
    seen = read_until(terminal)
    assert process.wait(60) == 0, seen
    assert "a count" in seen
    assert "done False" in seen
    assert "\x1b[" not in seen
