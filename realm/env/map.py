"""Maps: 128 x 128 cells of road and obstacle with 16 numbered points.

Used by everything that plays, draws or plans. `load` reads the competition's two files, `save` writes them,
`generate` makes a corridor map from a seed, `resolve` turns what a user writes (`"default"`, `"generated:7"`,
a path, a `Map`) into a `Map`. A map that cannot be played is refused with a `MapError` that says why in one
sentence. Arrays over the map are indexed `[z, x]`, row 0 is the south edge; positions are `(x, z)` in world units.
"""

from __future__ import annotations

import math
import re
import reprlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from realm.errors import UserError
from realm.files import read_json, read_text
from realm.jit import jit

SIZE = 128  # cells along one side
CELL = 500.0  # world units along one cell
EXTENT = SIZE * CELL
POINTS = 16  # 0 is the buff, 1..15 can be start, end or treasure
OFFSET = (2250.0, 5250.0)  # game coordinates + OFFSET = world coordinates
FAR = 32767  # `Map.distance` where no way leads
FLAGS_FILE, POINTS_FILE = "map_1.json", "crab.yaml"
MOST_FLAGS_BYTES, MOST_POINTS_BYTES = 4 << 20, 64 << 10
GENERATED = "generated:"  # with a seed behind it, the name of a generated map
DEFAULT_DIR = Path(__file__).parent / "maps" / "default"


class MapError(UserError):
    """A map that cannot be played; the message is one sentence."""


