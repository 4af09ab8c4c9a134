"""Messages as frames: a checked header and raw array buffers.

Called by the sockets. A message is one header frame (magic, checksum, MessagePack), one frame with all small arrays end
to end, and one frame per large array. Nothing is unpickled. Every check comes before a buffer becomes an array; a
message that fails one raises WireError.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from isal.isal_zlib import crc32  # ten times as fast as zlib's

from realm.contract import Array, Arrays, Version

PROTOCOL = 4
_PREFIX = struct.Struct("<4sHHI")  # magic, protocol, reserved, crc32 of the header that follows
_MAGIC = b"RLM\x01"
SMALL_BYTES = 100_000  # measured: below this size a copy into one frame is faster than a zero-copy frame of its own
_MAX_HEADER_BYTES = 1 << 20
_MAX_ARRAYS = 256
_DTYPES = {
    dtype.str: dtype for dtype in map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))
}
"""The dtypes that an array may have: plain numbers, little-endian."""
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


T = TypeVar("T")
_Length = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Shape = Annotated[tuple[_Length, ...], msgspec.Meta(max_length=16)]
_Entry = tuple[str, str, _Shape]
"""An array's name, its dtype as NumPy's `dtype.str`, its shape."""


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a header frame; decoding checks all types and bounds."""

    run: str
    schema: str
    sender: str
    incarnation: int
    kind: str
    seq: int
    meta: dict[str, Any]
    arrays: Annotated[tuple[_Entry, ...], msgspec.Meta(max_length=_MAX_ARRAYS)]
    crc: int | None


def _plain(value: Any) -> Any:
    """Convert a subclass of a number or text, such as np.float64 and np.str_, to the plain type that msgspec needs."""
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} is not a plain value")


_ENCODER, _DECODER = msgspec.msgpack.Encoder(enc_hook=_plain), msgspec.msgpack.Decoder(_Header)


class WireError(ValueError):
    """A message is malformed or belongs to another run; the text names the fault."""


class Message(msgspec.Struct, frozen=True):
    """A kind, the number that pairs question and answer, small plain values, and arrays."""

    kind: str
    seq: int = 0
    meta: dict[str, Any] = {}
    arrays: Arrays = {}
    sender: str = ""
    incarnation: int = 0

    def value(self, name: str, kind: type[T]) -> T:
        """One of the values, of this type. Raises WireError if it is another one."""
        return _converted(self, self.meta.get(name), kind, f"{name}: ")

    def integer(self, name: str) -> int:
        return self.value(name, int)

    def text(self, name: str) -> str:
        return self.value(name, str)

    def version(self, name: str = "version") -> Version:
        return self.value(name, Version)

    def array(self, name: str) -> Array:
        if name not in self.arrays:
            raise WireError(f"{self.kind} from {self.sender}: array {name} is missing")
        return self.arrays[name]


def parsed(message: Message, kind: type[T]) -> T:
    """A message's values as a dataclass. Raises WireError."""
    return _converted(message, message.meta, kind)


def _converted(message: Message, value: Any, kind: type[T], label: str = "") -> T:
    try:
        return msgspec.convert(value, kind, str_keys=True)  # MessagePack's keys may be numbers, JSON's may not
    except msgspec.ValidationError as error:
        raise WireError(f"{message.kind} from {message.sender}: {label}{error}") from error


