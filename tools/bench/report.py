"""The table of tools/bench/train.py: medians over rounds, and ratios of rows in the same round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tools.common import number

Results = dict[str, Any]
"""{about, setup, rows: {name: entry}}; entry: of train.py's `new_entry`, and with `add_ratios` what it adds"""


def spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values), "rounds": len(values)}


def to_score(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds to the score: the median over all rounds, None if infinite, as a round that did not reach it is; how
    many rounds reached it, and of how many."""
    seconds = [one["seconds_to_score"] for one in entry["rounds"]] + [None] * len(entry["failures"])
    reached_in = [one for one in seconds if one is not None]
    middle = statistics.median([math.inf if one is None else one for one in seconds]) if seconds else math.inf
    return {"median": middle if math.isfinite(middle) else None, "reached": len(reached_in), "of": len(seconds)}


def add_ratios(results: Results) -> None:
    """Add to each row: `ratios`, each of the same rounds of two rows, and `to_score`."""
    rows = results["rows"]
    rates = {name: {one["round"]: one["env_steps_per_s"] for one in entry["rounds"]} for name, entry in rows.items()}

    def over(name: str, base: str) -> dict[str, float] | None:
        mine, others = rates[name], rates.get(base, {})
        return spread([mine[n] / others[n] for n in mine if n in others])

    for name, entry in rows.items():
        tau = over(name, "local") if entry["same"] and entry["kind"] == "cluster" else None
        entry["ratios"] = {"tau": tau, "of_plain": over(name, "plain"), "of_tuner": over(name, "tuner")}
        entry["to_score"] = to_score(entry)


def table(results: Results) -> str:
    """Markdown: a line for each row. results: with `add_ratios`."""
    lines = [
        "| | env steps/s | range | of the tuner's | of the plain loop | CPU s per 1000 | cores in use | peak MB (PSS) "
        "| s to score | tau |",
        "|---|" + "---:|" * 9,
    ]
    for name, entry in results["rows"].items():
        why = "; ".join(f"round {one['round']}: {one['why']}" for one in entry["failures"])
        why = " ".join(why.replace("|", "/").split())
        if not entry["rounds"]:
            lines.append(f"| {name}: {entry['says']} | {why or 'not run'} |" + " |" * 8)
            continue
        rates = [one["env_steps_per_s"] for one in entry["rounds"]]
        cores = [one["cpu_s_per_1000"] * one["env_steps_per_s"] / 1000 for one in entry["rounds"]]
        ratios = entry["ratios"]
        cells = [
            f"{name}: {entry['says']}" + (f" (failed in {why})" if why else ""),
            f"{statistics.median(rates):,.0f}",
            f"{min(rates):,.0f} - {max(rates):,.0f}" if len(rates) > 1 else "-",
            ratio_cell(ratios["of_tuner"]),
            ratio_cell(ratios["of_plain"]),
            f"{statistics.median(one['cpu_s_per_1000'] for one in entry['rounds']):.3f}",
            f"{statistics.median(cores):.1f}",
            f"{statistics.median(one['pss_mb'] for one in entry['rounds']):,.0f}",
            score_cell(entry["to_score"]) if results["setup"]["to_score"] else "-",
            ratio_cell(ratios["tau"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio_cell(ratio: Mapping[str, float] | None) -> str:
    """0.94 (0.91 - 0.97)"""
    if ratio is None:
        return "-"
    text = f"{ratio['median']:.2f}"
    return f"{text} ({ratio['least']:.2f} - {ratio['greatest']:.2f})" if ratio["rounds"] > 1 else text


def score_cell(score: Mapping[str, Any]) -> str:
    """312 (3 of 3 rounds)"""
    return f"{number(score['median'], ',.0f', 'not reached')} ({score['reached']} of {score['of']} rounds)"


def told(results: Results) -> str:
    """Table and caption, with the ratios worked out; these are in the results then."""
    add_ratios(results)
    about, setup = results["about"], results["setup"]
    text = (
        f"`{about['command']}`, {about['date']}, {about['machine']}, commit {about['commit']}; medians of "
        f"{setup['rounds']} rounds of {setup['seconds']:g} s, {setup['num_envs']} environments."
    )
    return f"{table(results)}\n\n{text}"
