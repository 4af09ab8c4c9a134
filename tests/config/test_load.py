"""realm/config/ (keys, load, toml), conf/: what loads, and the sentence for everything that does not.

The wrong ones are fault F24: each is one sentence with its place, and nothing that a file says is ever executed.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from realm.config.keys import IGNORED, AppConfig
from realm.config.load import RunConfig, build_dataclass, load_config, to_toml
from realm.errors import ConfigError

CONF = Path(__file__).parents[2] / "conf"


def load(folder: Path, content: str | bytes, *overrides: str) -> RunConfig:
    file = folder / "x.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_config(file, overrides)


def sentence(folder: Path, content: str | bytes, *overrides: str) -> str:
    """The error's text, with the file called x.toml."""
    with pytest.raises(ConfigError) as caught:
        load(folder, content, *overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(f"{folder}{os.sep}", "")


# --- what loads


@pytest.mark.parametrize("file", sorted(CONF.rglob("*.toml")), ids=lambda file: file.name)
def test_every_file_in_conf_loads_without_a_warning_and_survives_a_round_trip(file: Path, tmp_path: Path) -> None:
    config = load_config(file)
    assert not config.warnings
    assert load(tmp_path, to_toml(config)) == config


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == RunConfig(AppConfig(), {}, {}, {})


def test_a_file_that_realm_wrote_and_that_lost_a_part_is_damaged(tmp_path: Path) -> None:
    given = load(
        tmp_path, "[app]\nmax_seconds = 7\n[env]\nspeed = 1.25\n[eval_env]\nspeed = 2\n[diy]\nlearning_rate = 0.0123\n"
    )
    whole = to_toml(given)
    (tmp_path / "dos.toml").write_bytes(b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").encode())
    assert load_config(tmp_path / "dos.toml") == load(tmp_path, whole) == given
    cuts = [*range(whole.index("\n[app]"), len(whole), 41), *range(len(whole) - 60, len(whole) - 1)]
    for end in cuts:  # it is damaged, or no TOML any more
        assert "x.toml:" in sentence(tmp_path, whole[:end])
    half = sentence(tmp_path, whole[: whole.index("\ntrain_batch_size")])
    assert half.startswith("x.toml: has lost its end, 'train_batch_size' among them, and Realm wrote all"), half
    lines = whole.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if " = " in line:  # a line is missing anywhere
            key = line.partition(" = ")[0]
            text = sentence(tmp_path, "".join(lines[:number] + lines[number + 1 :]))
            assert "has lost 1 of its" in text
            assert f"{key!r} among them" in text or key in ("speed", "learning_rate")
    assert load(tmp_path, whole.replace("speed = 2", "speed = 2\nmore = 3")).eval_env == {"speed": 2, "more": 3}


def test_a_file_of_an_earlier_realm_may_lack_newer_keys(tmp_path: Path) -> None:
    header = "# The effective configuration of this run, written by Realm.\n\n[app]\nmax_seconds = 7\n"
    assert load(tmp_path, f"{header}\n[env]\n\n[eval_env]\n\n[diy]\n").app.max_seconds == 7
    assert "has lost its end" in sentence(tmp_path, header)


def test_every_key_says_what_it_means() -> None:
    (body,) = (one.body for one in ast.parse(inspect.getsource(AppConfig)).body if isinstance(one, ast.ClassDef))
    after = dict(itertools.pairwise(body))
    keys = {one.target.id: after.get(one) for one in body if isinstance(one, ast.AnnAssign)}
    assert keys.keys() == AppConfig.__dataclass_fields__.keys()
    assert not [key for key, doc in keys.items() if not (isinstance(doc, ast.Expr) and ast.literal_eval(doc.value))]


def test_no_key_is_both_known_and_ignored() -> None:
    assert not AppConfig.__dataclass_fields__.keys() & IGNORED.keys()


def test_the_config_is_frozen() -> None:
    with pytest.raises(AttributeError, match="cannot assign to field 'seed'"):
        AppConfig().seed = 3


def test_tables_and_places(tmp_path: Path) -> None:
    text = """\
[app]                    # a table
algo = "pkg.dqn"

# seed = 4
seed = 5                 # seed = 6
[env]
layouts = [
    [1, 2],              # "]"
    # layouts = []
]
note = '''
[app]
seed = 7
'''
inner.deep = 1
[env.more]
x = 2
[dqn]
lr = 1
"""
    config = load(tmp_path, text)
    assert (config.app.seed, config.app.hyper_table) == (5, "dqn")
    assert config.env == {
        "layouts": [[1, 2]],
        "note": "[app]\nseed = 7\n",
        "inner": {"deep": 1},
        "more": {"x": 2},
    }
    assert config.hyper == {"lr": 1}
    lines = {key: int(place.rpartition(":")[2]) for key, place in config.places.items()}
    assert lines == {
        "app": 1, "app.algo": 2, "app.seed": 5, "env": 6, "env.layouts": 7, "env.note": 11, "env.inner": 15,
        "env.inner.deep": 15, "env.more": 16, "env.more.x": 17, "dqn": 18, "dqn.lr": 19,
    }  # fmt: skip


def test_comments_never_change_anything(tmp_path: Path) -> None:
    plain = [
        "[app]",
        "seed = 3",
        'reverb_sampler = "reverb.selectors.Fifo"',
        "[env]",
        "list = [1,",
        "2]",
        "[diy]",
        "x = 1",
    ]
    config = load(tmp_path, "\n".join(plain))
    for comment in ("# seed = 4", "# [env]", '# "', "# '''", "#", "\t # [[app]]", "# é 中文"):
        for at in range(len(plain) + 1):
            assert load(tmp_path, "\n".join([*plain[:at], comment, *plain[at:]])) == config
        assert load(tmp_path, "\n".join(f"{line} {comment}" for line in plain)) == config


def test_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = "\ufeff[app]\nseed = 3 # c\n\n[env]\nstart = 2\n".replace("\n", "\r\n")
    config = load(tmp_path, text)
    assert config == load(tmp_path, "[app]\nseed = 3\n[env]\nstart = 2")
    assert sentence(tmp_path, text + "[diy]\r\n[app]\r\n").startswith("x.toml:7: table [app]: already set at line 1;")


def test_a_round_trip_keeps_every_kind_of_value(tmp_path: Path) -> None:
    env = r"""
    s = "quote \" back \\ tab \t delete \u007f astral \U0001F600 中文 \u0000"
    i = -3
    f = [1e-05, 1e+22, 0.1, inf]
    b = [true, false]
    d = [1979-05-27T07:32:00Z, 1979-05-27, 07:32:00]
    "strange key.é" = {a = {b = []}, "" = 1}
    [env.table]
    x = 1
    """
    config = load(tmp_path, f"[app]\nmax_seconds = 3\nlevel = 'debug'\n[env]{env}\n[diy]\nlr = 0.1")
    assert load(tmp_path, to_toml(config)) == config


def test_keys_of_kaiwudrl_load_and_are_named_once(tmp_path: Path) -> None:
    known = """\
[app]
algo = "diy"
app = "back_to_the_realm"
run_mode = "train"
wrapper_type = "remote"
predict_local_or_remote = "remote"
predict_batch_size = 1
torch_num_threads = 1
aisrv_connect_to_kaiwu_env_count = 1
replay_buffer_capacity = 10000
preload_ratio = 10
train_batch_size = 256
production_consume_ratio = 2
algorithm_on_policy_or_off_policy = "off-policy"
reverb_remover = "reverb.selectors.Fifo"
reverb_sampler = "reverb.selectors.Uniform"
dump_model_freq = 100
modelpool_max_save_model_count = 1
user_save_mode_max_count = 0
preload_model = false
preload_model_dir = "ckpt"
preload_model_id = 1000
eval_model_dir = ""
eval_model_id = 0
log_dir = "/workspace/log"
level = "INFO"
"""
    config = load(tmp_path, known + "\n".join(f"{key} = 1" for key in IGNORED))
    assert config.app.reverb_sampler == "Uniform"
    assert config.app.production_consume_ratio == 2.0
    (warning,) = config.warnings
    assert all(warning.count(f"{key} (") == 1 for key in IGNORED)
    assert "x.toml:27" in warning
    assert "\n" not in warning


# --- overrides


def test_overrides_win_and_name_themselves(tmp_path: Path) -> None:
    config = load(
        tmp_path, "[app]\nseed = 1\n[env]\nstart = 2\n", "seed=2", "app.seed=3", "env.start=4", "env.new.x=[1, 2]",
        "diy.lr=3e-4", "diy.name=relu", 'diy.text="1"', "wrapper_type=local", "preload_ratio = 4", "run_name=007",
        "log_dir=2026", "env.equation=a=b",
    )  # fmt: skip
    assert (config.app.seed, config.app.wrapper_type, config.app.preload_ratio) == (3, "local", 4.0)
    assert (config.app.run_name, config.app.log_dir) == ("007", "2026")
    assert config.env == {"start": 4, "new": {"x": [1, 2]}, "equation": "a=b"}
    assert config.hyper == {"lr": 3e-4, "name": "relu", "text": "1"}
    assert config.places["diy.lr"] == "--set diy.lr=3e-4"


def test_another_algorithm_by_override(tmp_path: Path) -> None:
    assert load(tmp_path, "[diy]\n", "algo=dqn", "dqn.x=1").hyper == {"x": 1}
    config = load(tmp_path, "[diy]\nlr = 1\n", "algo=dqn")
    assert config.hyper == {}
    assert "table [diy] is not used" in config.warnings[0]


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("seed", "--set seed: not an override; must be key=value"),
        ("=3", "--set =3: not an override"),
        ("env.=3", "--set env.=3: not an override"),
        ("seed=1\nalgo=2", "--set 'seed=1\\nalgo=2': not an override"),
        ("env.note=\udcff", "--set 'env.note=\\udcff': not an override"),
        ("seeed=1", "--set seeed=1: key 'seeed': unknown; "),
        ("start=1", "--set start=1: key 'start': unknown; "),
        ("dqn.x=1", "--set dqn.x=1: table [dqn]: unknown; must be one of [app], [env], [eval_env], [diy]"),
        ("env.start.x=1", "--set env.start.x=1: key 'env.start.x': 'start' is a value;"),
        ("preload_model=True", "--set preload_model=True: key 'preload_model': got \"True\"; must be true or false"),
        ("seed=1.5", "--set seed=1.5: key 'seed': got 1.5; must be a whole number"),
    ],
)
def test_wrong_overrides(tmp_path: Path, override: str, start: str) -> None:
    assert sentence(tmp_path, "[env]\nstart = 2\n", override).startswith(start)


