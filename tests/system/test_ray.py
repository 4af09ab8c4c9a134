"""Runs whose hosts Ray starts: its head here, its nodes in namespaces (`tests/machines.py`). Ray is in no lock."""

import json
import shutil
from importlib.util import find_spec

import pytest

from tests.cluster import ROOT
from tests.machines import NET, lan, until
from tests.ray_cluster import Cluster
from tools.soak.hosts import HOST_FAULTS
from tools.soak.victim import Ground

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]


@pytest.mark.parametrize("part", ["R1", "R5", "R6", "R8"])
def test_one_round_of_each_fault(tmp_path, part):
    """Each checks itself what is lost, what lives on, and in what time the work goes on elsewhere."""
    outcome = HOST_FAULTS[part][1](Ground(tmp_path / part, 0, 0.0, 1, (), lambda text: None))
    print(json.dumps(outcome.hosts))


def test_what_is_wrong_is_a_sentence_and_leaves_nothing_behind(tmp_path):
    big, other = tmp_path / "big", tmp_path / "other"
    shutil.copytree(ROOT / "tests" / "counting", big / "tests" / "counting")
    with open(big / "data", "wb") as file:
        file.truncate(101 << 20)
    other.mkdir()
    module = "import sys, types\n\nsys.modules['ray._version'] = types.SimpleNamespace(version='2.59.0', commit='')\n"
    (other / "sitecustomize.py").write_text(module)

    def refused(name, text, *settings, **more):
        with cluster.run(name, *settings, **more) as run:
            assert run.finish() == 2, run.text()
            told = run.output.read_text()
            assert text in told, told
            assert "Traceback" not in told
            until(lambda: there.realm() == run.processes() == [], "nothing is left anywhere", 15)
            assert not run.dir.exists()

    with lan(tmp_path, 1) as (there,):
        with Cluster(tmp_path, [there]) as cluster:
            config = str(ROOT / "tests" / "counting" / "counting.toml")
            refused("large", f"{big}: has more than 100 MiB", cwd=big, config=config)
            refused("none", "no connection to Ray (nobody answers at ", variables={"RAY_ADDRESS": f"{NET}.1:6398"})
            refused("few", "Ray's other machines, and their free cores: host1", "start_timeout_s=30", hosts=2)
            refused("token", "no connection to Ray (Failed to connect", variables={"RAY_AUTH_TOKEN": "0" * 64})
            refused("version", "was started with: Ray: 2.59.0", variables={"PYTHONPATH": f"{other}:{ROOT}"})
            shutil.rmtree(there.keys)
            refused("keys", "host1: keys_dir = ")
        with Cluster(tmp_path, [], {"RAY_AUTH_MODE": "disabled"}) as cluster:
            refused("open", "Ray asks for no token")
