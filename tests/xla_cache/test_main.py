"""`python -m xla_cache` tells what is there and what is wrong, in a few lines."""

from __future__ import annotations

import shutil
import time

import pytest

from tests.xla_cache.small import cache, scaled
from xla_cache import build_programs, obtain, write_bundle
from xla_cache.__main__ import main
from xla_cache.starts import ProgramReport, StartRecord, write_start


@pytest.fixture
def store(tmp_path):
    kept = cache(tmp_path / "store")
    kept.expect([scaled(3)])
    _, record = obtain(scaled(3), kept)
    report = ProgramReport(
        "scale 3", record.origin, record.trace_s, record.lower_s, record.compile_s, record.load_s, record.missed
    )
    keys = {name: key.digest for name, key in kept.keys.items()}
    write_start(kept.store, StartRecord({"model": "tiny"}, kept.context, keys, [report], time.time()))
    return tmp_path / "store"


@pytest.fixture
def bundle(tmp_path):
    return close(tmp_path / "bundle", (3, 4))


def close(path, factors, **changes):
    kept = cache(path, **changes)
    records = [record.kept for record in build_programs([scaled(factor) for factor in factors], kept)]
    write_bundle(
        path, kept.store, records, context=kept.context, description={"model": "tiny", "grid": ["4x16", "4x1"]}
    )
    return path


def test_show_a_store_with_its_starts(store, capsys):
    assert main(["show", str(store)]) == 0
    out = capsys.readouterr().out
    assert "1 programs, 1 executables" in out
    assert "of tiny" in out
    assert "miss" in out
    assert "nothing is kept yet" in out
    assert "compile s" in out


def test_show_a_bundle(bundle, capsys):
    assert main(["show", str(bundle)]) == 0
    out = capsys.readouterr().out
    assert "4x16, 4x1" in out
    assert "versions.jaxlib" in out
    assert "scale 4" in out
    assert "2 programs, 2 executables" in out


def test_verify(bundle, capsys):
    assert main(["verify", str(bundle)]) == 0
    assert "2 programs, all whole" in capsys.readouterr().out
    next((bundle / "objects").iterdir()).write_bytes(b"")
    assert main(["verify", str(bundle)]) == 1
    assert "changed or damaged" in capsys.readouterr().out


def test_diff(bundle, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    assert main(["diff", str(bundle), str(copy)]) == 0
    assert "no difference" in capsys.readouterr().out
    other = close(tmp_path / "other", (4, 5), versions_jaxlib="0.0.1")
    assert main(["diff", str(bundle), str(other)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("versions.jaxlib: ") and line.endswith(" -> 0.0.1") for line in lines)
    assert {"- scale 3", "+ scale 5"} <= set(lines)


def test_prune(store, capsys):
    assert main(["prune", str(store), "--max-size", "1K"]) == 0
    assert "removed 1 programs" in capsys.readouterr().out
    assert main(["prune", str(store)]) == 1
    assert "--older-than" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["prune", str(store), "--older-than", "soon"])
    assert "'soon' is not a number" in capsys.readouterr().err


def test_targets_are_listed(capsys):
    assert main(["targets"]) == 0
    out = capsys.readouterr().out
    assert "v6e-8" in out
    assert "h200" in out


def test_a_place_that_is_none_is_told(tmp_path, capsys):
    assert main(["show", str(tmp_path)]) == 1
    assert "is no store of compiled programs and no bundle" in capsys.readouterr().err


def test_sign_and_check(bundle, tmp_path, capsys):
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    assert main(["verify", str(bundle), "--key", str(tmp_path / "public.pem")]) == 1
    assert "is not signed" in capsys.readouterr().err
    assert main(["sign", str(bundle), "--key", str(tmp_path / "key.pem")]) == 0
    assert main(["verify", str(bundle), "--key", str(tmp_path / "public.pem")]) == 0