# --- F24: what does not load


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        # unknown, misspelt, misplaced
        ("[app]\nquux = 3", "2: key 'quux': unknown; must be a key of AppConfig", "realm/config/keys.py"),
        ("[app]\n#\ntrian_batch_size = 3", "3: key 'trian_batch_size': unknown;", "(did you mean 'train_batch_size'?)"),
        ("[app]\nSEED = 3", "2: key 'SEED': unknown;", "(did you mean 'seed'?)"),
        ("[app]\nstart = 3\n[env]\nstart=2", "2: key 'start': unknown;", "(did you mean 'env.start'?)"),
        ("[ap]\na = 3", "1: table [ap]: unknown; must be one of [app], [env], [eval_env], ", "(did you mean 'app'?)"),
        ("[app]\n[app.inner]\nx = 1", "2: key 'inner': unknown;", ""),
        ("seed = 3", "1: key 'seed': not in a table;", "[app] above it"),
        ("[[app]]\nseed = 3", "1: key 'app': not in a table;", ""),
        ("\nenv = 3", "2: key 'env': not in a table;", ""),
        # twice
        ("[app]\nseed = 3\n# c\nseed = 3", "4: key 'seed': already set at line 2; must be set once", ""),
        ("[env]\na.b = 3\n[app]\n[env.a]\nb = 4", "4: table [env.a]: already set at line 2; must be set once", ""),
        ("[env]\nx = [\n1]\nx = [\n2]", "4: key 'env.x': already set at line 2;", ""),
        ("[env]\nx = 1\n[app]\n\n[env]", "5: table [env]: already set at line 1;", ""),
        # wrong type, out of range
        ("[app]\nseed = 'x'", "2: key 'seed': got \"x\"; must be a whole number", ""),
        ("[app]\nseed = true", "2: key 'seed': got true; must be a whole number", ""),
        ("[app]\nseed = 1.0", "2: key 'seed': got 1.0; must be a whole number", ""),
        ("[app]\nseed = -1", "2: key 'seed': got -1; must be a whole number at least 0 and at most 42949", ""),
        ("[app]\nseed = [1]", "2: key 'seed': got [1]; must be a whole number", ""),
        ("[app]\nseed = {a = 1}", "2: key 'seed': got {a = 1}; must be a whole number", ""),
        ("[app]\nalgo = 3", "2: key 'algo': got 3; must be text in quotes", ""),
        ("[app]\npreload_model = 1", "2: key 'preload_model': got 1; must be true or false", ""),
        ("[app]\npreload_ratio = 0.5", "2: key 'preload_ratio': got 0.5; must be a number at least 1", ""),
        ("[app]\npreload_ratio = nan", "2: key 'preload_ratio': got nan; must be a finite number at least 1", ""),
        ("[app]\npreload_ratio = inf", "2: key 'preload_ratio': got inf; must be a finite number", ""),
        ("[app]\npreload_ratio = true", "2: key 'preload_ratio': got true; must be a number at least 1", ""),
        ("[app]\npreload_ratio = '2'", "2: key 'preload_ratio': got \"2\"; must be a number at least 1", ""),
        ("[app]\nproduction_consume_ratio = inf", "2: key 'production_consume_ratio': got inf; must be a finite", ""),
        ("[app]\nseed = nan", "2: key 'seed': got nan; must be a finite whole number at least 0", ""),
        ("[app]\nrun_name = inf", "2: key 'run_name': got inf; must be text in quotes", ""),
        ("[app]\nlog_dir = ''", "2: key 'log_dir': got \"\"; must be the name of a folder, ", ""),
        ("[app]\nbase_port = 70000", "2: key 'base_port': got 70000; must be a whole number at least 1024", "or 0"),
        ("[app]\neval_cpu_share = nan", "2: key 'eval_cpu_share': got nan; must be a finite number", ", or 0"),
        ("[app]\nproduction_consume_ratio = 0", "2: key 'production_consume_ratio': got 0; ", "above 0"),
        ("[app]\naisrv_count = 'many'", "2: key 'aisrv_count': got \"many\"; must be a whole number", 'or "auto"'),
        ("[app]\naisrv_count = 0", "2: key 'aisrv_count': got 0; must be a whole number at least 1", 'or "auto"'),
        ("[app]\nmax_version_lag = 'fre'", "2: key 'max_version_lag': got \"fre\"; ", "(did you mean 'free'?)"),
        ("[app]\nwrapper_type = 'lokal'", "2: key 'wrapper_type': got \"lokal\";", "(did you mean 'local'?)"),
        ("[app]\ndevice = 'gpu'", "2: key 'device': got \"gpu\"; must be \"auto\", \"cpu\", ", ""),
        ("[app]\nbind_host = '0.0.0.0'", "2: key 'bind_host': got \"0.0.0.0\"; must be", 'like "127.0.0.1"'),
        ("[app]\nbind_host = '10.0.0.1'", "2: key 'bind_host': without keys_dir, bind_host must be a loopback address",
         "realm keys new` and set keys_dir = keys"),
        ("[app]\nbind_host = '::'", "2: key 'bind_host': got \"::\"; must be an IPv4 address of this machine", ""),
        ("[app]\nbase_port = 80", "2: key 'base_port': got 80; must be a whole number at least 1024", "or 0"),
        ("[app]\neval_cpu_share = 0.001", "2: key 'eval_cpu_share': got 0.001; must be a number", ", or 0"),
        ("[app]\neval_cpu_share = 1.5", "2: key 'eval_cpu_share': got 1.5; must be a number from 0.01 to 1", ""),
        ('[app]\nlog_info = ["x", "length"]', "2: key 'log_info': log_info has 'length', which each episode has;", ""),
        ('[app]\nlog_info = ["r"]', "2: key 'log_info': log_info has 'r', which each episode has;", "by another name"),
        # only together
        ("[app]\npreload_model = true", "2: key 'preload_model': preload_model = true needs", ""),
        ("[app]\nrun_mode = 'eval'", "2: key 'run_mode': run_mode = 'eval' needs", ""),
        ("[app]\nrun_name = ''\nrun_mode = 'eval'", "3: key 'run_mode': run_mode = 'eval' needs", "or a run_name"),
        # no TOML
        ("[app]\nalgo = diy", "2: 'algo = diy' is not TOML: Invalid value; must be key = value", ""),
        ("[app]\n\nseed = 3 seed = 4", "3: 'seed = 3 seed = 4' is not TOML:", ""),
        ("[app]\nseed", "2: 'seed' is not TOML:", ""),
        ("[env]\nx = [1,\n2\n\n", "2: 'x = [1,' is not TOML:", ""),
        ("[env]\nx = '''\n\n\n", "2: \"x = '''\" is not TOML:", ""),
        ("[app\nseed = 3", "1: '[app' is not TOML:", ""),
        ("[app]\rseed = 3", "1: '[app]\\rseed = 3' is not TOML:", ""),
        ("[env]\nx = " + "[" * 5000, "2: 'x = [[[", ""),
        ("[env]\nx = " + "9" * 5000, "2: 'x = 999", ""),
        ("\0", "1: '\\x00' is not TOML:", ""),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path: Path, text: str, start: str, end: str) -> None:
    got = sentence(tmp_path, text)
    assert got.startswith(f"x.toml:{start}")
    assert got.endswith(end)


