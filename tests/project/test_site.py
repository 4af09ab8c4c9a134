"""The site of docs/: all pages are in it, the reference has every key, and it builds without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest

from realm.config.load import HINTS
from tests.cluster import ROOT

DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)) for path in [*DOCS.glob("*.md"), *DOCS.glob("zh/*.md")]}


@pytest.fixture(scope="module")
def site() -> ModuleType:
    place = importlib.util.spec_from_file_location("site_of_docs", ROOT / "tools/site.py")
    assert place
    assert place.loader
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_every_page_is_in_the_menu(site: ModuleType) -> None:
    menu = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    made = {*site.PAGES.values(), site.CONFIGURATION}
    assert len(menu) == len(set(menu))
    assert set(menu) - made == PAGES
    assert {"index.md", "zh/index.md", "configuration.md"} <= set(menu)


def test_the_reference_has_every_key(site: ModuleType) -> None:
    text = site.configuration()
    app = text.partition("\n## [diy]")[0]
    assert re.findall(r"^\| `(\w+)` \|", app, re.MULTILINE) == list(HINTS)
    assert "| `lr_start` | `0.002` |" in text
    assert [row for row in text.splitlines() if row.startswith("|") and len(re.findall(r"(?<!\\)\|", row)) != 4] == []


PAGES_IN_CHINESE = ("concepts", "runs", "your-own", "from-kaiwu", "game", "machines", "recipes", "first-change")


@pytest.mark.parametrize("name", PAGES_IN_CHINESE)
def test_a_chinese_page_has_the_structure_of_the_english_one(name: str) -> None:
    def structure(text: str) -> list[str]:
        return re.findall(r"^(#+ |!\[|\||- |\d\. )", text, re.MULTILINE)

    assert structure((DOCS / f"zh/{name}.md").read_text()) == structure((DOCS / f"{name}.md").read_text())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs the extra [docs]: mkdocs-material")
def test_the_site_builds_without_a_warning(tmp_path: os.PathLike[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = (ROOT / tmp_path / "index.html").read_text()
    assert 'src="cluster.svg"' in built
    assert 'href="game.html"' in built
    assert not re.search(r'(src|href)="https?://fonts', built)
