"""C++ that is built once, kept, and verified before it is loaded."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from xla_cache import CacheError, RefusedError
from xla_cache.library import Library, NoCompilerError, Recipe, find_compiler, obtain_library

try:
    find_compiler()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)


def write_source(directory: Path, number: int = 7) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "number.h").write_text(f"#define NUMBER {number}\n")
    source = directory / "number.cc"
    source.write_text('#include "number.h"\nextern "C" int number() { return NUMBER; }\n')
    return source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


def obtained(source: Path, place: Path) -> Library:
    return obtain_library(source, place, Recipe.of(source.parent))


def test_it_is_built_once_and_under_the_digest_of_its_bytes(source, tmp_path):
    place = tmp_path / "place" / "native"
    first, second = (obtained(source, place) for _ in range(2))
    assert (first.built, second.built) == (True, False)
    assert second.symbols.number() == 7
    (library,) = place.glob("*.so")
    assert hashlib.sha256(library.read_bytes()).hexdigest() == library.stem
    assert [path.stem for path in place.glob("*.json")] == [f"{Recipe.of(source.parent).identity}-number"]
    assert place.stat().st_mode & 0o077 == 0


def test_of_many_that_start_together_one_builds(source, tmp_path):
    recipe = Recipe.of(source.parent)
    with ThreadPoolExecutor(4) as threads:  # a lock is of an open file, so threads wait as processes do
        found = list(threads.map(lambda _: obtain_library(source, tmp_path / "native", recipe), range(4)))
    assert sorted(library.built for library in found) == [False, False, False, True]


def test_what_it_is_made_of_is_its_identity(source, tmp_path, monkeypatch):
    place, first = tmp_path / "native", Recipe.of(source.parent).identity
    before = obtained(source, place)
    (source.parent / "note.py").write_text("# no part of it\n")
    assert Recipe.of(source.parent).identity == first
    write_source(source.parent, number=8)
    changed = obtained(source, place)
    assert (changed.built, changed.symbols.number(), before.symbols.number()) == (True, 8, 7)
    monkeypatch.setenv("CXXFLAGS", "-DOTHER")
    assert Recipe.of(source.parent).identity != first


def test_what_it_may_use_of_a_machine_is_its_identity(source, tmp_path, monkeypatch):
    predefined = find_compiler().predefined
    assert find_compiler().predefined == predefined
    monkeypatch.setenv("CXXFLAGS", "-fno-exceptions")
    assert find_compiler().predefined != predefined


@pytest.mark.parametrize("what", ["*.so", "*.json"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_what_is_damaged_is_not_loaded_but_built_again(source, tmp_path, what, damage):
    place = tmp_path / "native"
    obtained(source, place)
    (file,) = place.glob(what)
    whole = file.read_bytes()
    file.unlink()  # a library that is loaded must not change under its process
    if damage == "changed":
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    again = obtained(source, place)
    assert (again.built, again.symbols.number()) == (True, 7)
    assert hashlib.sha256(next(place.glob("*.so")).read_bytes()).hexdigest() == next(place.glob("*.so")).stem


def test_a_place_that_others_can_write_is_refused(source, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(RefusedError, match="can be written by others"):
        obtained(source, tmp_path / "open")
    assert not list((tmp_path / "open").iterdir())


def test_a_place_that_cannot_be_written_and_a_source_that_does_not_build(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="cannot be written"):
        obtained(source, tmp_path / "file" / "native")
    source.write_text("#error not today\n")
    with pytest.raises(CacheError, match="not today"):
        obtained(source, tmp_path / "native")


def test_without_a_compiler_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        NoCompilerError, match=r"none of c\+\+, g\+\+, clang\+\+ is in PATH; install one .*apt install g\+\+"
    ):
        find_compiler()
    monkeypatch.setenv("CXX", "other-c++")
    with pytest.raises(NoCompilerError, match=r"CXX names 'other-c\+\+', which is not there"):
        find_compiler()
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(NoCompilerError, match="false does not run"):
        find_compiler()