@pytest.mark.parametrize("key", ["reverb_sampler", "reverb_remover"])
@pytest.mark.parametrize(
    "value",
    [
        "__import__('os').system('touch hacked')",
        "reverb.selectors.Unifrom",
        "reverb.selectors.__class__",
        "selectors.Fifo",
        "Fifo()",
        "",
    ],
)
def test_selectors_are_names_in_a_table_and_never_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    got = sentence(tmp_path, f'[app]\n{key} = "{value}"')
    assert got.startswith(f'x.toml:2: key \'{key}\': got "{value}"; must be "Uniform" or "Fifo" or ')
    assert got.endswith("(did you mean 'Uniform'?)") == ("Unifrom" in value)
    assert [one.name for one in tmp_path.iterdir()] == ["x.toml"]


@pytest.mark.parametrize("name", ["Uniform", "Fifo", "Lifo", "Prioritized", "MinHeap", "MaxHeap"])
def test_selectors_have_a_long_and_a_short_name(tmp_path: Path, name: str) -> None:
    for text in (name, f"reverb.selectors.{name}"):
        assert load(tmp_path, f'[app]\nreverb_sampler = "{text}"').app.reverb_sampler == name


@pytest.mark.parametrize(
    "value", ["../x", "..", ".", "a/b", "/etc/passwd", ".hidden", "-x", "a b", "a\\nb", "a\\u0000", "é", "x" * 81]
)
@pytest.mark.parametrize("key", ["run_name", "app", "algo"])
def test_names_that_become_paths(tmp_path: Path, key: str, value: str) -> None:
    assert sentence(tmp_path, f'[app]\n{key} = "{value}"').startswith(f"x.toml:2: key '{key}': got \"")


