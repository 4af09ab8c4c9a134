"""The reverb storage: the buffer role's items in a DeepMind reverb table. The only file that loads reverb.

Created by `roles/buffer.py` when `buffer_backend` is reverb. Every item is one row of bytes (a NumPy record), so
reverb moves one tensor per item. That tensor is a string, the only type that reverb does not compress: compression
would take more time than everything else. `ReplayBuffer` keeps its own counts and asks only for items that are stored,
because a reverb call that waits cannot be interrupted.
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
import portpicker

from realm.contract import Array, Arrays, Fields, SampleInfo
from realm.errors import ConfigError

_WRITTEN = 25  # items in flight to the table: reverb's default
_UNDER_WAY = 64  # samples in flight from it: more are no faster
_SAMPLE_WITHIN_S = 30


def _load_extension() -> Any:
    """Load reverb's C++ extension, which is enough for a storage.

    `import reverb` would import TensorFlow for its Python code: 3 s of CPU time at every start, 1 GB read from disk and
    400 MB of memory. The extension is linked against only one library of TensorFlow, of 50 MB.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before loading; otherwise ten lines of noise
    try:
        ctypes.CDLL(str(_package("tensorflow") / "libtensorflow_framework.so.2"))  # the linker does not search there
        path = str(_package("reverb") / "libpybind.so")
        loader = ExtensionFileLoader("libpybind", path)
        extension = module_from_spec(ModuleSpec("libpybind", loader, origin=path))
        loader.exec_module(extension)
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"buffer_backend is reverb, which cannot be loaded in this Python: {error}; install the versions of "
            "dm-reverb and tensorflow in requirements.lock, or set buffer_backend = native"
        ) from error
    return extension


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"{name} is not installed")
    return Path(spec.origin).parent


_reverb = _load_extension()


class ReverbStorage:
    """A table with its server in this process; no other process gets the port.

    Reverb (0.14) always listens on all interfaces, without authentication: anyone who reaches the port can list, read
    and write the table. So the thread that makes a storage, and all that use it, should be in a network namespace of
    their own (`realm/netns.py`).
    """

    def __init__(
        self, fields: Fields, capacity: int, sampler: str, remover: str, on_policy: bool, exponent: float, name: str
    ) -> None:
        """The arguments of NativeStorage, and the table's name. It is not secret: the server shows it to anyone."""
        self.size = self.evicted = 0
        self._capacity, self._once = capacity, on_policy
        self._prioritized, self._greatest = sampler == "Prioritized", 1.0
        self._record = np.dtype([(name, field.dtype, field.shape) for name, field in fields.items()])
        self._names = list(fields)
        self._name = f"items-{name}"
        table = _reverb.Table(
            name=self._name,
            sampler=_selector(sampler, exponent),
            remover=_selector("Fifo" if on_policy else remover, exponent),  # on-policy nothing is discarded
            max_size=capacity,
            max_times_sampled=1 if on_policy else 0,
            # never blocks while items exist: `Limiter` limits the flow, and reverb's would evict, or block without a
            # way to interrupt it
            rate_limiter=_reverb.RateLimiter(1.0, 1, -sys.float_info.max, sys.float_info.max),
            extensions=[],
            signature=None,
        )
        self._port = portpicker.pick_unused_port()
        self._server = _reverb.Server([table], self._port, None)
        self._client = _reverb.Client(f"localhost:{self._port}")
        self._writer = self._new_writer()
        self._counts: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._samples: queue.SimpleQueue[tuple[Arrays, SampleInfo] | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._sample_in_thread, name="sampler", daemon=True).start()

    def _new_writer(self) -> Any:
        return self._client.NewWriter(chunk_length=1, max_timesteps=1, max_in_flight_items=_WRITTEN)

    def add(self, items: Arrays) -> None:
        count = len(items["worker"])
        rows = np.empty(count, self._record)
        for name in self._names:
            rows[name] = items[name]
        # a new item is drawn soon, so that its own priority becomes known
        priority = self._greatest if self._prioritized else 1.0
        for row in rows:
            self._writer.Append([np.array(row.tobytes(), object)])  # not bytes_, which drops zeros at the end
            self._writer.CreateItem(self._name, 1, priority)  # one time step
        self._writer.Flush()
        overflow = max(0, self.size + count - self._capacity)
        self.evicted += overflow
        self.size += count - overflow

    def sample(self, count: int) -> tuple[Arrays, SampleInfo]:
        """Take `count` stored items. Raises RuntimeError if the table does not have them as this process wrote them."""
        self._counts.put(count)
        for _ in range(_SAMPLE_WITHIN_S):  # seconds while this process runs: a frozen one does not count them
            try:
                sampled = self._samples.get(timeout=1.0)
            except queue.Empty:
                continue
            if isinstance(sampled, BaseException):
                raise sampled
            if self._once:
                self.size -= count
            return sampled
        raise RuntimeError(
            f"reverb's table gave no {count} items in {_SAMPLE_WITHIN_S} s, although {self.size} are stored: another "
            f"process took some through port {self._port}, or reverb's server has ended"
        )

    def _sample_in_thread(self) -> None:
        """Sample as asked. In a thread of its own, because a reverb call that waits has no time limit."""
        while (count := self._counts.get()) is not None:
            try:
                self._samples.put(self._sample(count))
            except BaseException as error:  # `sample` raises it
                self._samples.put(error)

    def _sample(self, count: int) -> tuple[Arrays, SampleInfo]:
        record = self._record
        items = {name: np.empty((count, *record[name].shape), record[name].base) for name in self._names}
        key, times = np.empty(count, np.uint64), np.empty(count, np.int64)
        probability = np.empty(count)
        # reverb's `Client.sample` has only one sample in flight, which takes three times as long
        sampler = self._client.NewSampler(self._name, count, min(count, _UNDER_WAY))
        for row in range(count):
            key[row], probability[row], _, _, times[row], *columns = sampler.GetNextTrajectory()
            item = np.frombuffer(self._row_bytes(columns), record)[0]
            for name, array in items.items():
                array[row] = item[name]
        return items, SampleInfo(key, probability, times)

    def _row_bytes(self, columns: list[Array]) -> bytes:
        """The bytes of one item. Raises RuntimeError if this process cannot have written it."""
        value = columns[0].item() if len(columns) == 1 and columns[0].size == 1 else None
        if not isinstance(value, bytes) or len(value) != self._record.itemsize:
            raise RuntimeError(
                f"reverb's table holds an item that is not one row of {self._record.itemsize} bytes: another process "
                f"wrote into it through port {self._port}"
            )
        return value

    def update_priorities(self, key: Array, priority: Array) -> None:
        updates = list(zip(key.tolist(), priority.astype(float).tolist(), strict=True))
        self._client.MutatePriorities(self._name, updates, [])
        self._greatest = max(self._greatest, float(priority.max(initial=0.0)))

    def clear(self) -> None:
        self._writer.Close(True)
        self._client.Reset(self._name)
        self._writer = self._new_writer()
        self.size = 0

    def close(self) -> None:
        self._counts.put(None)
        self._writer.Close(True)
        self._server.Stop()
        portpicker.return_port(self._port)


def _selector(name: str, exponent: float) -> Any:
    selectors = {
        "Uniform": _reverb.UniformSelector,
        "Fifo": _reverb.FifoSelector,
        "MinHeap": lambda: _reverb.HeapSelector(True),
        "MaxHeap": lambda: _reverb.HeapSelector(False),
        "Prioritized": lambda: _reverb.PrioritizedSelector(exponent),
    }
    return selectors[name]()
