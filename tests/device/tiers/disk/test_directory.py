import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxengine.device.tiers.disk.directory import SECRET_BYTES, BlockDirectory
from jaxengine.errors import ConfigError
from tests.device.tiers.blocks import key_of


def write(directory, number, data=b"data"):
    descriptor, aside = directory.open_aside()
    os.write(descriptor, data)
    os.close(descriptor)
    directory.keep(aside, directory.path(key_of(number)))


def test_nobody_else_may_look(tmp_path):
    directory = BlockDirectory.open(tmp_path / "made" / "of two")
    write(directory, 0)
    seen = {path.stat().st_mode & 0o777 for path in [directory.root, *directory.root.rglob("*")] if path.is_dir()}
    assert seen == {0o700}
    assert {path.stat().st_mode & 0o777 for path in directory.root.rglob("*") if path.is_file()} == {0o600}


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_engines_that_start_together_have_one_secret(tmp_path, monkeypatch, links):
    def no_link(*args):
        raise OSError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    with ThreadPoolExecutor(16) as threads:
        opened = list(threads.map(lambda number: BlockDirectory.open(tmp_path), range(16)))
    assert {len(directory.secret) for directory in opened} == {SECRET_BYTES}
    assert len({directory.secret for directory in opened}) == 1
    assert os.listdir(opened[0].root) == ["secret"]


def test_a_path_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="not a directory"):
            BlockDirectory.open(path)


def test_a_directory_that_others_may_enter_is_refused(tmp_path):
    root = BlockDirectory.open(tmp_path).root
    root.chmod(0o770)
    with pytest.raises(ConfigError, match="0770"):
        BlockDirectory.open(tmp_path)


def test_a_secret_that_is_cut_short_is_an_error_and_not_a_key(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxengine.device.tiers.disk.directory.SECRET_WAIT_S", 0.0)
    root = BlockDirectory.open(tmp_path).root
    (root / "secret").write_bytes(b"short")
    with pytest.raises(OSError, match="5 bytes and not 32"):
        BlockDirectory.open(tmp_path)


def test_only_keys_become_paths(tmp_path):
    directory = BlockDirectory.open(tmp_path)
    for key in (b"", b"../../../etc/passwd", bytes(33)):
        with pytest.raises(ValueError, match="32 bytes"):
            directory.path(key)
    assert directory.path(b"/" * 32) == str(directory.root / "2f" / "2" / ("2f" * 32))


def test_foreign_files_are_no_blocks(tmp_path):
    directory = BlockDirectory.open(tmp_path)
    write(directory, 0)
    leaf = os.path.dirname(directory.path(key_of(0)))
    for name in ("README", "x" * 64, "a" * 63):
        with open(f"{leaf}/{name}", "w"):
            pass
    (directory.root / "zz").write_text("")
    assert [file.path for file in directory.files()] == [directory.path(key_of(0))]


def test_what_a_dead_writer_left_is_cleared_and_what_is_written_stays(tmp_path):
    directory = BlockDirectory.open(tmp_path)
    paths = []
    for _ in range(2):
        descriptor, path = directory.open_aside()
        os.close(descriptor)
        paths.append(path)
    os.utime(paths[0], (0, 0))
    assert directory.clear_aside(600.0) == 1
    assert [path for path in paths if os.path.exists(path)] == paths[1:]