@pytest.mark.parametrize("value", ["a..b", "a.", ".a", "a-b", "class", "a.class", "1a", "", "x.app", "env", "diy;x"])
def test_algo_is_a_dotted_name(tmp_path: Path, value: str) -> None:
    assert sentence(tmp_path, f'[app]\nalgo = "{value}"').startswith(f"x.toml:2: key 'algo': got \"{value}\"; must be")


@pytest.mark.parametrize("key", ["log_dir", "preload_model_dir", "eval_model_dir"])
def test_folders(tmp_path: Path, key: str) -> None:
    for value in ("../x", "x/../../y", "..", "/", "//", "~/x", "~root", "a\\\\b", "a\\nb", "a\\u0000b"):
        assert sentence(tmp_path, f'[app]\n{key} = "{value}"').startswith(f"x.toml:2: key '{key}': got \"")
    for value in ("x", "x/y", "/tmp/x", "中文", "a..b", "./x"):
        assert getattr(load(tmp_path, f'[app]\n{key} = "{value}"').app, key) == value


def test_not_utf8(tmp_path: Path) -> None:
    assert (
        sentence(tmp_path, "[app]\n# é\n".encode("latin-1"))
        == "x.toml:2: byte 0xe9 is not UTF-8; the file must be UTF-8"
    )
    assert sentence(tmp_path, "[app]\n".encode("utf-16")).startswith("x.toml:1: byte 0xff is not UTF-8")


