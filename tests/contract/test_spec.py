"""realm/contract: specs that survive JSON, a schema that tells shapes apart, and errors that name both sides."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm.contract import (
    NO_VERSION,
    ORIGIN_FIELDS,
    ActionSpec,
    Arrays,
    Chunk,
    Field,
    Spec,
    Version,
    arrays_to_chunk,
    check_arrays,
    check_finite,
    chunk_fields,
    chunk_to_arrays,
)
from realm.errors import ContractError

NUMBER = Field((), "float32")
SPEC = Spec(
    obs={"image": Field((4, 5, 5), "uint8"), "legal": Field((3,), "bool")},
    action=ActionSpec(n=3),
    extra={"value": Field((), "float32")},
    chunk_length=6,
)


def zeros(spec: Spec, *leading: int) -> Arrays:
    return {name: np.zeros((*leading, *one.shape), one.dtype) for name, one in spec.sample_fields.items()}


# --- versions


def test_versions_are_ordered_by_epoch_first() -> None:
    assert NO_VERSION < Version(1, 0) < Version(1, 7) < Version(1, 10) < Version(2, 0) < Version(2, 3)
    assert str(Version(2, 30)) == "update 30 in epoch 2"


# --- actions


@pytest.mark.parametrize(
    ("action", "field"),
    [
        (ActionSpec(n=16), Field((), "int64")),
        (ActionSpec(nvec=(8, 2)), Field((2,), "int64")),
        (ActionSpec(low=(-1.0, 0.0, 0.0), high=(1.0, 1.0, 2.0)), Field((3,), "float32")),
    ],
)
def test_an_actions_field(action: ActionSpec, field: Field) -> None:
    assert action.field == field


@pytest.mark.parametrize(
    "numbers",
    [
        {}, {"n": 0}, {"n": -3}, {"n": 2, "nvec": (2,)}, {"n": 2, "low": (0.0,), "high": (1.0,)},
        {"nvec": (2,), "low": (0.0,), "high": (1.0,)}, {"low": (0.0,)}, {"high": (1.0,)},
        {"low": (0.0, 0.0), "high": (1.0,)},
    ],
)  # fmt: skip
def test_an_action_is_of_exactly_one_kind(numbers: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="exactly one of n, nvec or"):
        ActionSpec(**numbers)


# --- specs

fields = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.builds(
        Field,
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.sampled_from(["bool", "uint8", "int64", "float32", "float64"]),
    ),
    max_size=3,
)
actions = st.one_of(
    st.builds(lambda n: ActionSpec(n=n), st.integers(1, 99)),
    st.builds(lambda nvec: ActionSpec(nvec=tuple(nvec)), st.lists(st.integers(1, 9), min_size=1, max_size=3)),
    st.builds(
        lambda low: ActionSpec(low=tuple(low), high=tuple(one + 1 for one in low)),
        st.lists(st.floats(-5, 5), min_size=1, max_size=3),
    ),
)
samples = st.one_of(st.just({}), fields.map(lambda own: {**own, **ORIGIN_FIELDS}))
specs = st.builds(Spec, fields, actions, fields, st.integers(1, 99), samples)


@settings(max_examples=150, deadline=None)
@given(specs, specs)
def test_a_spec_survives_json_and_its_schema_tells_it_apart(spec: Spec, other: Spec) -> None:
    again = msgspec.convert(json.loads(json.dumps(spec.to_json())), Spec)
    assert again == spec
    assert again.schema == spec.schema
    assert (spec.schema == other.schema) == (spec == other)


def test_a_spec_takes_what_numpy_and_gymnasium_have() -> None:
    """Sizes, bounds and dtypes as they stand in spaces; what is sent and compared is plain."""
    plain = Spec({"x": Field((3, 2), "float32")}, ActionSpec(n=4), {}, 5)
    given = Spec({"x": Field((np.int64(3), 2), np.float32)}, ActionSpec(n=np.int64(4)), {}, 5)  # type: ignore[arg-type]
    assert (given, given.schema) == (plain, plain.schema)
    bounds = np.array([0.0, 1.0], np.float32)
    assert ActionSpec(low=tuple(bounds), high=tuple(bounds + 1)) == ActionSpec(low=(0.0, 1.0), high=(1.0, 2.0))
    assert json.dumps(Spec({}, ActionSpec(nvec=tuple(np.array([2, 3]))), {}, 1).to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"obs": {**SPEC.obs, "image": Field((4, 5, 6), "uint8")}},
        {"obs": {**SPEC.obs, "image": Field((4, 5, 5), "int8")}},
        {"obs": {"picture": Field((4, 5, 5), "uint8"), "legal": Field((3,), "bool")}},
        {"action": ActionSpec(n=4)},
        {"action": ActionSpec(nvec=(3,))},
        {"extra": {}},
        {"chunk_length": 7},
        {"sample": ORIGIN_FIELDS},
    ],
)
def test_any_change_is_another_schema(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SPEC, **change).schema != SPEC.schema


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"chunk_length": 0}, "Spec.chunk_length must be at least 1, got 0"),
        ({"obs": {"x": Field((), "U5")}}, r"Spec.obs\['x'\] must be numbers of a fixed shape, got .*U5"),
        ({"obs": {"x": Field((), "complex64")}}, r"Spec.obs\['x'\]"),
        ({"obs": {"x": Field((), "float31")}}, r"Spec.obs\['x'\] must be numbers of a fixed shape, got .*float31"),
        ({"obs": {"x": Field((), ">f4")}}, r"Spec.obs\['x'\]"),
        ({"obs": {"x": Field((), "datetime64[s]")}}, r"Spec.obs\['x'\]"),
        ({"extra": {"v": Field((-1,), "float32")}}, r"Spec.extra\['v'\]"),
        ({"extra": {"v": Field((), "object")}}, r"Spec.extra\['v'\]"),
        ({"obs": {"first": NUMBER}, "state": {"h": NUMBER}}, "Spec.obs has 'first', but a network with a memory gets"),
        ({"obs": {"state.pos": NUMBER}, "state": {"h": NUMBER}}, "Spec.obs has 'state.pos'"),
        ({"sample": {"x": Field((), "float32")}}, r"Spec.sample must contain \['env', .*got \['x'\]"),
        ({"sample": {**ORIGIN_FIELDS, "x": Field((), "O")}}, r"Spec.sample\['x'\]"),
        (
            {"sample": {**ORIGIN_FIELDS, "version": Field((), "int64")}},
            r"Spec.sample\['version'\] must be int64 of shape \[2\], got int64\[\]",
        ),
        ({"sample": {**ORIGIN_FIELDS, "seq": Field((), "int32")}}, r"Spec.sample\['seq'\] must be int64"),
    ],
)
def test_specs_that_cannot_be(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ContractError, match=text):
        dataclasses.replace(SPEC, **change)


def test_a_samples_of_ones_own() -> None:
    own = {**ORIGIN_FIELDS, "obs": Field((4,), "float32"), "done": Field((), "bool")}
    spec = dataclasses.replace(SPEC, sample=own)
    assert spec.sample_fields == own
    assert spec.sample_bytes == 16 + 1 + 6 * 8


def test_the_size_of_a_chunk_is_derived() -> None:
    assert SPEC.sample_bytes == sum(array.nbytes for array in zeros(SPEC).values())


# --- chunks


def test_a_chunk_is_flat_and_whole_again() -> None:
    flat = zeros(SPEC, 5)
    chunk = arrays_to_chunk(flat)
    assert {field.name for field in dataclasses.fields(Chunk)} >= {name.partition(".")[0] for name in flat}
    assert chunk.obs["image"].shape == (5, 7, 4, 5, 5)
    assert chunk.extra["value"].shape == (5, 6)
    assert chunk.version.shape == (5, 6, 2)
    assert chunk.worker.shape == (5,)
    again = chunk_to_arrays(chunk)
    assert again.keys() == flat.keys() == chunk_fields(SPEC).keys()
    assert all(again[name] is flat[name] for name in flat)  # no copy


# --- checks


def test_check_arrays_names_the_field_and_both_sides() -> None:
    good = zeros(SPEC, 2)
    check_arrays(good, SPEC.sample_fields, (2,), "a round")
    for change, text in (
        ({"reward": good["reward"][:1]}, r"^a round: reward must be float32\[2, 6\], got float32\[1, 6\]$"),
        ({"reward": good["reward"].astype(">f4")}, r"^a round: reward must be float32\[2, 6\], got >f4\[2, 6\]$"),
        ({"valid": good["valid"].astype(int)}, r"^a round: valid must be bool\[2, 6\], got int64\[2, 6\]$"),
        ({"reword": good["reward"]}, r"^a round: missing \[\], unknown \['reword'\]$"),
    ):
        with pytest.raises(ContractError, match=text):
            check_arrays({**good, **change}, SPEC.sample_fields, (2,), "a round")
    del good["seq"]
    with pytest.raises(ContractError, match=r"^a round: missing \['seq'\], unknown \[\]$"):
        check_arrays(good, SPEC.sample_fields, (2,), "a round")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_check_finite(value: float) -> None:
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float64), "c": np.zeros(2, np.int64)}
    check_finite(arrays, "a round")
    check_finite({"none": np.zeros((0, 3), np.float32)}, "a round")
    for name in ("a", "b"):
        with pytest.raises(ContractError, match=f"a round: {name} holds NaN or infinity"):
            check_finite({**arrays, name: arrays[name] + value}, "a round")
