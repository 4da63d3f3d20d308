"""The pages beside the examples, and README: links lead somewhere, what is shown is understood, what is drawn is current."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from examples.pictures import PICTURES, pictures
from tests.documents.understanding import refusal, stand_in

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "examples" / "docs").glob("*.md")])
OURS = ("jaxengine", "python -m jaxengine.serve")


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of code in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The lines of its shell blocks that start the engine, without comments."""
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in re.sub(r"\s#.*", "", line).split("&&")]
    return [part for part in parts if part.startswith(OURS)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_linked_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    named = re.findall(r"(?<![\w/])((?:examples|benchmarks|tests|jaxengine)/[\w./-]+)", page.read_text())
    missing += [name for name in named if not (ROOT / name.rstrip("./")).exists()]
    modules = re.findall(r"python -m ((?:examples|benchmarks)[\w.]+)", page.read_text())
    missing += [
        name for name in modules if not any((ROOT / name.replace(".", "/")).parent.glob(f"{name.split('.')[-1]}*"))
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_to_be_typed_is_understood(page: Path) -> None:
    assert {line: refusal(line) for line in commands(page)} == dict.fromkeys(commands(page), "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_to_be_written_is_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxengine", stand_in())
    for block in blocks(page, "python"):
        exec(block, {})


def test_the_pages_show_something() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 12
    assert sum(len(blocks(page, "python")) for page in PAGES) > 3


def test_options_that_are_named_in_the_text_are_there() -> None:
    """Flags in running text and tables, which no command line holds."""
    known = set(re.findall(r"`(\w+)`", (ROOT / "examples" / "docs" / "options.md").read_text()))
    others = {
        "privileged",
        "net",
        "gpus",
        "time",
        "target",
        "build_arg",
        "force",
        "help",
        "html",
        "output_json",
        "quick",
        "resume",
    }
    for page in PAGES:
        if page.name not in ("README.md", "options.md", "models.md"):
            flags = {
                flag.removeprefix("no-").replace("-", "_")
                for flag in re.findall(r"`--([a-z][a-z-]+)", page.read_text())
            }
            assert flags <= known | others, page.name


def test_the_pictures_are_what_the_planner_says() -> None:
    for name, drawn in pictures().items():
        assert (PICTURES / name).read_text() == drawn, "draw them again: python -m examples.pictures"


def test_readme_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\((examples/docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert linked == {f"examples/docs/{page.name}" for page in PAGES if page.name != "README.md"}