def test_not_a_file(tmp_path: Path) -> None:
    def text(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        return str(caught.value)

    (tmp_path / "smoke.toml").touch()
    os.mkfifo(tmp_path / "pipe")
    assert text(tmp_path / "smok.toml").endswith(
        "no such file; must be the name of a TOML file (did you mean 'smoke.toml'?)"
    )
    assert text(tmp_path / "no" / "x.toml").endswith("no such file; must be the name of a TOML file")
    assert text(tmp_path).endswith(": not a file; must be the name of a TOML file")
    assert text(tmp_path / "pipe").endswith(": not a file; must be the name of a TOML file")
    assert text(tmp_path / "smoke.toml" / "x").endswith(": cannot be read: Not a directory")


# --- the user's Config


@dataclass(frozen=True)
class Hyper:
    steps: int
    lr: float = 1e-3
    sizes: tuple[int, ...] = (64, 64)
    norm: bool = True
    clip: float | None = None
    weights: tuple[float, ...] = ()
    free: Any = None

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"lr must be above 0, got {self.lr}")
        if self.steps % 2:
            raise ValueError("an odd number of\nsteps")
        if self.norm and self.clip == 7:
            raise ValueError("seven")


def build(folder: Path, lines: str, *overrides: str) -> Hyper:
    config = load(folder, f"[diy]\n{lines}", *overrides)
    return build_dataclass(Hyper, config.hyper, "diy", config.places, "d.py")


