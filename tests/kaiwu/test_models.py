"""Models of a project as files: which weights act, what a full disk or a file of objects does, how many are kept."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realm.errors import ConfigError, UserCodeError
from realm.kaiwu import model_files, pack, process, surface
from realm.kaiwu.algorithm.agent import Agent as RealmAgent
from realm.kaiwu.config import Config
from realm.kaiwu.modules import Modules, counters, load_optimizer_states, optimizer_states


class Agent:
    """An agent as a project has it."""

    def __init__(self) -> None:
        self.net = torch.nn.Linear(2, 1)
        self.whole = self.full = False

    @surface._AGENT["save_model_wrapper"]
    def save_model(self, path: Any = None, id: Any = "1") -> None:
        if self.full:
            Path(f"{path}/model.ckpt-{id}.pkl").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        torch.save(self.net if self.whole else self.net.state_dict(), f"{path}/model.ckpt-{id}.pkl")

    @surface._AGENT["load_model_wrapper"]
    def load_model(self, path: Any = None, id: Any = "1") -> None:
        self.net.load_state_dict(torch.load(f"{path}/model.ckpt-{id}.pkl"))

    def set(self, number: float) -> None:
        with torch.no_grad():
            self.net.bias.fill_(number)

    @property
    def number(self) -> float:
        return float(self.net.bias.detach())


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process of a learner whose project saves two models at most, and keeps two of the framework's."""
    config = Config(project=str(tmp_path), keep_models=2, user_saves=2)
    monkeypatch.setattr(process, "_process", process.Process(config, "learner", tmp_path))
    return tmp_path


@pytest.fixture
def held(run_dir: Path) -> tuple[Agent, Modules]:
    """An agent whose weights are 5 and that predicts with a model of 3, and its modules."""
    agent = Agent()
    agent.set(3)
    assert model_files.save(agent, run_dir / "m", 3)
    modules = Modules(agent, dict, lambda files: None)
    agent.set(5)
    modules.hold()
    model_files.load(agent, run_dir / "m", 3)
    assert agent.number == 3
    return agent, modules


def test_weights_that_arrive_wait_while_another_model_predicts(run_dir: Path, held: tuple[Agent, Modules]) -> None:
    agent, modules = held
    modules.load_state_dict({name: torch.full_like(one, 7) for name, one in modules.state_dict().items()})
    assert agent.number == 3
    modules.release()
    assert agent.number == 7
    modules.hold()
    model_files.load(agent, run_dir / "m", 3)
    modules.release()
    assert agent.number == 7, "without news the newest comes back"


def test_what_is_saved_while_another_model_predicts_is_what_is_trained(held: tuple[Agent, Modules]) -> None:
    agent, modules = held
    assert float(modules.state_dict()["net.bias"]) == 5
    assert agent.number == 3


@pytest.mark.parametrize("there", ["algorithm.net", "net"])
def test_a_network_that_is_held_twice_is_found_by_either_path(run_dir: Path, there: str) -> None:
    """The learner of a project may find it in its algorithm first, and a worker has no algorithm."""
    agent = Agent()
    if there == "net":  # and here it is found in the algorithm
        agent.__dict__ = {"algorithm": {"net": agent.net}, **agent.__dict__}
    state = {f"{there}.bias": torch.full((1,), 4.0), "algorithm.target.bias": torch.full((1,), 9.0)}
    Modules(agent, dict, lambda files: None).load_state_dict(state)
    assert agent.number == 4
    with pytest.raises(RuntimeError, match="the agent has net.weight, these weights have other.bias"):
        Modules(Agent(), dict, lambda files: None).load_state_dict({"other.bias": torch.zeros(1)})


def test_the_state_of_a_projects_own_objects_comes_back_as_it_was(run_dir: Path) -> None:
    class Normaliser:
        def __init__(self) -> None:
            self.state: dict[str, Any] = {"mean": np.zeros(2), "count": 3, "many": [np.ones(1, np.int64), (True, "x")]}

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    agent, again = Agent(), Agent()
    for one, mean in ((agent, 7.0), (again, 0.0)):
        one.normaliser = Normaliser()  # type: ignore[attr-defined]
        one.normaliser.state["mean"] += mean  # type: ignore[attr-defined]
    stream = io.BytesIO()
    torch.save(optimizer_states(agent), stream)
    load_optimizer_states(again, torch.load(io.BytesIO(stream.getvalue()), weights_only=True))
    state = again.normaliser.state  # type: ignore[attr-defined]
    assert (state["mean"] + 1 == 8).all()
    assert isinstance(state["mean"], np.ndarray)
    assert (state["count"], state["many"][1]) == (3, (True, "x"))
    assert state["many"][0].dtype == np.int64