@dataclass(frozen=True)
class Codec:
    """Turns messages into frames and back, for one sender in one run.

    run_id      keeps out messages of other runs and of anything else that connects to the port
    schema      `Spec.schema`; empty where there is no spec yet (the control channel)
    max_bytes   the largest valid message
    """

    run_id: str
    schema: str
    sender: str
    incarnation: int
    max_bytes: int

    def encode(self, message: Message, checksum: bool = False) -> list[Any]:
        """Frames to send; `checksum` also covers the bodies (for chunks and for anything that leaves the machine).

        Raises WireError for a message that the receiver would refuse.
        """
        arrays = message.arrays
        entries: list[_Entry] = []
        for name, array in arrays.items():
            code = _CODES.get(array.dtype)
            if code is None:
                raise WireError(f"{message.kind}: array {name} is {array.dtype}; must be plain little-endian numbers")
            entries.append((name, code, array.shape))
        layout = _layout(tuple(entries))
        if len(arrays) > _MAX_ARRAYS or layout.total > self.max_bytes:
            raise WireError(
                f"{message.kind}: {len(arrays)} arrays of {layout.total} bytes; "
                f"must be at most {_MAX_ARRAYS} arrays of {self.max_bytes} bytes"
            )
        bodies: list[Any] = [b"".join([arrays[name].tobytes() for name in layout.small])] if layout.small else []
        # the bytes of its elements in C order; a copy only if it is not contiguous
        bodies += [np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data for name in layout.large]
        header = _Header(
            self.run_id,
            self.schema,
            self.sender,
            self.incarnation,
            message.kind,
            message.seq,
            message.meta,
            tuple(entries),
            _crc(bodies) if checksum else None,
        )
        try:
            text = _ENCODER.encode(header)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise WireError(f"{message.kind}: its values cannot be sent: {error}") from error
        if _PREFIX.size + len(text) > _MAX_HEADER_BYTES:
            raise WireError(f"{message.kind}: a header of {len(text)} bytes is too long")
        prefix = _PREFIX.pack(_MAGIC, PROTOCOL, 0, crc32(text))
        return [prefix + text, *bodies]

    def decode(self, frames: Sequence[Any]) -> Message:
        """The message in these frames; arrays are read-only views of them. Raises WireError."""
        if not frames:
            raise WireError("a message without frames")
        head = bytes(frames[0])
        if not _PREFIX.size < len(head) <= _MAX_HEADER_BYTES:
            raise WireError(f"a header of {len(head)} bytes is too short or too long")
        magic, protocol, _, crc = _PREFIX.unpack_from(head)
        if magic != _MAGIC:
            raise WireError(f"magic {magic!r} instead of {_MAGIC!r}")
        if protocol != PROTOCOL:
            raise WireError(f"protocol {protocol} instead of {PROTOCOL}")
        text = head[_PREFIX.size :]
        if crc32(text) != crc:
            raise WireError("wrong header checksum")
        try:
            header = _DECODER.decode(text)
        except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
            raise WireError(f"header: {error}") from error
        if header.run != self.run_id:
            raise WireError("a message of another run")  # without the ids: they are secret, and this text is logged
        if header.schema != self.schema:
            raise WireError(f"schema {header.schema!r} instead of {self.schema!r}")
        layout, bodies = _layout(header.arrays), frames[1:]
        if (got := [len(body) for body in bodies]) != layout.sizes:
            raise WireError(f"bodies of {got} bytes instead of {layout.sizes} for {len(header.arrays)} arrays")
        if layout.total > self.max_bytes:
            raise WireError(f"{layout.total} bytes; must be at most {self.max_bytes}")
        if header.crc is not None and header.crc != _crc(bodies):
            raise WireError("wrong body checksum")
        arrays: Arrays = {
            name: np.ndarray(shape, dtype, bodies[body], offset) for name, dtype, shape, body, offset in layout.places
        }
        return Message(header.kind, header.seq, header.meta, arrays, header.sender, header.incarnation)


class _Layout(NamedTuple):
    """The places of a message's arrays in its bodies, the frames after the header."""

    small: list[str]
    """Names of the arrays in the first body, end to end."""
    large: list[str]
    """Names of the arrays with a body each, after the first."""
    sizes: list[int]
    """Bytes of each body."""
    total: int
    places: list[tuple[str, np.dtype[Any], tuple[int, ...], int, int]]
    """Each array's name, dtype, shape, body and offset, in the order of the entries."""


@lru_cache(maxsize=64)  # a run's messages have few layouts
def _layout(entries: tuple[_Entry, ...]) -> _Layout:
    """The layout of arrays with these entries. Raises WireError for an impossible array."""
    sized = [(name, *_dtype_and_bytes(name, code, shape), shape) for name, code, shape in entries]
    small = [name for name, _, size, _ in sized if size < SMALL_BYTES]
    large: list[str] = []
    sizes = [0] if small else []
    places = []
    for name, dtype, size, shape in sized:
        if size < SMALL_BYTES:
            places.append((name, dtype, shape, 0, sizes[0]))
            sizes[0] += size
        else:
            places.append((name, dtype, shape, len(sizes), 0))
            sizes.append(size)
            large.append(name)
    return _Layout(small, large, sizes, sum(sizes), places)


def _dtype_and_bytes(name: str, code: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any], int]:
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise WireError(f"array {name}: unknown dtype {code!r}")
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        try:
            np.empty(shape, dtype)
        except ValueError as error:  # no bytes, but an axis that is too long for NumPy
            raise WireError(f"array {name}: impossible shape {shape}") from error
    return dtype, size


def _crc(bodies: Sequence[Any]) -> int:
    crc = 0
    for body in bodies:
        crc = crc32(body, crc)
    return crc
