"""One TensorBoard writer, in the supervisor or in the one-process run."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from loguru import logger

from realm.watch.descriptions import FIRST, description

Curve = tuple[list[int], list[float]]
"""Env steps and values."""

_RETRY_AFTER_S = 60.0


def without_tensorflow() -> None:
    """Keep tensorboard from importing an installed TensorFlow (390 MB, and twelve lines of warnings)."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))


class TensorBoard:
    """Writes scalars; a full disk causes one warning a minute and never ends the run."""

    def __init__(self, folder: Path) -> None:
        without_tensorflow()
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder = folder
        self._event, self._summary, self._record_writer = Event, Summary, RecordWriter
        self._summary_metadata = SummaryMetadata
        self._session_start = SessionLog(status=SessionLog.START)
        self._begins_at: int | None = None  # a session that no file tells of yet
        self._writer: Any = None  # opened when there is something to write
        self._described = set[str]()
        self._retry_at = 0.0

    def begin(self, step: int) -> None:
        """Say that training begins or goes on at `step`: tensorboard drops what was written after it.

        What a lost learner had trained after its last checkpoint is no part of the curve.
        """
        self._begins_at = step + 1

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write name -> value at `step` (env steps); after a failure, values of the next minute are lost."""
        described = [name for name in values if name not in self._described]  # once in each file
        kind = {"plugin_name": "scalars"}
        kinds = {
            name: self._summary_metadata(summary_description=description(name), plugin_data=kind) for name in described
        }
        points = [self._summary.Value(tag=name, simple_value=x, metadata=kinds.get(name)) for name, x in values.items()]
        if self._write(self._summary(value=points), step):
            self._described.update(described)

    def describe(self, text: str, settings: Mapping[str, bool | float | str], step: int) -> None:
        """Write the configuration: as a page of text, and as hyper-parameters, by which TensorBoard compares runs. And
        which curves come first, as the page of custom scalars."""
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.custom_scalar import layout_pb2
        from tensorboard.plugins.custom_scalar import metadata as custom
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        layout = layout_pb2.Layout()
        for title, charts in FIRST.items():
            category = layout.category.add(title=title)
            for chart, tags in charts.items():
                category.chart.add(title=chart).multiline.tag.append(tags)
        page = TensorProto(dtype=DT_STRING, string_val=[f"```toml\n{text}\n```".encode()])
        kind = self._summary_metadata(plugin_data={"plugin_name": "text"})
        session = plugin_data_pb2.HParamsPluginData()
        session.session_start_info.start_time_secs = time.time()
        for name, value in settings.items():
            entry = session.session_start_info.hparams[name]
            if isinstance(value, bool):
                entry.bool_value = value
            elif isinstance(value, str):
                entry.string_value = value
            else:
                entry.number_value = value
        values = [
            self._summary.Value(tag="config", metadata=kind, tensor=page),
            self._summary.Value(
                tag=metadata.SESSION_START_INFO_TAG,
                metadata=metadata.create_summary_metadata(session),
                tensor=metadata.NULL_TENSOR,
            ),
            self._summary.Value(
                tag=custom.CONFIG_SUMMARY_TAG,
                metadata=custom.create_summary_metadata(),
                tensor=TensorProto(dtype=DT_STRING, string_val=[layout.SerializeToString()]),
            ),
        ]
        self._write(self._summary(value=values), step)

    def _write(self, summary: Any, step: int) -> bool:
        """Whether it could be written."""
        if time.monotonic() < self._retry_at:
            return False
        try:
            if self._writer is None:
                self._open()
            if self._begins_at is not None:
                self._put(step=self._begins_at, session_log=self._session_start)
            self._put(step=step, summary=summary)
            self._writer.flush()
            self._begins_at = None
            return True
        except OSError as error:
            self._retry_at = time.monotonic() + _RETRY_AFTER_S
            logger.warning("cannot write TensorBoard's files, training goes on without curves: {}", error)
            self.close()
        return False

    def _open(self) -> None:
        """Begin a file. Not by tensorboard's own writer: its thread prints a traceback when the disk is full."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._described.clear()
        # tensorboard reads the files of a folder in the order of their names, and a clock may have been set back
        names = [re.match(r"events\.out\.tfevents\.(\d+)", path.name) for path in self._folder.iterdir()]
        newest = max((int(match[1]) for match in names if match), default=0)
        name = f"events.out.tfevents.{max(int(time.time()), newest + 1):010d}.{socket.gethostname()}.{os.getpid()}"
        self._writer = self._record_writer(open(self._folder / name, "ab"))  # noqa: SIM115 - `close` closes it
        self._put(file_version="brain.Event:2")

    def _put(self, **content: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **content).SerializeToString())

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):  # every write was flushed or has caused a warning
                writer.close()


def read_curves(folder: Path) -> dict[str, Curve]:
    """Tag -> env steps and values, without those that a resumed run has dropped."""
    if not folder.is_dir():
        return {}
    without_tensorflow()
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of each session of a run
    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    events.Reload()
    found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    # a curve may have lost all its points
    return {
        tag: ([one.step for one in points], [one.value for one in points]) for tag, points in found.items() if points
    }