def test_hyper_parameters_are_checked_and_converted(tmp_path: Path) -> None:
    made = build(tmp_path, "steps = 2\nlr = 1\nsizes = [3]\nclip = 0.5\nweights = [1, 2.5]\nfree = ['x']")
    assert made == Hyper(steps=2, lr=1.0, sizes=(3,), clip=0.5, weights=(1.0, 2.5), free=["x"])
    assert [type(number) for number in (made.lr, made.clip, *made.weights)] == [float] * 4


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("steps = 2\nlrr = 1", "3: key 'diy.lrr': unknown; must be a field of Config in d.py (did you mean 'lr'?)"),
        ("steps = 2.0", "2: key 'diy.steps': got 2.0; must be a whole number"),
        ("steps = true", "2: key 'diy.steps': got true; must be a whole number"),
        ("steps = '2'", "2: key 'diy.steps': got \"2\"; must be a whole number"),
        ("steps = 2\nsizes = ['x']", "3: key 'diy.sizes': got [\"x\"]; must be a list, each a whole number"),
        ("steps = 2\nnorm = 1", "3: key 'diy.norm': got 1; must be true or false"),
        ("steps = 2\nclip = 'x'", "3: key 'diy.clip': got \"x\"; must be a number"),
        ("steps = 2\nclip = true", "3: key 'diy.clip': got true; must be a number"),
        ("steps = 2\nlr = inf", "3: key 'diy.lr': got inf; must be a finite number"),
        ("steps = 2\nlr = -inf", "3: key 'diy.lr': got -inf; must be a finite number"),
        ("steps = 2\nlr = nan", "3: key 'diy.lr': got nan; must be a finite number"),
        ("steps = 2\nlr = 1e999", "3: key 'diy.lr': got inf; must be a finite number"),
        ("steps = 2\nlr = 1" + 400 * "0", "3: key 'diy.lr': got 1" + 79 * "0" + "; must be a finite number"),
        ("steps = 2\nclip = nan", "3: key 'diy.clip': got nan; must be a finite number"),
        ("steps = inf", "2: key 'diy.steps': got inf; must be a finite whole number"),
        ("steps = 2\nnorm = nan", "3: key 'diy.norm': got nan; must be true or false"),
        ("steps = 2\nweights = [1, inf]", "3: key 'diy.weights': got [1, inf]; must be made of finite numbers"),
        ("steps = 2\nfree = {a = [nan]}", "3: key 'diy.free': got {a = [nan]}; must be made of finite numbers"),
        ("lr = 1", "1: key 'diy.steps': missing, and d.py gives it no default; set it"),
        ("steps = 2\n\nlr = 0", "4: key 'diy.lr': lr must be above 0, got 0.0"),
        ("lr = 1\nsteps = 3", "3: key 'diy.steps': an odd number of steps"),
        ("clip = 7\nsteps = 2", "1: seven"),
    ],
)  # fmt: skip
def test_wrong_hyper_parameters(tmp_path: Path, lines: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, lines)
    assert str(caught.value).replace(f"{tmp_path}{os.sep}", "") == f"x.toml:{expected}"


