"""What README and docs say is true: the example trains; files, commands, names and links exist; languages agree."""

import ast
import csv
import dataclasses
import json
import re
import shlex
import shutil
import traceback

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from realm import contract as realm_contract
from realm import returns
from realm.commands import main as cli
from realm.config.load import HINTS, load_config
from realm.config.plan import Machine, decide, make_plan
from realm.contract import SampleInfo, chunk_to_arrays
from realm.learn.trainer import Trainer
from realm.user import load_config_class, load_hyper
from realm.watch.meters import Meters
from tests.cluster import ROOT
from tests.console import finished
from tests.diy.test_agent import SPEC, make_agent, play

README, CHINESE, ARCHITECTURE = "README.md", "README.zh-CN.md", "docs/architecture.md"
DOCUMENTS = [README, CHINESE, ARCHITECTURE]
PAGES = [README, CHINESE, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
EXAMPLE = ROOT / "realm" / "zoo" / "cartpole"
WRITTEN_BY_RUNS = {"eval.json", "config.toml", "run.json", "summary.json", "supervisor.log", "realm/builtin"}
GIVEN_BY_USERS = {
    "requirements.local.txt",
    "map_1.json",
    "crab.yaml",
    "pip.conf",
    "PIP_EXTRA_INDEX_URL",
    "PIP_INDEX_URL",
}


def text_of(document):
    return (ROOT / document).read_text()


def blocks(text):
    """(language, content) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def files(text):
    """Name -> content of the blocks whose first line is a comment with a file name."""
    named = [(re.match(r"# (\S+\.(?:py|toml))\n", content), content) for _, content in blocks(text)]
    return {match[1]: content for match, content in named if match}


def spans(text):
    """What stands between backticks, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", without_blocks(text))


def without_blocks(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def commands(text):
    """Every command line, as words."""
    lines = [line for language, content in blocks(text) if language == "bash" for line in content.splitlines()]
    lines += [one for one in spans(text) if re.match(r"(tools/|\.venv/bin/)\S+", one)]
    lines += [f".venv/bin/python -m {one}" for one in spans(text) if re.match(r"realm [a-z]+", one)]
    return [shlex.split(line, comments=True) for line in lines]


def test_what_is_to_be_installed_keeps_to_the_lock():
    """Each package that the project says to install next to the locked ones: by a file of constraints, and in a version
    that CI has; or without its own needs, or for a Python of the user's own."""
    own = {".", "with", "-c", "-r", "uv", "pre-commit"}  # Realm itself, words of a sentence, tools with few needs
    files = [ROOT / page for page in PAGES]
    files += [path for folder in ("realm", "conf", "diy") for path in (ROOT / folder).rglob("*.*")]
    locked = "".join((ROOT / f"requirements.{name}lock").read_text() for name in ("", "dev.", "ci."))
    pins = {canonicalize_name(name): version for name, version in re.findall(r"^([\w-]+)==(\S+)", locked, re.MULTILINE)}
    looked_at = set()
    for file in [*files, ROOT / "CONTRIBUTING.md"]:
        if file.suffix not in (".md", ".py", ".toml") or "log" in file.parts:
            continue
        for said in re.findall(r"pip install ([^`\n#]+(?:\n[^`\n#]+)?)", file.read_text()):
            words = said.partition("&&")[0].split()
            if "{packages}" in said or "(" in said:
                continue  # `realm.errors.to_install`, and what gymnasium says, which goes through it
            if (words[0] in own and words[0] != "-c") or words[0] == "--no-deps":
                continue
            if words[:2] != ["-c", ".venv/locked.txt"]:
                # `realm.errors.pip_here` adds the constraints to what gymnasium says
                assert file.name in ("gym.py", "emulators.py"), f"{file}: {said}"
            for word in words[2:] if words[0] == "-c" else ():
                package = Requirement(word.strip("'.,;"))
                looked_at.add(package.name)
                if canonicalize_name(package.name) in pins:
                    assert package.specifier.contains(pins[canonicalize_name(package.name)]), f"{file}: {said}"
    assert {"onnx", "onnxruntime", "optuna", "gymnasium", "ale-py"} <= looked_at


def realm(folder, *arguments):
    """Run a command of realm in an empty folder, as a user who has installed it would."""
    done = finished("-m", "realm", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_words_of_other_libraries_lead_to_keys_that_exist():
    rows = re.findall(r"^\| .*\| (.+) \|$", text_of("docs/recipes.md").partition("## Words of")[2], re.MULTILINE)
    packages = ("ppo", "td3", "sac", "dqn")
    keys = {one.name for name in packages for one in dataclasses.fields(load_config_class(f"realm.zoo.{name}"))}
    keys |= {*HINTS, *realm_contract.__all__, "realm.load_policy", "act", "callbacks.py", "realm record"}
    named = [name.partition(" = ")[0] for row in rows[1:] for name in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 30
    assert [name for name in named if name not in keys] == []


@pytest.mark.system
@pytest.mark.slow
def test_the_curriculum_and_the_network_of_the_recipes_train(tmp_path):
    """The page's own code, for a few updates."""
    lock, flow, network = [
        content for _, content in blocks(text_of("docs/recipes.md")) if "\nclass " in content or "workflow" in content
    ]
    (tmp_path / "lock.py").write_text(lock)
    realm(tmp_path, "init", "mine", "--env", "lock:Lock-v0")
    (tmp_path / "mine/train_workflow.py").write_text(flow)
    agent = tmp_path / "mine/algorithm/agent.py"
    written = (
        agent.read_text().replace("ActorCritic(*of)", "Net(*of)").replace("class Agent:", f"{network}\n\nclass Agent:")
    )
    assert "Net(*of)" in written
    agent.write_text(written)
    realm(tmp_path, "start", "--config", "mine.toml", "--set", "max_env_steps=3000", "run_name=lock")
    with open(tmp_path / "train/lock/progress.csv") as file:
        assert max(float(row["episode/return"] or 0) for row in csv.DictReader(file)) > 0  # no chance finds 12 digits


@pytest.mark.system
@pytest.mark.slow
def test_a_copy_of_the_example_trains(tmp_path):
    """The way that the README gives: the package copied to a folder of one's own, and a configuration that names it."""
    ((name, shown),) = files(text_of(README)).items()
    algo = load_config(ROOT / name, []).app.algo
    shutil.copytree(EXAMPLE, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mine.toml").write_text(shown.replace(algo, "mine"))
    settings = ["wrapper_type=local", "run_name=cart", "aisrv_connect_to_kaiwu_env_count=16", "max_env_steps=20_000"]
    realm(tmp_path, "start", "--config", "mine.toml", *(part for one in settings for part in ("--set", one)))
    updates = [int(path.name.rpartition("-")[2]) for path in tmp_path.glob("train/cart/ckpt/model.ckpt-*")]
    assert max(updates) >= 10
    realm(tmp_path, "eval", "train/cart", "--episodes", "4", "--json", "eval.json")
    episodes = json.loads((tmp_path / "eval.json").read_text())["episodes"]
    assert {len(values) for values in episodes.values()} == {4}


def test_the_example_is_short():
    """The four files of the README's table have at most 120 lines."""
    names = [name for name in spans(text_of(README)) if (EXAMPLE / name).is_file()]
    assert names == ["config.py", "feature/definition.py", "algorithm/agent.py", "train_workflow.py"]
    lines = [line for name in names for line in (EXAMPLE / name).read_text().splitlines() if line.strip()]
    assert len(lines) <= 120


def test_the_shown_configuration_is_that_of_the_example(tmp_path):
    ((name, content),) = files(text_of(README)).items()
    (tmp_path / "shown.toml").write_text(content)
    assert load_config(tmp_path / "shown.toml", []).app.algo == load_config(ROOT / name, []).app.algo
    assert ROOT / load_config(ROOT / name, []).app.algo.replace(".", "/") == EXAMPLE


def test_the_readme_is_short():
    assert len(text_of(README).splitlines()) <= 150
    shown = next(content for language, content in blocks(text_of(README)) if language == "text")
    assert max(map(len, shown.splitlines())) <= 80


def test_both_languages_show_the_same_code():
    assert blocks(text_of(README)) == blocks(text_of(CHINESE))


def test_both_languages_name_the_same_things():
    assert set(spans(text_of(README))) <= set(spans(text_of(CHINESE)))


def test_both_languages_have_the_same_structure():
    """Headings, pictures, tables and lists follow each other in the same order, with as many rows and points."""

    def structure(text):
        kinds = [re.match(r"#+ |!\[|\||- ", line) for line in without_blocks(text).splitlines()]
        return [kind[0] for kind in kinds if kind]

    assert structure(text_of(README)) == structure(text_of(CHINESE))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_exist(document):
    """Every word that looks like a file of this project is one; a bare name may be one of diy/, realm/ or tests/."""
    text = text_of(document)
    tokens = {one.rstrip("./") for one in re.findall(r"(?<![\w./<>*~-])[A-Za-z_.][\w./*-]*", text)}
    in_folders = {one for one in tokens if re.match(r"(conf|diy|docs|realm|tests|tools)/", one)}
    by_name = {one for one in tokens if re.search(r"\.(py|sh|toml|md|svg|lock|json|yaml)$", one)}
    elsewhere = WRITTEN_BY_RUNS | GIVEN_BY_USERS
    missing = []
    for name in (in_folders | by_name) - elsewhere:
        folders = [ROOT, ROOT / "docs", EXAMPLE]
        folders += [ROOT / folder for folder in ("diy", "realm", "tests") if "/" not in name]
        if not any(list(folder.glob(name)) or list(folder.glob(f"*/{name}")) for folder in folders):
            missing.append(name)
    assert len(in_folders) > 10
    assert missing == []


@pytest.mark.parametrize("document", PAGES)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)]+)\)", without_blocks(text_of(document))):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / document).parent / name).resolve() if name else ROOT / document
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings]
            assert anchor in slugs, target


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/game.md", "docs/runs.md"])
def test_commands_are_understood(document):
    seen = 0
    for program, *arguments in commands(text_of(document)):
        if program in ("tools/start.sh", "tools/stop.sh", "tools/status.sh"):
            arguments = [program[len("tools/") : -len(".sh")], *(arguments or ["all"] * program.endswith("stop.sh"))]
        elif program == ".venv/bin/python" and arguments[:2] == ["-m", "realm"]:
            arguments = arguments[2:]
        elif program == "realm":
            pass
        else:
            assert not program.startswith("tools/") or (ROOT / program).exists(), program
            continue
        seen += 1
        parsed = cli._parser().parse_args(arguments)
        if arguments[0] == "start":
            config = load_config(ROOT / parsed.config, parsed.set)
            load_hyper(config.app.algo, config.hyper)
            machine = Machine(cores=2, gpus=0, has_reverb=True)
            make_plan(decide(config.app, machine).app, machine.cores)
    assert seen > 0


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_exist(document):
    """Every identifier between backticks is a word of the code."""
    paths = [path for folder in ("realm", "diy", "tests") for path in (ROOT / folder).rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in paths if path.name != "test_readme.py")))
    names = [one for one in spans(text_of(document)) if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?", one)]
    unknown = [one for one in names if one.removesuffix("()").rpartition(".")[2] not in words]
    assert [one for one in unknown if one not in WRITTEN_BY_RUNS | GIVEN_BY_USERS | {"requirements.lock"}] == []


@pytest.mark.parametrize("document", [page for page in PAGES if "/log/" not in page])
def test_every_hop_is_there(document):
    """`realm/file.py: Class.method` names something that this file defines."""
    hops = re.findall(r"`([\w/]+\.py): ([\w.]+)`", text_of(document))
    assert len(hops) >= {ARCHITECTURE: 40, "docs/security.md": 12}.get(document, 0)
    for name, wanted in hops:
        body = ast.parse((ROOT / name).read_text()).body
        for part in wanted.split("."):
            found = [one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == part]
            assert found, f"{name} defines no {wanted}"
            body = found[0].body


def test_the_calls_to_the_loss_are_those_of_an_update(tmp_path, monkeypatch):
    calls = []

    def formula(*arguments):
        calls[:] = calls or [frame.name for frame in traceback.extract_stack()]
        return loss(*arguments)

    loss = returns.clipped_policy_loss
    monkeypatch.setattr(returns, "clipped_policy_loss", formula)
    agent = make_agent()
    chunk = next(play(agent))
    one = Trainer(agent, SPEC, tmp_path, 0, 1, Meters())
    one.start(1)
    b = len(chunk.worker)
    one.update(chunk_to_arrays(chunk), SampleInfo(np.arange(b), np.ones(b), np.ones(b, int), int(chunk.valid.sum())))
    made = [name.replace("formula", "clipped_policy_loss") for name in calls if not name.startswith("<")]
    section = text_of(ARCHITECTURE).partition("## The calls to the loss\n")[2].partition("In one process")[0]
    named = [name.rpartition(".")[2] for name in re.findall(r"`[\w/]+\.py: ([\w.]+)`", section)]
    assert f"{len(named)} in all" in section
    named[named.index("ppo_losses")] = "policy"
    assert named[named.index("update") :] == made[made.index("update") :]


def test_the_tests_that_a_page_names_exist():
    paths = list((ROOT / "tests").rglob("test_*.py"))
    files, everything = {path.name for path in paths}, "".join(path.read_text() for path in paths)
    for document, least in (("docs/security.md", 25), ("docs/reliability.md", 40)):
        named = re.findall(r"`(test_[a-z0-9_]+(?:\.py)?)`", text_of(document))
        assert len(named) > least
        assert [one for one in named if one not in files and f"def {one}(" not in everything] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_keys_with_a_value_are_accepted(document):
    """`key = value` between backticks is a setting of [app] that loads."""
    app = load_config(ROOT / "conf/configure_app.toml", []).app
    pairs = [one for one in spans(text_of(document)) if re.fullmatch(r"[a-z_]+ = [\"\w]+", one)]
    for key, value in (one.split(" = ") for one in pairs):
        if hasattr(app, key):
            load_config(ROOT / "conf/configure_app.toml", [f"{key}={value}"])
        else:
            assert key == "r", key  # the round r of the architecture
