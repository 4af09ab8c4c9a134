"""What is refused before anything starts, and how a project's configuration becomes Realm's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from realm.commands.locate import config_file
from realm.commands.main import main
from realm.config.load import load_config
from realm.errors import UserError
from realm.kaiwu.project import check_resumed, load, project_of, translated
from realm.learn.evaluation import together

PROJECTS = Path(__file__).parents[1] / "kaiwu"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the counting project, to be broken."""
    return Path(shutil.copytree(PROJECTS / "counting", tmp_path / "theirs"))


def config_of(project: Path) -> Path:
    return project / "conf" / "configure_app.toml"


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def refusal(project: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(config_of(project), overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


CODE = {
    "diy/feature/definition.py": [
        ("@attached\ndef action_process", "def action_process", r"definition.py:\d+: action_process has no @attached"),
        ("def action_process", "def other_process", "has no action_process; expected a function"),
        ('ObsData = create_cls("ObsData"', 'Obs = create_cls("Obs"', "has no ObsData"),
        ("small=vector[53:56]", "small=vector[53:57]", "57 numbers .Config.SAMPLE_DIM. has 58"),
        (".astype(np.float32)", ".astype(np.float32).reshape(1, -1)", "one row"),
        ("import numpy", "import nompy", r"definition.py:1: ModuleNotFoundError: .*nompy"),
    ],
    "diy/algorithm/agent.py": [
        ("    @learn_wrapper\n", "", r"agent.py:\d+: Agent.learn has no @learn_wrapper"),
        ("def exploit(", "def play(", "Agent has no exploit"),
        ("class Agent(", "class Player(", "no class Agent"),
        ("self.lr = 0.5", "self.lr = = 0.5", r"agent.py:\d+: SyntaxError"),
    ],
    "diy/train_workflow.py": [
        ("def workflow(", "def work(", "has no workflow"),
        (
            "import os\n",
            "import os\nfrom conf.usr_conf import usr_conf_check\n",
            "usr_conf, but there is no .*usr_conf.py",
        ),
        ("import os\n", "import os\nraise SystemExit(3)\n", "train_workflow.py:3: SystemExit"),
        ("    env, agent = ", "    yield\n    env, agent = ", r"train_workflow.py:\d+: workflow has a yield"),
    ],
    "diy/config.py": [
        ("SAMPLE_DIM = np.int64(3 + 50 + 4)", "SAMPLE_DIM = 57.5", "must be a whole number above 0"),
        ("SAMPLE_DIM", "SAMPLE_SIZE", "has no Config.SAMPLE_DIM"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"), [(file, *case) for file, cases in CODE.items() for case in cases]
)
def test_wrong_code_is_one_sentence(project: Path, file: str, old: str, new: str, sentence: str) -> None:
    edit(project / file, old, new)
    assert re.search(sentence, refusal(project))


KEYS = [
    ("train_batch_size = 8", "train_batchsize = 8", "train_batchsize.*did you mean 'train_batch_size'"),
    ("train_batch_size = 8", "train_batch_size = 8\ntrain_batch_size = 9", "already set at line 10"),
    ("train_batch_size = 8", "<<<<<<< HEAD\ntrain_batch_size = 8", ":10: .*is not TOML"),
    ('algo = "diy"', 'algo = "dyi"', "got 'dyi'; must be a folder of .* diy, timing .did you mean 'diy'"),
    ("preload_ratio = 4", 'preload_ratio = "4"', "key 'preload_ratio'"),
    ('algo = "diy"', 'algo = "diy"\nrun_mode = "eval"\neval_model_dir = "/data/x/ckpt"', "no such folder"),
    (
        'algo = "diy"',
        'algo = "diy"\npreload_model = true\npreload_model_dir = "conf"\npreload_model_id = "5"',
        "preload_model_id': .* has no model 5; it has: none",
    ),
    ('algo = "diy"', 'algo = "diy"\npreload_model = true', ":3: key 'preload_model': needs preload_model_dir"),
    ('algo = "diy"', 'algo = "diy"\npreload_model = "false"', ":3: key 'preload_model': got .false.; must be true or"),
    ('algo = "diy"', 'algo = "diy"\naisrv_count = 0', ":3: key 'aisrv_count': got 0; must be"),
    ("kaiwu_env_count = 2", 'kaiwu_env_count = "8"', ":5: key 'aisrv_connect_to_kaiwu_env_count': got .8"),
    ('algo = "diy"', 'algo = "diy"\nuser_save_model_max_frequency_per_min = -1', ":3: key 'user_save_model_max_freq"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), KEYS)
def test_a_wrong_key_is_one_sentence(project: Path, old: str, new: str, sentence: str) -> None:
    edit(config_of(project), old, new)
    assert re.search(sentence, refusal(project))


def test_a_map_lies_where_the_user_stands_or_in_the_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (project / "inside").mkdir()
    (tmp_path / "here").mkdir()
    for name, folder in (("inside", project / "inside"), ("here", tmp_path / "here"), ("default", "default")):
        assert load(config_of(project), [f"env.map={name}"]).env["map"] == str(folder)


def test_games_of_a_project_are_evaluated_one_after_the_other(project: Path) -> None:
    """In training its agent plays one, so it may remember it."""
    assert together(load(config_of(project), []), 8) == 1
    assert together(load_config("conf/classic.toml"), 8) == 8


def test_a_run_evaluates_its_own_models_where_no_folder_is_named(project: Path) -> None:
    app = load(config_of(project), ["run_mode=eval", "eval_model_dir=", "eval_model_id=latest", "run_name=mine"]).app
    assert (app.eval_model_dir, app.eval_model_id) == ("", "latest")


def test_what_only_a_new_start_translates_is_refused_by_a_resume(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(config_of(project), [])
    check_resumed(config, ["max_env_steps=3", "seed=4"])
    with pytest.raises(UserError, match="a project's run keeps its train_batch_size; begin a new one with realm start"):
        check_resumed(config, ["train_batch_size=4"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "island").mkdir()
    for key in ("env.map", "eval_env.map"):
        table = {key.partition(".")[0]: {"map": "island"}}
        with pytest.raises(UserError, match=re.escape(f'name the map {key}="{tmp_path / "island"}"')):
            check_resumed(replace(config, **table, places={**config.places, key: ""}), [f"{key}=island"])


def test_hidden_files_of_editors_are_no_code(project: Path) -> None:
    (project / "diy" / "algorithm" / "._agent.py").write_bytes(b"\0\0Mac OS X")
    (project / "diy" / "algorithm" / ".#agent.py").symlink_to("me@here.1")
    (project / "diy" / ".ipynb_checkpoints").mkdir()
    (project / "diy" / ".ipynb_checkpoints" / "agent-checkpoint.py").write_text("def half(:\n")
    load(config_of(project), [])


def test_everything_of_the_protocol_can_be_imported_at_once(project: Path) -> None:
    agent = project / "diy" / "algorithm" / "agent.py"
    agent.write_text("from kaiwu_agent.agent.protocol.protocol import *\nobservation_process\n" + agent.read_text())
    load(config_of(project), [])


def test_an_agent_that_tells_its_monitor_is_tried_for_the_actor(project: Path) -> None:
    agent = project / "diy" / "algorithm" / "agent.py"
    head, mark, rest = agent.read_text().partition("    def predict(self, list_obs_data):\n")
    assert mark
    agent.write_text(f'{head}{mark}        self.monitor.put_data({{1: {{"x": 1.0}}}})\n{rest}')
    load(config_of(project), ["predict_local_or_remote=remote"])


def test_a_name_that_python_has_is_refused(project: Path) -> None:
    (project / "diy").rename(project / "queue")
    for file in project.rglob("*.py"):
        file.write_text(file.read_text().replace("diy.", "queue."))
    edit(config_of(project), '"diy"', '"queue"')
    assert "belongs to" in refusal(project)


def test_a_later_generation_is_named(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "agent_ppo").mkdir()
    (tmp_path / "agent_ppo" / "agent.py").write_text("from kaiwudrl.interface.agent import BaseAgent\n")
    config_of(tmp_path).write_text('[app]\nalgo = "ppo"\n')
    assert "third generation" in refusal(tmp_path)
    (tmp_path / "agent_ppo" / "feature").mkdir()  # its name and place are those of the first generation
    (tmp_path / "agent_ppo" / "feature" / "definition.py").write_text(
        "from kaiwu_agent.utils.common_func import Frame\n"
    )
    assert "third generation" in refusal(tmp_path)
    assert "third generation" in refusal(tmp_path, "algo=agent_ppo")


OTHERS = {
    "gorge": ({"conf/configure_app.toml": '[app]\napp = "gorge_walk"\n'}, ":2: app 'gorge_walk' is another game"),
    "override": ({"conf/configure_app.toml": "[app]\n"}, "--set app=tetris: app 'tetris' is another game"),
    "manifest": (
        {"conf/configure_app.toml": "[app]\n", "kaiwu.json": '{"project_code": "hok1v1"}'},
        "kaiwu.json: project_code 'hok1v1' is another game",
    ),
    "imports": (
        {
            "conf/configure_app.toml": "[app]\n",
            "diy/utils/help.py": "from kaiwu_agent.gorge_walk.diy.feature_process import one_hot_encoding\n",
        },
        "help.py: imports kaiwu_agent.gorge_walk, which is of another game",
    ),
    "later rules": (
        {"conf/configure_app.toml": "[app]\n", "kaiwu.json": '{"project_code": "back_to_the_realm_v2"}'},
        "project_code 'back_to_the_realm_v2' is of a later generation",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_game_is_refused_by_what_it_is(tmp_path: Path, kind: str) -> None:
    """Not by a function that its code lacks."""
    files, sentence = OTHERS[kind]
    for name, text in {
        "diy/algorithm/agent.py": "from kaiwu_agent.agent.base_agent import BaseAgent\n",
        **files,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    text = refusal(tmp_path, *(["app=tetris"] if kind == "override" else []))
    assert sentence in text
    assert "first generation" in text
    assert text.endswith("see docs/from-kaiwu.md")


def test_later_layouts_are_found_under_any_name(tmp_path: Path) -> None:
    for name, text in [
        ("ppo/agent.py", "import torch\n"),
        ("ppo/workflow/train_workflow.py", "from common_python.utils.common_func import attached\n"),
        ("kaiwu.json", '{"project_code": "back_to_the_realm", "code_version": "12.1"}'),
        ("conf/algo_conf_back_to_the_realm.toml", "[ppo]\n"),
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    config_of(tmp_path).write_text('[app]\nalgo = "ppo"\n')
    assert "ppo: is an agent of the third generation, code_version '12.1'; Realm runs" in refusal(tmp_path)


def test_a_manifest_that_cannot_be_read_says_nothing(project: Path) -> None:
    for text in ("{no json", "[1]", '{"project_code": 3}'):
        (project / "kaiwu.json").write_text(text)
        assert translated(config_of(project)).app.algo == "realm.kaiwu"


@pytest.mark.parametrize(("name", "why"), [
    ("diy.v2", "Python cannot import a package with a dot in its name; rename the folder .*/theirs/diy.v2, and algo"),
    ("v1.2.3", "Python cannot import a package with a dot"),
    ("more/diy", "must be a folder of .* with the code of an algorithm: diy"),
])  # fmt: skip
def test_a_package_that_cannot_be_imported(project: Path, name: str, why: str) -> None:
    shutil.copytree(project / "diy", project / name)
    assert re.search(f"got '{name}'.*{why}", refusal(project, f"algo={name}"))


def test_a_folder_stands_for_the_configuration_in_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (project, project / "conf", config_of(project)):
        assert config_file(str(given)) == str(config_of(project))
        assert main(["config", "train_batch_size", "--config", str(given)]) == 0
        assert f"values of {config_of(project)}" in capsys.readouterr().out
    assert config_file(str(project / "diy")) == str(project / "diy")


def test_the_configuration_loads_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(PROJECTS / "treasure_ppo" / "conf" / "configure_app.toml", ["max_seconds=5"])
    app = config.app
    assert (app.algo, app.aisrv_count, app.aisrv_connect_to_kaiwu_env_count) == ("realm.kaiwu", 2, 1)
    assert (app.replay_buffer_capacity, app.preload_ratio, app.train_batch_size) == (32, 2, 8)
    assert app.eval_model_id == 1000  # a text in the file
    assert app.algorithm_on_policy_or_off_policy == "off-policy"
    assert app.log_dir == str(tmp_path / "train")
    assert config.hyper["sample_dim"] == 21_888
    folders, own = config.warnings
    assert "restore_dir by models/ of the run" in folders
    assert "use_which_deep_learning_framework (40)" in own
    assert len(re.findall("sample_dim", own)) == 1
    app = load(PROJECTS / "treasure_ppo" / "conf" / "configure_app.toml", ["wrapper_type=local"]).app
    assert app.replay_buffer_capacity == 2, "in one process nothing is ever in the buffer, however large a sample is"


def test_commands_that_need_no_code_read_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("counting", "treasure_ppo"):
        assert main(["config", "train_batch_size", "--config", str(config_of(PROJECTS / name))]) == 0
        assert "train_batch_size" in capsys.readouterr().out


WORKER = """
import sys
from pathlib import Path
from realm.kaiwu.config import Config, enter
enter(Config(project=sys.argv[1], obs={"count": "int int64"}), "aisrv", Path(sys.argv[2]))
from realm.kaiwu.algorithm.agent import agent_to_look_at
print({"torch", "diy.algorithm.agent", "diy.train_workflow"} <= sys.modules.keys())
print(agent_to_look_at.cache_info().currsize)
"""


@pytest.mark.slow
def test_a_worker_at_the_actor_imports_the_projects_code_before_it_is_ready(project: Path, tmp_path: Path) -> None:
    """Else it is silent for as long as that takes, and is called so."""
    command = [sys.executable, "-c", WORKER, str(project), str(tmp_path / "run")]
    done = subprocess.run(command, cwd=PROJECTS.parents[1], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["True", "1"], done.stderr


def test_realms_own_configurations_are_none_of_its_business() -> None:
    root = PROJECTS.parents[1]
    assert project_of(root / "conf" / "configure_app.toml") is None
    assert load(root / "conf" / "local.toml").app.algo == "diy"
    assert project_of(PROJECTS / "treasure_dqn" / "conf" / "configure_app.toml") == PROJECTS / "treasure_dqn"
