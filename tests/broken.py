"""Breaks the frames of a message in every way that a line, a program or a stranger may: for the tests and for
tools/soak.
"""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import msgspec

from realm.wire import codec

PREFIX = struct.Struct("<4sHHI")
# the first bytes of a connection, as ZMTP 3 has them
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00%s" + bytes(12) + b"\x00" + bytes(31)
SOCKET_TYPE = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
HEADER = ("run", "schema", "sender", "incarnation", "kind", "seq", "meta", "arrays", "crc")
JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 255, 2**31, 2**63, -(2**63), 2**64 - 1, 1.5, float("nan"), float("inf"), "", "x", b"x",
    *map(msgspec.Raw, (b"\xa1\xff", b"\xc1", b"\xd4\x05x", b"\xd6\xff1234", b"\x81\x90\x01", b"\x81\x80\x01")),
    "<f4", "|O8", [], [[]], [None], {}, {"a": {}}, [-1], [0], [2**40, 2**40], [0, 2**62, 2**62], "a" * 1000,
    [[1]] * 300,
]  # fmt: skip


def framed(header: Any, text: bytes | None = None) -> bytes:
    """A header frame with a right prefix around whatever stands in it."""
    body = msgspec.msgpack.encode(list(header.values())) if text is None else text
    return PREFIX.pack(b"RLM\x01", codec.PROTOCOL, 0, zlib.crc32(body)) + body


def parts(frames: list[bytes]) -> dict[str, Any]:
    return dict(zip(HEADER, msgspec.msgpack.decode(frames[0][PREFIX.size :]), strict=True))


def mutate(draw: random.Random, good: list[bytes]) -> tuple[list[bytes], bool]:
    """(frames, whether they must be refused)"""
    frames = list(good)
    match draw.randrange(8):
        case 0:  # a bit flips anywhere; there is a checksum over both parts
            place = draw.randrange(len(frames))
            if not frames[place]:
                return frames[:-1], True
            flipped = bytearray(frames[place])
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
            frames[place] = bytes(flipped)
            # 6 and 7 are the reserved bytes of the prefix, which say nothing
            return frames, place != 0 or frames[0][:6] + frames[0][8:] != good[0][:6] + good[0][8:]
        case 1:  # cut short
            place = draw.randrange(len(frames))
            length = draw.randrange(len(frames[place])) if frames[place] else 0
            frames[place] = frames[place][:length]
            return frames, frames != good
        case 2:  # frames lost, doubled or in another order
            frames = draw.choices(good, k=draw.randrange(len(good) + 3))
            return frames, frames != good
        case 3:  # random bytes
            return [draw.randbytes(draw.randrange(80)) for _ in range(draw.randrange(5))], True
        case 4:  # random bytes with a right prefix
            return [framed(None, draw.randbytes(draw.randrange(1, 80))), *good[1:]], True
        case 5:  # a flipped bit in a header whose checksum was made to fit
            text = bytearray(good[0][PREFIX.size :])
            text[draw.randrange(len(text))] ^= 1 << draw.randrange(8)
            return [framed(None, bytes(text)), *good[1:]], False
        case 6:  # junk in a field
            header = parts(good)
            header[draw.choice([*header, "new"])] = draw.choice(JUNK)
            return [framed(header), *good[1:]], False
        case _:  # junk in an array's entry, with as many bytes as it likes
            header = parts(good)
            if not header["arrays"]:
                return [framed(header | {"arrays": draw.choice(JUNK)}), *good[1:]], False
            entry = header["arrays"][draw.randrange(len(header["arrays"]))]
            entry[draw.randrange(3)] = draw.choice(JUNK)
            if draw.random() < 0.5:
                header["crc"] = None
                frames = [frames[0], *(draw.randbytes(draw.choice([0, 1, 4, 8, 48])) for _ in good[1:])]
            return [framed(header), *frames[1:]], False
