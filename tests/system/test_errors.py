"""What users do wrong most often: each is one sentence on stderr and exit code 2, and leaves nothing behind."""

import shutil

import pytest

from tests.cluster import ROOT
from tests.console import finished
from tests.saved import checkpoint

pytestmark = pytest.mark.system
COUNTING = "tests/counting/counting.toml"
DEFINITION = "feature/definition.py"


def start(tmp_path, *overrides, config="conf/smoke.toml", cwd=ROOT, script=("-m", "realm", "start")):
    command = [*script, "--config", str(ROOT / config)]
    for one in (f"log_dir={tmp_path / 'runs'}", "wrapper_type=local", "max_env_steps=500", *overrides):
        command += ["--set", one]
    return finished(*command, cwd=cwd)


def sentence(done):
    """The one line on stderr; log lines of a run that had begun stand before it."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = [one for one in done.stderr.splitlines() if " INFO " not in one]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def refused(tmp_path, done):
    """The sentence of a start that has to leave nothing behind."""
    text = sentence(done)
    assert "INFO" not in done.stderr
    assert not (tmp_path / "runs").exists()
    return text


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("env.bogus=1", "bogus is 1, but there is no such option"),
        ("env.treasure_num=99", "treasure_num is 99, it must be"),
        ("env.map=/nonexistent", "/nonexistent"),
    ],
)
def test_a_wrong_option_of_the_game(tmp_path, override, text):
    got = refused(tmp_path, start(tmp_path, override))
    key = override.partition("=")[0]
    assert f"key '{key}': " in got
    assert got.startswith("--set ")
    assert text in got


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("    return CountingEnvs(", "    1 / 0\n    return CountingEnvs(", "ZeroDivisionError: division by zero"),
        (
            'return {"count": self.count.copy()}, {}',
            "return None, {}",
            "CountingEnvs.reset returned observation None; it",
        ),
        ('Field((3,), "int64")', 'Field((3,), "int46")', "ContractError: "),
        ("self.count[:, 0] += 1", "raise OSError('step\\nfailed')", "OSError: step failed"),
        ("        self.ended[:] = False\n", "        self.ended[:] = self.nothing\n", "AttributeError: "),
    ],
    ids=["make_envs", "no observation", "dtype", "step", "reset"],
)
def test_a_definition_that_raises(tmp_path, old, new, text):
    package = tmp_path / "wrong"
    shutil.copytree(ROOT / "tests" / "counting", package)
    source = (package / DEFINITION).read_text()
    assert old in source
    (package / DEFINITION).write_text(source.replace(old, new))
    got = refused(tmp_path, start(tmp_path, "algo=wrong", cwd=tmp_path))
    assert f"wrong/{DEFINITION}:" in got
    assert text in got


MADE = "    return CountingEnvs(num_envs, config.episode_length)\n"
SINGLE = '    import gymnasium\n\n    return gymnasium.make("CartPole-v1")\n'
SAME_STEP = f'{MADE[:-1].replace("return", "envs =")}\n    envs.metadata["autoreset_mode"] = AutoresetMode.SAME_STEP\n'


@pytest.mark.parametrize(
    ("mode", "old", "new", "text"),
    [
        (
            "local",
            MADE,
            SINGLE,
            "make_envs returned a single environment, TimeLimit; it must return a vector environment, such as",
        ),
        (
            "remote",
            MADE,
            f"{SAME_STEP}    return envs\n",
            "make_envs returned CountingEnvs with autoreset mode SameStep; it must",
        ),
        (
            "local",
            MADE,
            SAME_STEP.replace("AutoresetMode.SAME_STEP", "None") + "    return envs\n",
            "make_envs returned CountingEnvs, whose metadata does not say how it resets; if the step after",
        ),
        (
            "local",
            "ActionSpec(n=1000)",
            "ActionSpec(n=9)",
            "spec returned ActionSpec(n=9), but the environments' action space is",
        ),
    ],
    ids=["single", "same step", "unsaid", "action"],
)
def test_environments_that_cannot_be_trained_on(tmp_path, mode, old, new, text):
    package = tmp_path / "wrong"
    shutil.copytree(ROOT / "tests" / "counting", package)
    source = (package / DEFINITION).read_text()
    assert old in source
    (package / DEFINITION).write_text(source.replace(old, new))
    got = refused(tmp_path, start(tmp_path, "algo=wrong", f"wrapper_type={mode}", "max_seconds=60", cwd=tmp_path))
    assert got.startswith(f"{package / DEFINITION}: {text}")


@pytest.mark.slow
def test_models_of_another_network_or_other_shapes(tmp_path):
    """A refused resume leaves the run as it was: its configuration still fits its models."""
    assert start(tmp_path, "run_name=one").returncode == 0
    config = tmp_path / "runs" / "one" / "config.toml"
    before = config.read_text()
    assert "do not fit the model" in sentence(start(tmp_path, "run_name=one", "diy.hidden=64"))
    assert config.read_text() == before
    got = sentence(start(tmp_path, "run_name=one", "diy.hidden=64", script=["train_test.py"]))
    assert "do not fit the model" in got
    assert config.read_text() == before

    assert "other shapes" in sentence(start(tmp_path, "run_name=one", "diy.chunk_length=7"))
    assert config.read_text() == before

    model = ("-m", "realm", "eval", str(config.parent))
    assert "--episodes -5" in sentence(finished(*model, "--episodes", "-5"))
    assert "--seed -1" in sentence(finished(*model, "--seed", "-1"))
    assert "/nonexistent/x" in sentence(finished(*model, "--json", "/nonexistent/x"))
    assert "bogus" in sentence(finished(*model, "--set", "env.bogus=1"))

    # nor does one that has nothing left to do change it
    assert start(tmp_path, "run_name=one", "diy.lr_start=1e-5").returncode == 0
    assert config.read_text() == before

    # one that is accepted is written, and the former one kept
    assert start(tmp_path, "run_name=one", "diy.lr_start=1e-5", "max_env_steps=2000").returncode == 0
    assert (config.parent / "config.toml.1").read_text() == before
    assert "lr_start" in config.read_text()


def test_a_model_to_begin_with_that_is_not_there(tmp_path):
    got = refused(tmp_path, start(tmp_path, "preload_model=true", "preload_model_dir=nowhere"))
    assert "key 'preload_model_dir': nowhere: has no checkpoint" in got

    old = f"preload_model_dir={tmp_path / 'old'}"
    checkpoint(tmp_path / "old", 1, 5, 100)
    got = refused(tmp_path, start(tmp_path, "preload_model=true", old, "preload_model_id=7"))
    assert "old: has no checkpoint of update 7; it must be one of: 5" in got


def test_settings_that_learn_from_new_rounds_alone_have_no_memory(tmp_path):
    keys = ("algorithm_on_policy_or_off_policy=off-policy", "reverb_sampler=Uniform")
    got = refused(tmp_path, start(tmp_path, *keys, config="conf/ppo/cartpole.toml"))
    assert "key 'algorithm_on_policy_or_off_policy': ppo.advantage is 'gae', which learns from newly played" in got


def test_weights_cannot_go_out_early_from_an_agent_that_does_not_say_when(tmp_path):
    keys = ("algo=tests.evaluated", "max_version_lag=part", "wrapper_type=remote", "buffer_backend=native")
    done = start(tmp_path, *keys, config=COUNTING)
    assert done.returncode == 2, done.stderr
    assert 'evaluated/algorithm/agent.py: max_version_lag is "part", but Agent.learn is no generator' in done.stderr


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_folder_of_runs_that_cannot_be_made(tmp_path, detach):
    (tmp_path / "file").write_text("")
    got = sentence(
        start(tmp_path, f"log_dir={tmp_path}/file/runs", config=COUNTING, script=["-m", "realm", "start", *detach])
    )
    assert "key 'log_dir': " in got
    assert "Not a directory" in got


def test_detached_and_over_at_once_is_a_success(tmp_path):
    script = ["-m", "realm", "start", "--detach"]
    done = start(tmp_path, "max_seconds=0.01", config=COUNTING, script=script)
    assert done.returncode == 0, done.stderr
    wrong = start(tmp_path, "algo=wrong", config=COUNTING, script=script)
    assert wrong.returncode == 2
    assert list((tmp_path / "runs").glob("start-*.log")) == []


def test_a_round_of_another_size_than_the_plans_is_not_waited_for(tmp_path):
    """With a bounded lag it would wait for ever; as the user's error it is not tried again, either."""
    package = tmp_path / "wrong"
    shutil.copytree(ROOT / "tests" / "counting", package)
    workflow = package / "train_workflow.py"
    workflow.write_text(
        workflow.read_text() + "\n\n_whole = workflow\n\n\n"
        "def workflow(envs, policy, context):\n"
        "    from realm.contract import Chunk, chunk_to_arrays\n"
        "    for one in _whole(envs, policy, context):\n"
        "        items = chunk_to_arrays(one) if isinstance(one, Chunk) else one\n"
        "        yield {name: array[:3] for name, array in items.items()}\n"
    )
    remote = ("algo=wrong", "wrapper_type=remote", "buffer_backend=native", "aisrv_connect_to_kaiwu_env_count=8")
    done = start(tmp_path, *remote, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "yielded 3 items in a round" in done.stderr
    assert "it must be 8" in done.stderr


PREDICT, RESULT = "def predict(self, obs, context):", "agent.py:{begins}: the result of Agent.predict: "
WRONG = "count.copy()}", "count.astype('float32')}", f"{RESULT}extra.echo must be int64"
SHORT = '{"steps": after}', '{"steps": after[:, :1]}', f"{RESULT}state.steps must be int64["
STOPS = (
    'count = obs["count"]',
    'breakpoint(); count = obs["count"]',
    "agent.py:{line}: breakpoint() or input() wants a terminal",
)


@pytest.mark.parametrize(
    ("place", "role", "change"),
    [
        pytest.param("local", "aisrv-0", WRONG, id="worker"),
        pytest.param("remote", "actor-0", WRONG, id="actor"),
        pytest.param("remote", "actor-0", SHORT, id="memory"),
        pytest.param("remote", "actor-0", STOPS, id="debugger", marks=pytest.mark.slow),
    ],
)
def test_a_prediction_that_is_not_the_specs_blames_the_agent(tmp_path, place, role, change):
    old, new, text = change
    package = tmp_path / "wrong"
    shutil.copytree(ROOT / "tests" / "counting", package)
    agent = package / "algorithm" / "agent.py"
    source = agent.read_text()
    assert old in source
    agent.write_text(source.replace(old, new))
    settings = ["wrapper_type=remote", "buffer_backend=native", f"predict_local_or_remote={place}"]
    settings += ["wrong.remember=true"] if change is SHORT else []
    done = start(tmp_path, "algo=wrong", *settings, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"{role}: " in done.stderr
    begins, line = (source[: source.index(what)].count("\n") + 1 for what in (PREDICT, old))
    # a debugger stops there, or before Python 3.13 at the line behind it
    assert any(text.format(begins=begins, line=one) in done.stderr for one in (line, line + 1)), done.stderr
