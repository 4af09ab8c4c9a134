"""Does faults to real runs, plays broken input at every door, and writes tables for docs/reliability.md.

    tools/soak.sh                                  all, with 60 minutes of random faults: about two and a half hours
    tools/soak.sh --only F27 F4                    some faults; `fuzz` is the broken input, `memory` an undisturbed run
    tools/soak.sh --minutes 3                      a look at everything
    tools/soak.sh --only R1 R2 R3 R4 R5 R6 R7 R8   faults of other machines (R8 with R9): root and Ray; 80 minutes

Parts that are finished are in --out and are not done again; --again does them again. A part that failed is. The report
holds all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from realm.errors import ConfigError
from tests import fuzz
from tests.cluster import ROOT
from tools import common
from tools.soak.faults import FAULTS
from tools.soak.hosts import HOST_FAULTS
from tools.soak.victim import Ground, Outcome

FUZZ, FUZZ_MINUTES = "fuzz", 7.0

Show = Callable[[str], None]


class Part(NamedTuple):
    """One thing to do. run: gets a way to say how far it is, and returns what the JSON keeps."""

    name: str
    minutes: float
    run: Callable[[Show], dict[str, Any]]


def parts_of(args: argparse.Namespace) -> list[Part]:
    wanted, faults = args.only or [*FAULTS, FUZZ], {**FAULTS, **HOST_FAULTS}
    if unknown := set(wanted) - {*faults, FUZZ}:
        raise ConfigError(f"--only {' '.join(sorted(unknown))}: unknown; must be of {' '.join([*faults, FUZZ])}")
    parts = []
    for name in (name for name in faults if name in wanted):
        minutes, inject = faults[name]
        parts.append(Part(name, minutes or args.minutes, partial(injected, args, inject, args.folder / name)))
    if FUZZ in wanted:
        parts.append(Part(FUZZ, FUZZ_MINUTES * args.cases / 100_000, partial(fuzzed, args)))
    return parts


def injected(args: argparse.Namespace, inject: Callable[[Ground], Outcome], folder: Path, show: Show) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    outcome = inject(Ground(folder, args.seed, args.minutes, args.rounds, tuple(args.set), show))
    shutil.rmtree(folder, ignore_errors=True)  # of a part that failed it stays
    return dataclasses.asdict(outcome)


def fuzzed(args: argparse.Namespace, show: Show) -> dict[str, Any]:
    rows = fuzz.play_all(args.folder / FUZZ, args.cases, args.seed, lambda n: show(f"{n:,} of {args.cases:,} cases"))
    shutil.rmtree(args.folder / FUZZ)
    return {"seed": args.seed, "rows": [row._asdict() for row in rows]}


def do_all(parts: list[Part], args: argparse.Namespace) -> bool:
    """Do what is not done yet; return whether all went well."""
    results = common.open_results(args.out, {}, "parts")
    progress, well = common.Progress(), True
    for part in parts:
        known = results["parts"].get(part.name, {})
        if known and not known.get("failed") and not args.again:
            progress.say(f"{part.name}: done before, in {known['seconds']:.0f} s")
            continue
        progress.say(f"{part.name} (about {part.minutes:.1f} min) ...")
        begin = time.monotonic()
        try:
            entry = part.run(lambda text, name=part.name: progress.show(f"{name}: {text}"))  # type: ignore[misc]
        except Exception as error:  # whatever it is, it is the result of this part, and the next one is another matter
            entry = {"failed": f"{type(error).__name__}: {error}"[:3000]}
        entry |= {"seconds": time.monotonic() - begin, "about": common.about(), "settings": args.set}
        results["parts"][part.name] = entry
        common.write_json(args.out, results)
        well &= not entry.get("failed")
        progress.say(f"{part.name}: {line(entry)} ({entry['seconds']:.0f} s)")
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(report(results["parts"]))
    progress.say(str(args.report))
    return well


# ---- the report ----


def line(entry: dict[str, Any]) -> str:
    """One part's result, for the terminal."""
    if entry.get("failed"):
        return f"FAILED: {entry['failed'].splitlines()[0][:300]}"
    if "rows" in entry:
        cases, refused = (sum(row[name] for row in entry["rows"]) for name in ("cases", "refused"))
        return f"{cases:,} cases, {refused:,} refused, no other error"
    return f"{entry['times']:,} times; {entry['lost']}; {recovered(entry['recovery_s'])} s"


