"""Writes docs/reliability.md from the results of tools/soak."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from tools.soak.table import FAULTS

HEAD = """# Reliability

What happens to a run when a part of it fails, measured with real processes by `tools/soak.sh`. How a run recovers is in
[architecture.md](architecture.md#when-a-role-dies).
"""


def write(path: Path, results: dict[str, Any]) -> None:
    path.write_text(text(results))


def line(entry: dict[str, Any]) -> str:
    """One part's result, for the terminal."""
    took = f" ({entry['seconds']:.0f} s)"
    if entry.get("failed"):
        return f"FAILED: {entry['failed'].splitlines()[0][:300]}{took}"
    if "rows" in entry:
        cases = sum(row["cases"] for row in entry["rows"])
        return f"{cases:,} cases, {sum(row['refused'] for row in entry['rows']):,} refused, no other error{took}"
    if "result" in entry:
        return f"{entry['result']}{took}"
    recovery = f"; {recovered(entry['recovery_s'])} s" if entry["recovery_s"] else ""
    return f"{entry['times']:,} times; {entry['lost']}{recovery}{took}"


def recovered(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"


def text(results: dict[str, Any]) -> str:
    parts = results["parts"]
    lines = [HEAD, "## Faults", ""]
    lines += ["`times`: how often. Recovery: seconds until training goes on, the median and the greatest.", ""]
    lines += ["| fault | injected | times | what was lost | recovery |", "|---|---|---:|---|---:|"]
    for name in FAULTS:
        for part, entry in sorted(parts.items()):
            if part.split()[0] != name or "tests" in entry or part.endswith(" tests"):
                continue
            if entry.get("failed"):
                lines.append(f"| {part} | **failed**: {cell(entry['failed'].splitlines()[0][:200])} | | | |")
                continue
            recovery = recovered(entry["recovery_s"])
            lines.append(
                f"| {name} | {cell(entry['injected'])} | {entry['times']:,} | {cell(entry['lost'])} | {recovery} |"
            )
    lines += ["", *memory(parts), *covered(parts), *doors(parts.get("fuzz", {})), *made(parts)]
    return "\n".join(lines) + "\n"


def memory(parts: dict[str, Any]) -> list[str]:
    """What each process of an undisturbed run grows by."""
    rows = [row for entry in parts.values() for row in entry.get("memory", ())]
    if not rows:
        return []
    lines = [
        "## Memory", "",
        "Of each process of a run that nobody disturbs, with its share of what processes have in common; MB. Growth is",
        "a least-squares line through all that was measured after minute ten.", "",
        "| process | minute 10 | end | growth an hour |", "|---|---:|---:|---:|",
    ]  # fmt: skip
    for row in rows:
        lines.append(f"| {row['process']} | {row['first_mb']:.0f} | {row['last_mb']:.0f} | {row['mb_per_h']:+.1f} |")
    return [*lines, ""]


def covered(parts: dict[str, Any]) -> list[str]:
    """Which tests do what."""
    lines = ["## Tests", "", "| fault | tests | result |", "|---|---|---|"]
    for name, fault in FAULTS.items():
        entry = parts.get(f"{name} tests", {})
        if not fault.tests:
            continue
        names = ", ".join(f"`{one.partition('::')[2] or one}`" for one in fault.tests)
        result = "**failed**" if entry.get("failed") else entry.get("result", "by `tools/test.sh --all`").strip("= ")
        lines.append(f"| {name} {fault.title} | {names} | {result} |")
    return [*lines, ""]


def doors(entry: dict[str, Any]) -> list[str]:
    if not entry:
        return []
    if entry.get("failed"):
        return ["## Broken input", "", f"**failed**: {entry['failed'].splitlines()[0]}", ""]
    lines = [
        "## Broken input", "",
        f"At each door in one process, seed {entry['seed']}: no case raised another error than the door's own.", "",
        "| door | cases | refused | slowest case, ms | memory, MB |", "|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for row in entry["rows"]:
        numbers = f"{row['cases']:,} | {row['refused']:,} | {1e3 * row['slowest_s']:.1f} | +{row['grown_mb']:.1f}"
        lines.append(f"| {row['door']} | {numbers} |")
    return [*lines, ""]


def made(parts: dict[str, Any]) -> list[str]:
    """When, where, by which commands."""
    lines = ["## How it was measured", ""]
    seen = {}
    for entry in parts.values():
        about = entry["about"]
        seen[about["date"], about["machine"], about["commit"], about["command"]] = None
    return lines + [f"- {date}, {machine}, commit {commit}: `{command}`" for date, machine, commit, command in seen]


def cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