@dataclass(frozen=True, eq=False)
class Map:
    """A playable map. Its arrays are read-only.

    road: u8 [128, 128], 1 = road, indexed [z, x] points: f64 [16, 2], world x and z of each point cells: i32
    [16, 2], cell x and z of each point distance: i32 [16, 128, 128], steps from cell [z, x] to the point over
    4-neighbour road cells, FAR where none leads
    """

    road: NDArray[np.uint8]
    points: NDArray[np.float64]
    name: str = "map"
    cells: NDArray[np.int32] = field(init=False, repr=False)
    distance: NDArray[np.int32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        road, points = _checked_road(self.road), _checked_points(self.points)
        cells = np.floor(points / CELL).astype(np.int32)
        for i, (cx, cz) in enumerate(cells):
            if not road[cz, cx]:
                raise MapError(f"point {i} lies on an obstacle (cell x {cx}, z {cz})")
            for j in range(i):
                if (cells[j] == cells[i]).all():
                    raise MapError(f"points {j} and {i} lie in the same cell (x {cx}, z {cz})")
        distance = _distances(road, cells)
        for i, (cx, cz) in enumerate(cells):
            if distance[0, cz, cx] == FAR:
                raise MapError(f"point {i} cannot be reached from point 0 over road cells")
        for name, array in (("road", road), ("points", points), ("cells", cells), ("distance", distance)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)


def _checked_road(road: NDArray[np.uint8]) -> NDArray[np.uint8]:
    array = np.asarray(road)
    if array.shape != (SIZE, SIZE):
        raise MapError(f"a map has {SIZE} x {SIZE} cells, this one has shape {array.shape}")
    if not np.isin(array, (0, 1)).all():
        raise MapError("a cell is 1 (road) or 0 (obstacle), this map has other values")
    return np.array(array, dtype=np.uint8, order="C")


def _checked_points(points: NDArray[np.float64]) -> NDArray[np.float64]:
    array = np.array(points, dtype=np.float64, order="C")
    if array.shape != (POINTS, 2):
        raise MapError(f"a map has {POINTS} points of (x, z), this one has shape {array.shape}")
    for i, (x, z) in enumerate(array):
        # not (0 <= v < EXTENT) is true for NaN too
        if not (0 <= x < EXTENT and 0 <= z < EXTENT):
            raise MapError(f"point {i} at world ({x:g}, {z:g}) lies outside the map (0 to {EXTENT:g})")
    return array


@jit
def _distances(road: NDArray[np.uint8], cells: NDArray[np.int32]) -> NDArray[np.int32]:
    """Breadth-first distance fields. road: u8 [128, 128]; cells: i32 [P, 2] (x, z); returns i32 [P, 128,
    128]."""
    out = np.full((len(cells), SIZE, SIZE), FAR, dtype=np.int32)
    queue = np.empty((SIZE * SIZE, 2), dtype=np.int32)
    for p in range(len(cells)):
        field = out[p]
        queue[0, 0], queue[0, 1] = cells[p, 0], cells[p, 1]
        field[cells[p, 1], cells[p, 0]] = 0
        head, tail = 0, 1
        while head < tail:
            x, z = queue[head, 0], queue[head, 1]
            head += 1
            for side in range(4):
                nx = x + (1 if side == 0 else -1 if side == 1 else 0)
                nz = z + (1 if side == 2 else -1 if side == 3 else 0)
                if 0 <= nx < SIZE and 0 <= nz < SIZE and road[nz, nx] == 1 and field[nz, nx] == FAR:
                    field[nz, nx] = field[z, x] + 1
                    queue[tail, 0], queue[tail, 1] = nx, nz
                    tail += 1
    return out


# ---- files in the competition's format ----


def load(path: str | Path, points: str | Path | None = None, name: str | None = None) -> Map:
    """Read a map. `path`: a folder with map_1.json and crab.yaml, or the json file with the yaml file next to
    it (or at `points`). `name` is what the map is called, its path if not given."""
    flags_file = Path(path)
    if flags_file.is_dir():
        flags_file = flags_file / FLAGS_FILE
    points_file = Path(points) if points is not None else flags_file.parent / POINTS_FILE
    road, world = _read_flags(flags_file), _read_points(points_file)
    try:
        return Map(road, world, name=name or str(path))
    except MapError as error:
        raise MapError(f"{path}: {error}") from None


def _unreadable(file: Path, error: OSError | UnicodeDecodeError) -> MapError:
    return MapError(f"cannot read {file}: {error.strerror if isinstance(error, OSError) else 'not a text file'}")


def _short(value: object) -> str:
    """A value of a file for a message: it may be of any size."""
    try:
        return reprlib.repr(value)
    except ValueError:  # a number with thousands of digits
        return f"a huge {type(value).__name__}"


def _read_flags(file: Path) -> NDArray[np.uint8]:
    try:
        data = read_json(file, MOST_FLAGS_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from None
    except ValueError as error:
        raise MapError(f"{file} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise MapError(f"{file} must hold an object with CellWidth, Width, Height and Flags")
    for key, want in (("CellWidth", int(CELL)), ("Width", SIZE), ("Height", SIZE)):
        if key not in data:
            raise MapError(f"{file} lacks {key}")
        if isinstance(data[key], bool) or data[key] != want:
            raise MapError(f"{file}: {key} is {_short(data[key])}, it must be {want}")
    if "Flags" not in data:
        raise MapError(f"{file} lacks Flags")
    flags = data["Flags"]
    if not isinstance(flags, list):
        raise MapError(f"{file}: Flags must be a list of {SIZE * SIZE} numbers")
    if len(flags) != SIZE * SIZE:
        raise MapError(f"{file}: Flags has {len(flags)} numbers, it must have {SIZE * SIZE}")
    for i, flag in enumerate(flags):
        if not isinstance(flag, int | float) or flag not in (0, 1):
            raise MapError(f"{file}: Flags[{i}] is {_short(flag)}, a cell is 1 (road) or 0 (obstacle)")
    return np.array(flags, dtype=np.uint8).reshape(SIZE, SIZE)


def _read_points(file: Path) -> NDArray[np.float64]:
    try:
        text = read_text(file, MOST_POINTS_BYTES)
        if text.count("[") + text.count("{") > 500:  # PyYAML takes seconds for them
            raise MapError(f"{file} must hold {POINTS} lines `id: [x, z]`; it is far too long or too deep for that")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        # safe_load would let the last of two equal ids win in silence, so the pairs are read one by one
        if not isinstance(node, yaml.MappingNode):
            raise MapError(f"{file} must hold {POINTS} lines `id: [x, z]`")
        loader = yaml.SafeLoader("")
        pairs = [
            (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
            for key, value in node.value
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from None
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        if isinstance(error, MapError):
            raise
        raise MapError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    found: dict[int, tuple[float, float]] = {}
    for key, value in pairs:
        if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < POINTS:
            raise MapError(f"{file}: {_short(key)} is no point, ids are 0 to {POINTS - 1}")
        if key in found:
            raise MapError(f"{file}: point {key} is there twice")
        numbers = value if isinstance(value, list) else []
        if len(numbers) != 2 or any(isinstance(v, bool) or not isinstance(v, int | float) for v in numbers):
            raise MapError(f"{file}: point {key} is {_short(value)}, it must be [x, z]")
        found[key] = (_as_float(numbers[0]) + OFFSET[0], _as_float(numbers[1]) + OFFSET[1])
    missing = [str(i) for i in range(POINTS) if i not in found]
    if missing:
        raise MapError(f"{file} lacks point{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    return np.array([found[i] for i in range(POINTS)], dtype=np.float64)


def _as_float(value: float) -> float:
    """An int too large for a float becomes infinite, which is then refused as outside the map."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def save(map_: Map, folder: str | Path) -> None:
    """Write map_1.json and crab.yaml into `folder` (made if absent); `load` gives the same map back."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join("  " + ",".join(str(int(flag)) for flag in row) for row in map_.road)
    head = f'"CellWidth": {int(CELL)}, "Width": {SIZE}, "Height": {SIZE}'
    (folder / FLAGS_FILE).write_text(f'{{{head}, "Flags": [\n{rows}\n]}}\n', encoding="utf-8")
    lines = []
    for i, (x, z) in enumerate(map_.points):
        gx, gz = float(x) - OFFSET[0], float(z) - OFFSET[1]
        lines.append(f"{i}: [{_number(gx)}, {_number(gz)}]\n")
    (folder / POINTS_FILE).write_text("".join(lines), encoding="utf-8")


def _number(value: float) -> str:
    if value.is_integer():
        return str(int(value))
    text = repr(value)
    return text if "e" not in text else f"{value:.20f}"  # YAML 1.1 reads 1e-05 as a string


@cache
def default() -> Map:
    """The map the project ships (see maps/default/README.md for its seed)."""
    return load(DEFAULT_DIR, name="default")


def resolve(map_: Map | str | Path) -> Map:
    """`"default"`, `"generated:7"` (the map that `generate` makes of that seed), a path as for `load`, or a Map as it
    is."""
    if isinstance(map_, Map):
        return map_
    if not isinstance(map_, str | Path):  # whoever reads a configuration file can get anything
        raise MapError(f"map is {map_!r}, it must be default, {GENERATED}SEED or a path")
    if map_ == "default":
        return default()
    if isinstance(map_, str) and map_.startswith(GENERATED):
        seed = map_.removeprefix(GENERATED)
        if not re.fullmatch("[0-9]{1,18}", seed):
            raise MapError(f"map is {map_!r}, after {GENERATED} comes a seed: a whole number of at most 18 digits")
        return generate(int(seed))
    return load(map_)


# ---- generated maps ----

NODES = 8  # corridors run between the nodes of a jittered lattice of 8 x 8
SPACING = SIZE // NODES
JITTER = 3  # cells
WIDTHS = (4,) * 8 + (5,) * 4 + (6, 7, 8, 9)  # cells; narrow ones are more frequent
TREE_NODES = 44  # of 64
ROAD_SHARE = 0.26  # of all cells: when loops stop being added
MIN_LOOPS = 4
MIN_POINT_DISTANCE = 9.0  # cells, straight


def generate(seed: int) -> Map:
    """Make a corridor map: connected, with loops and dead ends, points at ends and junctions. Same seed, same
    map.

    Corridors lie about 16 cells apart, which is the reach of a flash: jumping over to the next one pays.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    while True:
        road, nodes, edges = _carve(rng)
        cells = _place_points(rng, road, nodes, edges)
        if cells is not None:
            return Map(road, (cells + 0.5) * CELL, name=f"generated-{seed}")


Node = tuple[int, int]


def _carve(rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64], list[tuple[Node, Node]]]:
    """Returns road u8 [128, 128], node cells i64 [8, 8, 2] (x, z) and the edges that became corridors."""
    road = np.zeros((SIZE, SIZE), dtype=np.uint8)
    line = np.arange(NODES) * SPACING + SPACING // 2
    nodes = np.stack(np.meshgrid(line, line), axis=-1) + rng.integers(-JITTER, JITTER + 1, (NODES, NODES, 2))
    edges: list[tuple[Node, Node]] = []

    def connect(a: Node, b: Node) -> None:
        edges.append((a, b))
        width = int(rng.choice(WIDTHS))
        (ax, az), (bx, bz) = nodes[a], nodes[b]
        # an L: along x first or along z first
        turn = (bx, az) if rng.random() < 0.5 else (ax, bz)
        for (x0, z0), (x1, z1) in (((ax, az), turn), (turn, (bx, bz))):
            low_x, low_z = max(min(x0, x1) - width // 2, 1), max(min(z0, z1) - width // 2, 1)
            high_x = min(max(x0, x1) - width // 2 + width, SIZE - 1)
            high_z = min(max(z0, z1) - width // 2 + width, SIZE - 1)
            road[low_z:high_z, low_x:high_x] = 1

    first = (NODES // 2, NODES // 2)
    active, seen = [first], {first}
    while len(seen) < TREE_NODES:
        # mostly go on from the newest node (long winding corridors), sometimes branch off an old one
        i = len(active) - 1 if rng.random() < 0.6 else int(rng.integers(len(active)))
        free = [n for n in _neighbours(active[i]) if n not in seen]
        if not free:
            active.pop(i)
            continue
        node = free[int(rng.integers(len(free)))]
        connect(active[i], node)
        seen.add(node)
        active.append(node)
    possible = [(a, b) for a in sorted(seen) for b in _neighbours(a) if a < b and b in seen]
    possible = [edge for edge in possible if edge not in edges and edge[::-1] not in edges]
    rng.shuffle(possible)
    for loops, (a, b) in enumerate(possible):
        if loops >= MIN_LOOPS and road.mean() >= ROAD_SHARE:
            break
        connect((a[0], a[1]), (b[0], b[1]))
    return road, nodes, edges


def _neighbours(node: Node) -> list[Node]:
    around = [(node[0] + dz, node[1] + dx) for dz, dx in ((0, 1), (0, -1), (1, 0), (-1, 0))]
    return [(z, x) for z, x in around if 0 <= z < NODES and 0 <= x < NODES]


def _place_points(
    rng: np.random.Generator, road: NDArray[np.uint8], nodes: NDArray[np.int64], edges: list[tuple[Node, Node]]
) -> NDArray[np.int64] | None:
    """Choose 16 cells (i64 [16, 2], x and z) at ends and junctions, the one nearest the centre first; None if
    the map has too few that are apart."""
    degree: dict[Node, int] = {}
    for a, b in edges:
        degree[a], degree[b] = degree.get(a, 0) + 1, degree.get(b, 0) + 1
    spots = np.array([nodes[n] for n in sorted(degree) if degree[n] != 2], dtype=np.int64)
    if len(spots) < POINTS:
        return None
    buff = int(np.argmin(((spots - SIZE // 2) ** 2).sum(1)))
    # farthest first from a random one, so that the points cover the map; then numbered at random
    chosen = [buff]
    field = _distances(road, spots.astype(np.int32))
    apart = field[:, spots[:, 1], spots[:, 0]].astype(np.float64)
    while len(chosen) < POINTS:
        gap = apart[chosen].min(0) * rng.uniform(0.6, 1.0, len(spots))
        straight = np.sqrt(((spots[chosen][:, None] - spots[None]) ** 2).sum(-1)).min(0)
        gap[straight < MIN_POINT_DISTANCE] = 0
        best = int(np.argmax(gap))
        if gap[best] <= 0:
            return None
        chosen.append(best)
    order = [chosen[0], *(chosen[1 + int(i)] for i in rng.permutation(POINTS - 1))]
    return spots[order]