def recovered(seconds: list[float]) -> str:
    """Median and greatest."""
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else "-"


def report(parts: dict[str, Any]) -> str:
    """The tables of docs/reliability.md."""
    lines = ["## Faults", "", "| fault | injected | times | what was lost | recovery |", "|---|---|---:|---|---:|"]
    for name, entry in sorted(parts.items()):
        if entry.get("failed"):
            lines.append(f"| {name} | **failed**: {cell(entry['failed'].splitlines()[0][:200])} | | | |")
        elif "times" in entry and not entry.get("hosts"):
            numbers = f"{entry['times']:,} | {cell(entry['lost'])} | {recovered(entry['recovery_s'])}"
            lines.append(f"| {name} | {cell(entry['injected'])} | {numbers} |")
    if rows := [row for entry in parts.values() for row in entry.get("hosts", ())]:
        lines += [
            "", "## Hosts", "",
            "Seconds, median (worst). Lost: rounds that were played and not trained on; none was trained on twice.", "",
            "| fault | what | times | no role there | works elsewhere | is back | lost |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]  # fmt: skip
        for row in sorted(rows, key=lambda row: row["fault"]):
            took = " | ".join(recovered(row[name]) for name in ("gone_s", "elsewhere_s", "back_s", "lost"))
            lines.append(f"| {row['fault']} | {cell(row['what'])} | {len(row['lost'])} | {took} |")
    if rows := [row for entry in parts.values() for row in entry.get("memory", ())]:
        lines += [
            "", "## Memory", "",
            "Of each process of a run that nobody disturbs, with its share of what processes have in common; MB.",
            "Growth is a least-squares line through all that was measured after minute ten.", "",
            "| process | minute 10 | end | growth an hour |", "|---|---:|---:|---:|",
            *(f"| {row['process']} | {row['first_mb']:.0f} | {row['last_mb']:.0f} | {row['mb_per_h']:+.1f} |"
              for row in rows),
        ]  # fmt: skip
    if doors := parts.get(FUZZ, {}).get("rows"):
        lines += [
            "", "## Broken input", "",
            f"At each door in one process, seed {parts[FUZZ]['seed']}: no case raised an error but the door's own.", "",
            "| door | cases | refused | slowest case, ms | memory, MB |", "|---|---:|---:|---:|---:|",
        ]  # fmt: skip
        for row in doors:
            numbers = f"{row['cases']:,} | {row['refused']:,} | {1e3 * row['slowest_s']:.1f} | +{row['grown_mb']:.1f}"
            lines.append(f"| {row['door']} | {numbers} |")
    made = {
        f"- {about['date']}, {about['machine']}, commit {about['commit']}: `{about['command']}`": None
        for about in (entry["about"] for entry in parts.values())
    }
    return "\n".join([*lines, "", "## How it was measured", "", *made]) + "\n"


def cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="FAULT", help="names like F27, memory or fuzz (default: all)")
    parser.add_argument("--minutes", type=float, default=60.0, help="of F26's random faults, of memory (default 60)")
    parser.add_argument("--rounds", type=int, default=5, help="of each fault of a host (default 5)")
    parser.add_argument("--cases", type=int, default=100_000, help="of broken input (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default 0)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run, repeatable")
    parser.add_argument("--again", action="store_true", help="do finished parts again")
    parser.add_argument("--out", type=Path, default=ROOT / "train" / "soak.json", help="default train/soak.json")
    parser.add_argument("--folder", type=Path, default=ROOT / "train" / "soak", help="of the runs (default train/soak)")
    parser.add_argument("--report", type=Path, default=ROOT / "train" / "soak.md", help="default train/soak.md")
    args = parser.parse_args()
    if args.minutes <= 0 or args.cases < 1:
        raise ConfigError(f"--minutes {args.minutes:g} --cases {args.cases}: both must be above 0")
    common.check_out(args.out)
    common.end_in_order()
    if not do_all(parts_of(args), args):
        sys.exit(f"some parts failed; their runs are in {args.folder}")


if __name__ == "__main__":
    common.command_line(main)