def test_a_resume_brings_back_what_training_has_counted_and_no_setting(run_dir: Path) -> None:
    def made(gamma: float) -> Any:
        user = SimpleNamespace(steps=0, epsilon=1.0, gamma=gamma)
        own = SimpleNamespace(user=user, updates=7, model=SimpleNamespace(expire=lambda: None))
        own._made = counters(user)
        return own

    first, again, third = made(0.99), made(0.5), made(0.5)
    first.user.steps, first.user.epsilon = 5, 0.25
    for one, other in ((first, again), (again, third)):  # what was resumed is saved again
        RealmAgent.load_model(other, RealmAgent.save_model(one))
        assert vars(other.user) == {"steps": 5, "epsilon": 0.25, "gamma": 0.5}
    RealmAgent.load_model(third, RealmAgent.save_model(made(0.5)))  # back to the first checkpoint, in one process
    assert vars(third.user) == {"steps": 0, "epsilon": 1.0, "gamma": 0.5}


@pytest.mark.parametrize("kind", [SimpleNamespace, surface.Frame])
def test_a_network_in_a_record_travels(run_dir: Path, kind: Any) -> None:
    agent: Any = Agent()
    agent.nets = kind(critic=torch.nn.Linear(1, 1))
    state = {name: torch.full_like(one, 7) for name, one in Modules(agent, dict, lambda files: None).state_dict().items()}
    Modules(agent, dict, lambda files: None).load_state_dict(state)
    assert (agent.number, float(agent.nets.critic.bias.detach())) == (7, 7)


def test_curves_have_a_pid_above_them_or_none() -> None:
    found: dict[str, float] = {}
    monitor = surface.Monitor(found.__setitem__)
    monitor.put_data({4711: {"reward": 3.0, "text": "x"}, "loss": torch.tensor(0.5), "bad": float("nan")})
    monitor.put_data([1])
    assert found == {"reward": 3.0, "loss": 0.5}


def test_an_exception_is_logged_with_its_traceback(logged: list[str]) -> None:
    try:
        raise ValueError("of theirs")
    except ValueError:
        surface.Logger().exception("it failed")
    assert re.search(r"ERROR it failed\nTraceback .*\nValueError: of theirs", "\n".join(logged), re.DOTALL)


def test_arrays_that_learn_changes_travel_with_the_weights(run_dir: Path) -> None:
    """A running mean does, also of an object of the project's; what learn leaves alone stays each process's own."""

    class Normaliser:
        def __init__(self) -> None:
            self.mean, self.noise = np.zeros(2), np.zeros(3)

    Normaliser.__module__ = "diy.feature.normaliser"

    def made() -> tuple[Any, Modules]:
        agent: Any = Agent()
        agent.normaliser, agent.seen, agent.noise = Normaliser(), np.zeros(2, np.int64), np.zeros(1)
        agent.bad, agent.memory = np.full(1, np.nan), np.zeros((1 << 17) + 1)
        agent.scale, agent.turned = np.zeros(()), np.arange(3.0)[::-1]
        agent.longest, agent.samples = np.zeros(1, np.longdouble), [np.zeros(2)]
        return agent, Modules(agent, dict, lambda files: None)

    (learner, sent), (worker, there) = made(), made()
    worker.noise += 5
    with sent.learning():
        learner.normaliser.mean += 7
        learner.seen = learner.seen + 2
        for one in (learner.scale, learner.turned, learner.memory, learner.longest, learner.samples[0]):
            one += 1
    there.load_state_dict(sent.state_dict())
    assert worker.normaliser.mean.tolist() == [7, 7]
    assert (float(worker.scale), worker.turned.tolist()) == (1, [3, 2, 1])
    assert (worker.seen.tolist(), worker.noise[0], worker.memory[0]) == ([2, 2], 5, 0)
    assert {name for name in sent.state_dict() if "array" in name} == {
        f"array:{name}" for name in ("normaliser.mean", "seen", "scale", "turned")
    }
    assert there.state_dict().keys() == sent.state_dict().keys(), "what was resumed is saved again"
    with pytest.raises(RuntimeError, match="these weights have"):
        there.load_state_dict({"other": torch.zeros(1)})


def test_a_model_that_the_learner_has_removed_gives_way_to_the_newest(run_dir: Path) -> None:
    agent = SimpleNamespace(user=Agent(), model_id=model_files.NEWEST)
    agent.model = Modules(agent.user, dict, lambda files: None)
    folder = process.current().restore_dir
    agent.user.set(3)
    model_files.save(agent.user, folder, 10)
    agent.user.set(5)
    RealmAgent.choose_model(agent, 10)  # type: ignore[arg-type]
    assert agent.user.number == 3
    RealmAgent.choose_model(agent, 20)  # type: ignore[arg-type]
    assert (agent.user.number, agent.model_id) == (5, 20)


@pytest.mark.parametrize(("freq", "saved"), [(10, [20, 30]), (0, [14, 20, 25, 30])])
def test_models_are_due_by_the_update_of_their_checkpoint(run_dir: Path, freq: int, saved: list[int]) -> None:
    """A return to a checkpoint takes back what the agent has counted itself."""
    dumped: list[int] = []
    agent = SimpleNamespace(
        learns=True, updates=7, config=SimpleNamespace(dump_model_freq=freq), saves=SimpleNamespace(dump=dumped.append)
    )
    for update in (14, 20, 25, 30):
        RealmAgent.saved(agent, run_dir / "ckpt" / f"model.ckpt-2-{update}")  # type: ignore[arg-type]
    assert dumped == saved


