"""The data that processes exchange: the one vocabulary that every process shares.

Frozen dataclasses of integers, strings and NumPy arrays; from the project they need only `errors`. Everybody imports
from here. Axes: E environments of one worker, N rows of a forward pass, T steps, B chunks of a batch.
"""

from realm.contract.arrays import Array, Arrays, Field, Fields, check_arrays, check_finite
from realm.contract.callbacks import Progress, film_best, mlflow_logger, stop_at_score, wandb_logger
from realm.contract.messages import Book, Evaluation, Report, curve_name
from realm.contract.package import Agent, Learned, Monitor, Policy, PredictContext, Prediction, WorkflowContext
from realm.contract.samples import (
    Chunk,
    SampleInfo,
    Transitions,
    arrays_to_chunk,
    arrays_to_transitions,
    chunk_to_arrays,
    count_env_steps,
)
from realm.contract.spec import ORIGIN_FIELDS, ActionSpec, Draw, Spec, chunk_fields, row_fields
from realm.contract.versions import NO_VERSION, ModelTag, Version

__all__ = [
    "ActionSpec",
    "Agent",
    "Array",
    "Arrays",
    "Book",
    "Chunk",
    "Draw",
    "Evaluation",
    "Field",
    "Fields",
    "Learned",
    "ModelTag",
    "Monitor",
    "NO_VERSION",
    "ORIGIN_FIELDS",
    "Policy",
    "PredictContext",
    "Prediction",
    "Progress",
    "Report",
    "SampleInfo",
    "Spec",
    "Transitions",
    "Version",
    "WorkflowContext",
    "arrays_to_chunk",
    "arrays_to_transitions",
    "check_arrays",
    "check_finite",
    "chunk_fields",
    "chunk_to_arrays",
    "count_env_steps",
    "curve_name",
    "film_best",
    "mlflow_logger",
    "row_fields",
    "stop_at_score",
    "wandb_logger",
]
