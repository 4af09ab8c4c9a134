"""Makes a copy of the counting user that hangs once, at one place: for the tests and for tools/soak."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
HANG = """
import os, time
from pathlib import Path

def once(place):
    flag = Path(__file__).parents[1] / f"hung-{place}"
    if not flag.exists():
        flag.touch()
        time.sleep(10_000)
"""
DEFINITION, AGENT = "feature/definition.py", "algorithm/agent.py"
# the start's own try of the environment has one of them; the learner has made updates when it hangs
PLACES = {
    "make_envs": (DEFINITION, "    return CountingEnvs(num_envs", "num_envs > 1", "aisrv"),
    "reset": (DEFINITION, "        self.count[:] = 0\n", "self.num_envs > 1", "aisrv"),
    "step": (DEFINITION, "        reset = self.ended.copy()\n", "self.count[0, 0] > 200", "aisrv"),
    "predict": (AGENT, '        count = obs["count"][:, 0]\n', "len(context.first) > 1", "actor"),
    "learn": (AGENT, "        self.check(batch, info)\n", "info.version.update > 20", "learner"),
}
"""Place -> file, the line before which it hangs, when, and the role in whose process that is."""


def make(folder, place):
    """Write the package `hanging` into `folder`; return the variables with which a run finds it."""
    package = folder / "hanging"
    shutil.copytree(ROOT / "tests" / "counting", package)
    (package / "hang.py").write_text(HANG)
    file, line, when, _ = PLACES[place]
    source = (package / file).read_text()
    assert source.count(line) == 1, f"{place}: the line before which it hangs has changed"
    indent = line[: len(line) - len(line.lstrip())]
    call = f"{indent}if {when}:\n{indent}    from hanging.hang import once; once('{place}')\n"
    (package / file).write_text(source.replace(line, call + line))
    return {"PYTHONPATH": f"{folder}:{ROOT}"}
