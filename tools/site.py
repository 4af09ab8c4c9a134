"""What the site has besides docs/: pages made of files elsewhere, and links between all pages. A hook of mkdocs.yml."""

from __future__ import annotations

import importlib
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh/index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "LICENSE": "license.md",
    "docs/log": "log/index.md",
}
"""File of the repository -> page of the site, for those that are not in docs/."""
CONFIGURATION = "configuration.md"
TABLES = ("diy", "realm.zoo.cartpole", "realm.zoo.ppo", "realm.zoo.dqn", "realm.zoo.td3", "realm.zoo.sac")


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: add the pages."""
    from mkdocs.structure.files import File  # late: the rest of this module needs no mkdocs

    made = {page: (ROOT / source).read_text() for source, page in PAGES.items() if (ROOT / source).is_file()}
    logs = sorted(path.name for path in (ROOT / "docs/log").glob("*.md"))
    made["log/index.md"] = "# The log\n\n" + "".join(f"- [{name.removesuffix('.md')}]({name})\n" for name in logs)
    made[CONFIGURATION] = configuration()
    for page, content in made.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page: its links lead to files of the repository; make them lead to pages."""
    sources = {made: source for source, made in PAGES.items()}
    name = page.file.src_uri
    source = sources.get(name, f"docs/{name}")
    # the list of the log is made here, and its links are those of its own folder
    here = "docs/log" if source == "docs/log" else posixpath.dirname(source)

    def moved(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        if not target or ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(here, target))
        to = PAGES.get(path, path.removeprefix("docs/"))
        return f"]({posixpath.relpath(to, posixpath.dirname(name) or '.')}{'#' + anchor if anchor else ''})"

    return re.sub(r"\]\(([^)\s]+)\)", moved, markdown)


def configuration() -> str:
    """The reference of all keys, from where they are declared."""
    sys.path[:0] = [str(ROOT)]
    keys = importlib.import_module("realm.commands.configuration")
    text = (
        "# Configuration\n\nEvery key, made from the code that declares it. `realm config KEY` shows the same in a "
        "terminal, with the value that your file gives. `realm start --set KEY=VALUE` sets one for one run.\n"
        "\n## [app]: the framework\n\nThe same for every package.\n"
    )
    text += _table(keys.framework_keys(), "")
    for package in TABLES:
        table = package.rpartition(".")[2]
        text += f"\n## [{table}]: the package `{package}`\n\nIts hyper-parameters, of `{package}.config.Config`.\n"
        text += _table(keys.package_keys(package), f"{table}.")
    return text


def _table(keys: Any, prefix: str) -> str:
    lines = ["", "| key | default | meaning |", "|---|---|---|"]
    for key in keys:
        cells = (f"`{key.name.removeprefix(prefix)}`", f"`{key.default}`", key.in_full)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
