"""A store gives back what was written or nothing, whatever happened to its files."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zstandard

from tests.xla_cache.small import cache, context, expected, result, scaled
from xla_cache import Store, build_programs, files, obtain, program_key
from xla_cache.errors import CacheError, CorruptError, RefusedError
from xla_cache.record import Seconds
from xla_cache.report import verify

KEY = program_key(scaled(3), context())
LOWERED = scaled(3).lower()
COMPILED = LOWERED.compile()
SECONDS = Seconds(0.1, 0.2, 0.3)


def everything(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A store with one program."""
    path = tmp_path_factory.mktemp("store") / "xla"
    obtain(scaled(3), cache(path))
    return path


@pytest.fixture
def store(written, tmp_path):
    """A copy of it to damage."""
    shutil.copytree(written, tmp_path / "xla")
    return tmp_path / "xla"


def test_a_second_process_would_load(store):
    compiled, record = obtain(scaled(3), cache(store))
    assert record.origin == "store"
    assert record.load_s > 0
    assert record.compile_s == record.trace_s == 0
    assert result(compiled) == expected(3)


def test_only_this_user_can_read_it(written):
    for path in (written, *written.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_byte_flipped_anywhere_is_never_loaded(store, caplog):
    rng = random.Random(0)
    pristine = {file: file.read_bytes() for file in everything(store)}
    assert len(pristine) == 2
    for _ in range(300):
        file = rng.choice(list(pristine))
        data = bytearray(pristine[file])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        opened = Store.open(store)
        with pytest.raises(CorruptError):
            opened.packed(opened.find(KEY))
        assert verify(opened)
        file.write_bytes(pristine[file])
    assert verify(Store.open(store)) == []


@pytest.mark.parametrize("suffix", [".json", ".zst"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove", "zeros", "directory"])
def test_damage_is_told_compiled_around_and_mended(store, suffix, damage, caplog):
    [file] = [file for file in everything(store) if file.suffix == suffix]
    data = file.read_bytes()
    file.unlink()
    match damage:
        case "flip":
            file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        case "truncate":
            file.write_bytes(data[: len(data) // 2])
        case "empty":
            file.touch()
        case "zeros":
            file.write_bytes(bytes(len(data)))
        case "directory":
            file.mkdir()
    compiled, record = obtain(scaled(3), cache(store))
    assert record.origin == "compiler"
    assert result(compiled) == expected(3)
    if not (damage == "remove" and suffix == ".json"):  # a record that is not there is no problem
        assert str(file) in caplog.text or "was changed or damaged" in caplog.text
        assert "compiled instead" in caplog.text
    if damage != "directory":
        assert obtain(scaled(3), cache(store))[1].origin == "store"


def test_the_record_of_another_program_in_its_place_is_refused(store):
    obtain(scaled(4), cache(store))
    first, second = (store / "records").iterdir()
    first.write_bytes(second.read_bytes())
    with pytest.raises(CorruptError, match="of another key"):
        Store.open(store).read_record(first)


def test_an_object_that_inflates_beyond_its_size_is_refused(store):
    opened = Store.open(store)
    [record] = opened.records()
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    swollen = dataclasses.replace(record, file=hashlib.sha256(bomb).hexdigest(), packed=len(bomb))
    opened.write(swollen, bomb)
    compiled, report = obtain(scaled(3), cache(store))
    assert report.origin == "compiler"
    assert result(compiled) == expected(3)


@pytest.mark.parametrize("place", [".", "records"])
def test_a_store_that_others_can_write_is_refused(store, place):
    (store / place).chmod(0o777)
    with pytest.raises(RefusedError, match=r"can be written by others \(mode 777\).*chmod go-w"):
        Store.open(store)


def test_so_is_one_below_a_directory_that_others_can_write(store):
    store.parent.chmod(0o777)
    with pytest.raises(RefusedError, match="written by others"):
        Store.open(store)
    store.parent.chmod(0o1777)  # as the system's temporary directory: what is there cannot be replaced
    Store.open(store)
    store.parent.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a directory of somebody else")
def test_so_is_one_of_another_user(store):
    os.chown(store, 12345, 12345)
    with pytest.raises(RefusedError, match="belongs to user 12345"):
        Store.open(store)


def test_a_place_that_cannot_be_written_is_warned_about_once(tmp_path, caplog):
    (tmp_path / "file").touch()
    kept = cache(tmp_path / "file" / "xla")
    for factor in (3, 4):
        compiled, record = obtain(scaled(factor), kept)
        assert record.origin == "compiler"
        assert result(compiled) == expected(factor)
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_store_is_read(store):
    for path in (store, *store.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    assert obtain(scaled(3), cache(store))[1].origin == "store"
    assert result(obtain(scaled(4), cache(store))[0]) == expected(4)


CALLS = ("mkdir", "open", "fdopen", "fsync", "replace")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_every_call_that_can_fail_fails_once(tmp_path, monkeypatch, code, caplog):
    """A full or read-only disk at any point of a write: the engine goes on, and what is on disk is whole."""
    failed = set()
    for name in CALLS:
        for nth in range(1, 20):
            path = tmp_path / f"{name}{nth}"
            count = 0
            original = getattr(os, name)

            def failing(*arguments, _original=original, _nth=nth, **options):
                nonlocal count
                count += 1
                if count == _nth:
                    raise OSError(code, os.strerror(code))
                return _original(*arguments, **options)

            kept = cache(path)
            with monkeypatch.context() as patch:
                patch.setattr(os, name, failing)
                record = kept.keep(scaled(3), LOWERED, COMPILED, SECONDS)
            if count < nth:
                break  # this call happens fewer times
            failed.add((name, nth))
            assert verify(Store.open(path)) == []
            if record is None:
                assert os.strerror(code) in caplog.text
            else:  # the last sync of the directory comes after the file is there
                assert obtain(scaled(3), cache(path))[1].origin == "store"
            assert kept.keep(scaled(3), LOWERED, COMPILED, SECONDS) is not None
            assert obtain(scaled(3), cache(path))[1].origin == "store"
            caplog.clear()
    assert {name for name, _ in failed} == set(CALLS)
    assert len(failed) >= 12


def test_a_write_that_stops_halfway_leaves_nothing_behind(tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *exc_info):
            self.file.close()

        def write(self, data):
            self.file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    original = os.fdopen
    monkeypatch.setattr(files.os, "fdopen", lambda *arguments: Full(original(*arguments)))
    assert cache(tmp_path / "xla").keep(scaled(3), LOWERED, COMPILED, SECONDS) is None
    assert everything(tmp_path) == []


def test_keeping_is_an_error_only_for_a_builder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="could not be kept"):
        build_programs([scaled(3)], cache(tmp_path / "file" / "xla"))


def test_processes_take_turns_and_one_that_is_killed_has_had_its_own(tmp_path):
    store = Store.open(tmp_path / "xla")
    code = (
        "import sys, time; from pathlib import Path; from xla_cache import Store\n"
        "with Store.open(Path(sys.argv[1])).turn(): print('mine', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, store.path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "mine\n"
        order = []

        def take():
            with store.turn():
                order.append("taken")

        waiting = threading.Thread(target=take)
        waiting.start()
        waiting.join(0.2)
        assert not order
        order.append("killed")
        other.kill()
    waiting.join(20)
    assert order == ["killed", "taken"]


def test_without_a_place_to_write_nobody_waits(tmp_path):
    (tmp_path / "xla").write_text("a file")
    store = Store(tmp_path / "xla")
    with store.turn(), store.turn():
        pass