def test_the_last_model_of_a_run_is_saved_with_the_weights_that_are_trained(run_dir: Path) -> None:
    """Whether one is due or not, once, and also while an older one predicts."""
    agent = SimpleNamespace(user=Agent(), model_id=model_files.NEWEST)
    agent.model, agent.saves = Modules(agent.user, dict, lambda files: None), model_files.Saves(agent.user)
    agent.choose_model = lambda number: RealmAgent.choose_model(agent, number)  # type: ignore[arg-type]
    folder = process.current().restore_dir
    agent.user.set(3)
    agent.saves.dump(10)
    agent.user.set(5)
    agent.choose_model(10)
    for _ in range(2):
        RealmAgent.saved_last(agent, run_dir / "ckpt" / "model.ckpt-4-13")  # type: ignore[arg-type]
    assert model_files.numbers_in(folder) == [10, 13]
    model_files.load(agent.user, folder, 13)
    assert agent.user.number == 5


def test_one_process_runs_the_code_of_one_project(run_dir: Path) -> None:
    other = Config(project=str(run_dir / "other"), package="diy")
    with pytest.raises(UserCodeError, match=r"runs the code of .* already, and cannot run both"):
        process.begin(other, "eval", run_dir)


def test_a_submission_holds_the_packages_that_its_package_imports(tmp_path: Path) -> None:
    """Also where a file of them is not Python: nothing can import that one."""
    for name, text in [
        ("diy/agent.py", "import helper\nfrom deep.er import x\n"),
        ("diy/notes.py", "this is no Python\n"),
        ("deep/er.py", "import helper\n"),
        ("helper/__init__.py", ""),
        ("other/__init__.py", ""),
        ("conf/hyper.toml", ""),
        ("kaiwu.json", "{}"),
        ("diy/.cache/agent.py", "import other\n"),
        ("diy/folder.py/x.txt", ""),
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    config = Config(project=str(tmp_path), package="diy")
    names = {str(file.relative_to(tmp_path)) for file in pack._code(config)}
    assert names == {
        "conf/hyper.toml",
        "deep/er.py",
        "diy/agent.py",
        "diy/folder.py/x.txt",
        "diy/notes.py",
        "kaiwu.json",
        "helper/__init__.py",
    }
    with pytest.raises(ConfigError, match=r"configure_app.toml: is missing"):
        pack._configuration(config, 1)


def test_a_full_disk_is_a_warning_and_leaves_no_half_file(run_dir: Path) -> None:
    agent = Agent()
    agent.full = True
    assert not model_files.save(agent, run_dir / "m", 4)
    assert model_files.numbers_in(run_dir / "m") == []
    agent.full = False
    assert model_files.save(agent, run_dir / "m", 5)


def test_a_file_of_objects_is_refused_with_what_to_do(run_dir: Path) -> None:
    agent = Agent()
    agent.whole = True
    assert model_files.save(agent, run_dir / "m", 1)
    with pytest.raises(
        UserCodeError, match=r"model.ckpt-1.pkl: is damaged, or holds more than tensors.*save model.state_dict\(\)"
    ):
        model_files.load(agent, run_dir / "m", 1)
    with pytest.raises(ConfigError, match=r"^load_model: .* has no model 9; it has: 1$"):
        model_files.load(agent, run_dir / "m", 9)


def test_as_many_models_are_kept_as_the_configuration_says(run_dir: Path) -> None:
    agent = Agent()
    saves = model_files.Saves(agent)
    for number in range(4):
        saves.dump(number)
        saves.for_user(number)
        saves.for_user(number)  # a step that is saved already
    here = process.current()
    assert model_files.numbers_in(here.restore_dir) == [2, 3]
    assert model_files.numbers_in(here.user_dir) == [0, 1]


class Parts(Agent):
    """One that saves two files, with the number somewhere in their names."""

    @surface._AGENT["save_model_wrapper"]
    def save_model(self, path: Any = None, id: Any = "1") -> None:
        for part in ("actor", "critic"):
            torch.save(self.net.state_dict(), f"{path}/{part}_model.ckpt-{id}.pth")


def test_the_number_may_be_anywhere_in_the_names_of_a_models_files(run_dir: Path) -> None:
    saves = model_files.Saves(Parts())
    for number in (9, 10, 11):
        saves.dump(number)
    left = [path.name for path in model_files.files_of(process.current().restore_dir, 10)]
    assert left == ["actor_model.ckpt-10.pth", "critic_model.ckpt-10.pth"]
    assert len(list(process.current().restore_dir.iterdir())) == 4, "those of model 9 are gone, both"
    assert sorted(model_files.as_files(Parts(), 3)) == ["actor_model.ckpt-3.pth", "critic_model.ckpt-3.pth"]
