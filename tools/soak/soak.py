"""Does every fault to real runs, plays broken input at every door, and writes what came of it to docs/reliability.md.

    tools/soak.sh                                  all, with 60 minutes of random faults: about three hours
    tools/soak.sh --only F27 F22                   some faults; `fuzz` is the broken input, `memory` an undisturbed run
    tools/soak.sh --minutes 3 --no-tests           a look at everything but the tests

Parts that are finished are in --out and are not done again; --again does them again. A part that failed is. The report
holds all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.errors import ConfigError
from tests import fuzz
from tests.cluster import ROOT
from tools import common
from tools.soak import hour, report
from tools.soak.table import FAULTS
from tools.soak.victim import Ground

FUZZ, FUZZ_MINUTES = "fuzz", 7.0
MEMORY = "memory"
TESTS_MINUTES = 0.3  # of one entry of a fault
REPORT = ROOT / "docs" / "reliability.md"


class Part:
    """One thing to do. run: gets a way to say how far it is, and returns what the JSON keeps."""

    def __init__(self, name: str, minutes: float, run: Callable[[Callable[[str], None]], dict[str, Any]]) -> None:
        self.name, self.minutes, self.run = name, minutes, run


def parts_of(args: argparse.Namespace) -> list[Part]:
    """In the order of their names: each fault's injections, then its tests."""
    wanted = args.only or [*FAULTS, MEMORY, FUZZ]
    if unknown := set(wanted) - {*FAULTS, MEMORY, FUZZ}:
        raise ConfigError(
            f"--only {' '.join(sorted(unknown))}: unknown; must be F1 to F{len(FAULTS)}, {MEMORY} or {FUZZ}"
        )
    parts = []
    for name, fault in FAULTS.items():
        if name not in wanted:
            continue
        minutes = 2 * args.minutes if name == "F26" else fault.minutes / max(1, len(fault.inject))
        for inject in fault.inject:
            parts.append(Part(f"{name} {inject.__name__}", minutes, injection(args, inject)))
        if fault.tests and not args.no_tests:
            parts.append(Part(f"{name} tests", TESTS_MINUTES * len(fault.tests), tests(fault.tests)))
    if MEMORY in wanted:
        parts.append(Part(MEMORY, args.minutes, injection(args, hour.undisturbed)))
    if FUZZ in wanted:
        parts.append(Part(FUZZ, FUZZ_MINUTES * args.cases / 100_000, fuzzing(args)))
    return parts


def injection(args: argparse.Namespace, inject: Callable[[Ground], Any]) -> Callable[[Callable[[str], None]], Any]:
    def run(show: Callable[[str], None]) -> dict[str, Any]:
        folder = args.folder / inject.__name__
        shutil.rmtree(folder, ignore_errors=True)
        outcome = inject(Ground(folder, args.seed, args.minutes, tuple(args.set), show))
        shutil.rmtree(folder, ignore_errors=True)  # of a part that failed it stays
        return dataclasses.asdict(outcome)

    return run


def tests(names: tuple[str, ...]) -> Callable[[Callable[[str], None]], dict[str, Any]]:
    def run(show: Callable[[str], None]) -> dict[str, Any]:
        show(f"{len(names)} tests")
        command = [sys.executable, "-m", "pytest", "-q", "-x", *(f"tests/{name}" for name in names)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout[-3000:])
        return {"tests": list(names), "result": done.stdout.strip().splitlines()[-1]}

    return run


def fuzzing(args: argparse.Namespace) -> Callable[[Callable[[str], None]], dict[str, Any]]:
    def run(show: Callable[[str], None]) -> dict[str, Any]:
        begin, folder = time.monotonic(), args.folder / FUZZ

        def shown(done: int) -> None:
            show(f"{done:,} of {args.cases:,} cases, {done / max(1e-9, time.monotonic() - begin):,.0f}/s")

        rows = fuzz.play_all(folder, args.cases, args.seed, shown)
        shutil.rmtree(folder)
        return {"seed": args.seed, "rows": [row._asdict() for row in rows]}

    return run


def do_all(parts: list[Part], args: argparse.Namespace) -> bool:
    """Do what is not done yet; return whether all went well."""
    results = common.open_results(args.out, {}, "parts")
    progress, well = common.Progress(), True
    for k, part in enumerate(parts):
        known = results["parts"].get(part.name, {})
        if known and not known.get("failed") and not args.again:
            progress.say(f"{part.name}: done before, in {known['seconds']:.0f} s")
            continue
        left = sum(one.minutes for one in parts[k:])
        begin = time.monotonic()

        def show(text: str, k: int = k, part: Part = part, left: float = left, begin: float = begin) -> None:
            rest = max(0.0, left - (time.monotonic() - begin) / 60)
            line = f"{k + 1}/{len(parts)} {part.name.split()[0]}: {text}"
            progress.show(f"{line[:62]:<62} {rest:>4.0f} min left")

        progress.say(f"{part.name} (about {part.minutes:.1f} min) ...")
        try:
            entry = part.run(show)
        except Exception as error:  # whatever it is, it is the result of this part, and the next one is another matter
            entry = {"failed": f"{type(error).__name__}: {error}"[:3000]}
        entry |= {"seconds": time.monotonic() - begin, "about": common.about(), "settings": args.set}
        results["parts"][part.name] = entry
        common.write_json(args.out, results)
        well &= not entry.get("failed")
        progress.say(f"{part.name}: {report.line(entry)}")
    report.write(REPORT if args.report is None else args.report, results)
    return well


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="FAULT", help="names like F27, memory or fuzz (default: all)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of random faults in F26, and of memory (default 60)"
    )
    parser.add_argument("--cases", type=int, default=100_000, help="of broken input (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default 0)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run, repeatable")
    parser.add_argument("--no-tests", action="store_true", help="leave out what the tests cover")
    parser.add_argument("--again", action="store_true", help="do finished parts again")
    parser.add_argument("--out", type=Path, default=ROOT / "train" / "soak.json", help="default train/soak.json")
    parser.add_argument("--folder", type=Path, default=ROOT / "train" / "soak", help="of the runs (default train/soak)")
    parser.add_argument("--report", type=Path, help="default docs/reliability.md")
    args = parser.parse_args()
    if args.minutes <= 0 or args.cases < 1:
        raise ConfigError(f"--minutes {args.minutes:g} --cases {args.cases}: both must be above 0")
    common.check_out(args.out)
    common.end_in_order()
    if not do_all(parts_of(args), args):
        sys.exit("some parts failed; their runs are in " + str(args.folder))


if __name__ == "__main__":
    common.command_line(main)
