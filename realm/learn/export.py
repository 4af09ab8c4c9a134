"""A trained policy as an ONNX file, for programs without Python or torch. Called by `realm export`.

`write_onnx` writes what `Agent.greedy` computes, with the observations of the `Spec` as inputs, a free number of rows
and actions of the environment itself; `OnnxPolicy` runs such a file, to compare it with the model.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorActionWrapper
from torch import Tensor

from realm.contract import Array, Arrays, Field, Fields, Spec
from realm.errors import ConfigError, ContractError, UserCodeError, one_line, to_install
from realm.learn.results import layers
from realm.policy.state import PolicyState

OPSET = 17
NEEDED = ("onnx", "onnxruntime")
PACKAGES = "'onnx<1.19' onnxruntime"  # later ones need an ml_dtypes that TensorFlow 2.15 forbids
_PREFIX = "obs."
_STATE, _NEXT = "state.", "next."  # of a memory: how the names of inputs and of outputs begin


def check_packages() -> None:
    """Raise ConfigError if a package is missing that writes or runs ONNX files, or does not fit the others."""
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"--onnx: {error.name} is not installed; {to_install(PACKAGES)}") from error
        except Exception as error:  # whatever a library says that does not find what it needs in another
            raise ConfigError(
                f"--onnx: {name} cannot be loaded: {type(error).__name__}: {one_line(error)}; {to_install(PACKAGES)}"
            ) from error


class _Greedy(torch.nn.Module):
    """`agent.greedy` as a module whose inputs are the observations in the order of the Spec, then those of a memory."""

    def __init__(self, agent: Any, names: list[str], wrappers: list[Any]) -> None:
        super().__init__()
        self.model = agent.model
        self._greedy, self._names, self._wrappers = agent.greedy, names, wrappers

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        outputs = self._greedy(dict(zip(self._names, arrays, strict=True)))
        for wrapper in self._wrappers:
            outputs = {**outputs, "action": wrapper.tensors(outputs["action"])}
        return tuple(outputs.values())


def write_onnx(
    agent: Any, spec: Spec, envs: Any, path: Path, told: Mapping[str, Any] | None = None
) -> tuple[Fields, list[str]]:
    """Write the greedy policy of an agent on the CPU; returns the inputs, in the order of the Spec, and the names of
    the outputs, `action` among them.

    One with a memory takes also `first`, bool [N], where an episode begins, and `state.<name>`, zeros there, and gives
    `next.<name>`, which are the state of the next step.

    envs: what its package makes. A VectorActionWrapper there must have `tensors(actions)`, which does by torch alone
    what its `actions` does. told: what the file's metadata shall say, next to `inputs` (how each is made of a raw
    observation) and `action`; all of it as JSON. Raises UserCodeError if the agent has no `greedy` or
    computes what ONNX cannot say; OSError.
    """
    package = type(agent).__module__
    wrappers = [layer for layer in layers(envs) if isinstance(layer, VectorActionWrapper)]
    for wrapper in wrappers:
        if not hasattr(wrapper, "tensors"):
            raise UserCodeError(
                f"{type(wrapper).__module__}: {type(wrapper).__qualname__} changes actions, so an export needs its "
                "method tensors(actions), which does the same by torch alone, as in realm/zoo/gym.py"
            )
    if not callable(getattr(agent, "greedy", None)):
        raise UserCodeError(
            f"{package}: Agent has no greedy(obs), which an export needs; realm.contract.Agent tells more"
        )
    memory = {_STATE + name: field for name, field in spec.state.items()}
    fields = {**spec.obs, **({"first": Field((), "bool")} if memory else {}), **memory}
    names = list(fields)
    rows = tuple(torch.from_numpy(np.zeros((2, *field.shape), field.dtype)) for field in fields.values())
    with torch.no_grad():
        outputs = list(agent.greedy(dict(zip(names, rows, strict=True))))
    missing = [name for name in ("action", *memory) if name not in outputs]
    if missing:
        raise UserCodeError(f"{package}: Agent.greedy gives {', '.join(outputs)}; one of them must be `{missing[0]}`")
    outputs = [_NEXT + name.removeprefix(_STATE) if name in memory else name for name in outputs]
    inputs = [_PREFIX + name if name in outputs or name.isdigit() else name for name in names]  # torch renames these
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            # not the newer exporter (dynamo): it needs a package that cannot be installed next to reverb's TensorFlow
            torch.onnx.export(
                _Greedy(agent, names, wrappers).eval(),  # torch puts the model back as it was
                rows,
                str(path),
                dynamo=False,
                opset_version=OPSET,
                input_names=inputs,
                output_names=outputs,
                dynamic_axes={name: {0: "rows"} for name in (*inputs, *outputs)},
            )
        except Exception as error:  # it fails in many ways, such as with an AssertionError
            text = (str(error).strip() or repr(error)).splitlines()[0]
            raise UserCodeError(f"{package}: Agent.greedy cannot be exported: {text}") from error
    seen: Any = next((layer.inputs for layer in layers(envs) if hasattr(layer, "inputs")), {})
    space: Any = getattr(envs.unwrapped, "single_action_space", None)
    about = {
        **(told or {}),
        "inputs": {
            input_name: seen.get(name) or {"shape": spec.obs[name].shape, "dtype": spec.obs[name].dtype}
            for input_name, name in zip(inputs, spec.obs, strict=False)
        },
        "memory": {
            name: {"next": _NEXT + name.removeprefix(_STATE), "field": [field.shape, field.dtype]}
            for name, field in memory.items()
        },
        "action": {"space": " ".join(str(space).split()), "shape": space.shape, "dtype": str(space.dtype)}
        if space
        else {},
    }
    import onnx  # late: it may not be installed

    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {name: json.dumps(value, default=str) for name, value in about.items()})
    onnx.save(model, str(path))
    return dict(zip(inputs, fields.values(), strict=True)), outputs


class OnnxPolicy:
    """An exported policy that runs in onnxruntime."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self._inputs = [one.name for one in self._session.get_inputs()]
        told = self._session.get_modelmeta().custom_metadata_map
        self.about: dict[str, Any] = {name: json.loads(value) for name, value in told.items()}
        memory = self.about.get("memory", {})
        self._next = {name: told["next"] for name, told in memory.items()}
        self._memory = PolicyState({name: Field(*told["field"]) for name, told in memory.items()}, 0)

    def act(self, obs: Arrays, first: Array | None = None) -> Array:
        """The environment's action for each row, the greedy one, [N, ...]. obs: name -> [N, ...].

        first: bool [N], which rows begin an episode. A policy with a memory needs it, and keeps one for each row.
        """
        given = dict(obs)
        if self._next:
            if first is None:
                raise ContractError("the policy has a memory, so it must be told which rows begin an episode: first")
            given |= {"first": first} | self._memory.before(np.arange(len(first)), first)
        seen = {name: given[name if name in given else name.removeprefix(_PREFIX)] for name in self._inputs}
        action, *after = self._session.run(["action", *self._next.values()], seen)
        self._memory.after(np.arange(len(action)), dict(zip(self._next, after, strict=True)))
        return action  # type: ignore[no-any-return]