def test_wrong_hyper_parameters_by_override(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--set diy.lr=-1: key 'diy.lr': lr must be above 0, got -1.0$"):
        build(tmp_path, "steps = 2", "diy.lr=-1")
    with pytest.raises(ConfigError, match=r"^--set diy.lr=inf: key 'diy.lr': got inf; must be a finite number$"):
        build(tmp_path, "steps = 2", "diy.lr=inf")


def test_the_configuration_loads_nothing_heavy() -> None:
    heavy = {"torch", "tensorflow", "reverb", "numba", "gymnasium", "pydantic", "diy"}
    code = f"import sys, realm.user; sys.exit(len({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=CONF.parent, check=False).returncode == 0


def test_evaluations_have_options_of_their_own(tmp_path: Path) -> None:
    text = "[env]\nmap = 'm'\nnum = 9\nlayouts = [[3], [4, 5]]\n[eval_env]\nnum = 7\nlayouts = []\n"
    config = load(tmp_path, text)
    assert config.env == {"map": "m", "num": 9, "layouts": [[3], [4, 5]]}
    evaluated = config.evaluated()
    assert (evaluated.env, evaluated.eval_env) == ({"map": "m", "num": 7}, {})
    assert evaluated.places["env.num"].endswith(":6")
    assert evaluated.evaluated() == evaluated
    named = load(tmp_path, text, "env.num=3", "env.map=n")
    assert named.evaluated().env == {"map": "n", "num": 3}
    assert load(tmp_path, to_toml(named)).evaluated() == named.evaluated()
    assert load(tmp_path, text, "env.num=3", "eval_env.num=4").evaluated().env == {"map": "m", "num": 4}
    assert load(tmp_path, "[env]\nnum = 9").evaluated().env == {"num": 9}
    assert load(tmp_path, to_toml(config)) == config


def test_a_file_over_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("[app]\nseed = 1\nrun_name = 'below'\n[env]\nx = 1\n")
    config = load(tmp_path, "base = 'base.toml'\n[app]\nrun_name = 'above'\n[eval_env]\ny = 2\n")
    assert (config.app.seed, config.app.run_name, config.env, config.eval_env) == (1, "above", {"x": 1}, {"y": 2})
    assert config.places["app.seed"].endswith("base.toml:2")
    assert config.places["app.run_name"].endswith("x.toml:3")


def test_a_base_has_a_base(tmp_path: Path) -> None:
    (tmp_path / "lowest.toml").write_text("[app]\nseed = 1\nrun_name = 'lowest'\n[env]\nx = 1\n")
    (tmp_path / "base.toml").write_text("base = 'lowest.toml'\n[app]\nrun_name = 'below'\n[env]\ny = 2\n")
    config = load(tmp_path, "base = 'base.toml'\n[env]\ny = 3\n")
    assert (config.app.seed, config.app.run_name, config.env) == (1, "below", {"x": 1, "y": 3})
    assert config.places["app.seed"].endswith("lowest.toml:2")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("base = 1", "must be the name of a file"),
        ("base = 'bas.toml'", "no such file; .*base.toml"),
        ("base = 'x.toml'", "x.toml:1: .* got 'x.toml', which leads back here"),
        ("base = 'turn.toml'", "turn.toml:1: .* got 'x.toml', which leads back here"),
    ],
)
def test_a_base_that_cannot_be(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "base.toml").write_text("")
    (tmp_path / "turn.toml").write_text("base = 'x.toml'\n")
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, line)


@pytest.mark.parametrize(
    "keys",
    [
        ["hosts=1", "bind_host=10.0.0.1"],
        ["hosts=1", "keys_dir=keys"],
        ["hosts=1", "keys_dir=keys", "bind_host=10.0.0.1", "wrapper_type=local"],
    ],
)
def test_hosts_need_keys_and_an_address(tmp_path: Path, keys: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"this wants keys_dir|without keys_dir, bind_host must be"):
        load(tmp_path, "", *keys)
