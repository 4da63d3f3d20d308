"""A bundle is whole, for this model, target and versions, and from somebody who is trusted, or it is not used."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.xla_cache.small import cache, context, expected, result, scaled
from xla_cache import Bundle, ProgramCache, Store, build_programs, obtain, require_same, write_bundle
from xla_cache.bundle import MANIFEST, Manifest, sign_bundle
from xla_cache.errors import CacheError, CorruptError, RefusedError
from xla_cache.sealed import seal, unseal

DESCRIPTION = {"model": "tiny", "options": {}, "pool": {}}
FACTORS = (3, 4)


def write(path: Path, source: Path) -> Path:
    kept = cache(source)
    records = [record.kept for record in build_programs([scaled(factor) for factor in FACTORS], kept)]
    write_bundle(path, kept.store, records, context=kept.context, description=DESCRIPTION)
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A bundle as a directory and as a file."""
    place = tmp_path_factory.mktemp("bundle")
    return {name: write(place / name, place / "store") for name in ("tiny", "tiny.zip")}


@pytest.fixture(params=["tiny", "tiny.zip"])
def bundle(built, request, tmp_path):
    """A copy of it to damage."""
    copy = tmp_path / request.param
    (shutil.copytree if built[request.param].is_dir() else shutil.copy)(built[request.param], copy)
    return copy


def required(path: Path) -> ProgramCache:
    return ProgramCache(context(), bundle=Bundle.open(path), require_bundle=True)


def test_its_programs_load_and_run(bundle):
    for factor in FACTORS:
        compiled, record = obtain(scaled(factor), required(bundle))
        assert record.origin == "bundle"
        assert result(compiled) == expected(factor)


def test_it_says_what_it_is_for(bundle):
    manifest = Bundle.open(bundle).manifest
    assert manifest.description == DESCRIPTION
    assert manifest.context == context()
    assert [record.program for record in manifest.records] == ["scale 3", "scale 4"]


def test_two_builds_of_one_store_are_the_same_bytes(built, tmp_path):
    kept = Store.open(built["tiny"].parent / "store")
    records = list(kept.records())
    for name in ("tiny", "tiny.zip"):
        records.reverse()
        write_bundle(tmp_path / name, kept, records, context=context(), description=DESCRIPTION)
        one, other = (path / MANIFEST if path.is_dir() else path for path in (built[name], tmp_path / name))
        assert one.read_bytes() == other.read_bytes()


def test_a_build_in_place_is_closed_by_its_manifest(tmp_path):
    path = write(tmp_path / "built", tmp_path / "built")
    assert obtain(scaled(3), required(path))[1].origin == "bundle"
    assert {record.origin for record in build_programs([scaled(3)], cache(path))} == {"store"}


def test_a_byte_flipped_anywhere_is_never_loaded(bundle):
    rng = random.Random(0)
    files = [bundle] if bundle.is_file() else sorted(file for file in bundle.rglob("*") if file.is_file())
    wanted = {record.program: (record, Bundle.open(bundle).packed(record)) for record in Bundle.open(bundle).records()}
    noticed = 0
    for _ in range(300):
        file = rng.choice(files)
        pristine = file.read_bytes()
        data = bytearray(pristine)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        try:
            opened = Bundle.open(bundle)
            assert {record.program: (record, opened.packed(record)) for record in opened.records()} == wanted
        except CorruptError:
            noticed += 1
        file.write_bytes(pristine)
    assert noticed == 300 if bundle.is_dir() else noticed > 270  # a zip has bytes that say nothing, such as dates


def test_truncated_anywhere_it_is_refused(bundle):
    file = bundle if bundle.is_file() else bundle / MANIFEST
    pristine = file.read_bytes()
    for length in random.Random(0).sample(range(len(pristine)), 50):
        file.write_bytes(pristine[:length])
        with pytest.raises(CorruptError):
            Bundle.open(bundle)


def test_a_missing_executable_is_told(built, tmp_path):
    shutil.copytree(built["tiny"], tmp_path / "tiny")
    record = next(Bundle.open(tmp_path / "tiny").records())
    (tmp_path / "tiny" / "objects" / f"{record.file}.zst").unlink()
    with pytest.raises(RefusedError, match=f"has no objects/{record.file}"):
        obtain(scaled(3), required(tmp_path / "tiny"))
    preferred = ProgramCache(context(), bundle=Bundle.open(tmp_path / "tiny"))
    compiled, report = obtain(scaled(3), preferred)
    assert report.origin == "compiler"
    assert result(compiled) == expected(3)


def test_a_program_it_does_not_have_is_told(bundle):
    assert required(bundle).expect([scaled(3), scaled(5)]) == ["scale 5"]
    with pytest.raises(RefusedError, match="no program 'scale 5'"):
        obtain(scaled(5), required(bundle))


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("versions_jaxlib", "9.9", r"versions.jaxlib: 9.9 here, [\d.]+ there"),
        ("versions_libtpu", "0.1", "versions.libtpu: 0.1 here, nothing there"),
        ("target_device_kind", "TPU v6 lite", "target.device_kind: TPU v6 lite here, cpu there"),
        ("model_width", "8", "model.width: 8 here, 4 there"),
        ("flags_XLA_FLAGS", "--other", "flags.XLA_FLAGS: --other here, "),
    ],
)
def test_one_for_something_else_is_refused_with_both_values_and_the_command(bundle, change, value, message):
    with pytest.raises(RefusedError, match=message) as refused:
        require_same(Bundle.open(bundle), context(**{change: value}), command="jaxengine compile tiny")
    assert str(refused.value).endswith("Rebuild it: jaxengine compile tiny")


def test_other_source_code_is_no_reason_to_refuse(bundle):
    require_same(Bundle.open(bundle), context(source_code="b"), command="")
    changed = ProgramCache(context(source_code="b"), bundle=Bundle.open(bundle), require_bundle=True)
    assert changed.expect([scaled(3)]) == []
    compiled, record = obtain(scaled(3), changed)
    assert record.origin == "bundle"
    assert result(compiled) == expected(3)


def test_json_that_nobody_wrote_is_refused():
    for text in (b"[" * 100_000, b"{", b'{"schema": ' + b"1" * 5000 + b"}"):
        head = b'{"sha256": "' + hashlib.sha256(text).hexdigest().encode() + b'", "body": '
        with pytest.raises(CorruptError, match="does not hold JSON"):
            Manifest.from_bytes(head + text + b"}\n", name="x")


@pytest.mark.parametrize("body", [{}, {"schema": 1}, {"schema": 2}, {"schema": 2, "programs": []}])
def test_other_schemas_are_refused(body):
    with pytest.raises(CorruptError, match=r"schema|fields"):
        Manifest.from_bytes(seal(body), name="x")


@pytest.mark.parametrize(
    "change",
    [
        {"size": "4"},
        {"size": -1},
        {"size": True},
        {"size": 2**64},
        {"created": 1e30},
        {"file": "../../../etc/passwd"},
        {"file": "x" * 64},
        {"parts": {"program": 3}},
        {"parts": {}},
        {"memory": {"temp": 1}},
        {"code": "import os"},
        {"created": None},
    ],
)
def test_records_of_another_shape_are_refused(built, change):
    body = unseal((built["tiny"] / MANIFEST).read_bytes(), name="x")
    body["programs"][0] |= change
    with pytest.raises(CorruptError, match="program 0"):
        Manifest.from_bytes(seal(body), name="x")


def test_one_that_others_can_write_is_refused_unless_signed(bundle, keys):
    private, public = keys
    sign_bundle(bundle, private)
    bundle.chmod(0o777)
    with pytest.raises(RefusedError, match="can be written by others"):
        Bundle.open(bundle)
    assert Bundle.open(bundle, public_key=public).manifest.description == DESCRIPTION


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A private and a public key in PEM."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    place, key = tmp_path_factory.mktemp("keys"), Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (place / "private.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (place / "public.pem").write_bytes(public)
    other = Ed25519PrivateKey.generate().public_key()
    (place / "other.pem").write_bytes(other.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return place / "private.pem", place / "public.pem"


def test_a_signed_one_is_what_was_signed(bundle, keys):
    private, public = keys
    with pytest.raises(RefusedError, match="is not signed"):
        Bundle.open(bundle, public_key=public)
    sign_bundle(bundle, private)
    Bundle.open(bundle)  # a signature is no hindrance where none is asked for
    assert (
        obtain(scaled(3), ProgramCache(context(), bundle=Bundle.open(bundle, public_key=public)))[1].origin == "bundle"
    )
    with pytest.raises(RefusedError, match="not of this manifest"):
        Bundle.open(bundle, public_key=public.with_name("other.pem"))
    with pytest.raises(CacheError, match=r"public key .* cannot be read"):
        Bundle.open(bundle, public_key=private)


def test_a_manifest_that_was_changed_after_signing_is_refused(built, keys, tmp_path):
    private, public = keys
    shutil.copytree(built["tiny"], tmp_path / "tiny")
    sign_bundle(tmp_path / "tiny", private)
    manifest = Bundle.open(tmp_path / "tiny").manifest
    forged = dataclasses.replace(manifest, description={**DESCRIPTION, "model": "other"})
    (tmp_path / "tiny" / MANIFEST).write_bytes(forged.to_bytes())
    assert Bundle.open(tmp_path / "tiny").manifest.description["model"] == "other"
    with pytest.raises(RefusedError, match="not of this manifest"):
        Bundle.open(tmp_path / "tiny", public_key=public)


def test_without_the_cryptography_package_a_key_is_an_error(bundle, keys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(CacheError, match=r"pip install 'jaxengine\[sign\]'"):
        Bundle.open(bundle, public_key=keys[1])


def test_a_zip_that_is_a_bomb_or_escapes_is_refused(built, tmp_path):
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, bytes(1 << 27))
    with pytest.raises(CorruptError, match="at most"):
        Bundle.open(bomb)
    with zipfile.ZipFile(built["tiny.zip"]) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "extra.zip", "w") as archive:
        for name, data in {**members, "../../escaped": b"x"}.items():
            archive.writestr(name, data)
    assert len(Bundle.open(tmp_path / "extra.zip").verify()) == 0
    assert not list(tmp_path.parent.parent.glob("escaped"))


def test_there_is_none(tmp_path):
    with pytest.raises(CorruptError, match="there is no bundle"):
        Bundle.open(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorruptError, match=f"has no {MANIFEST}"):
        Bundle.open(tmp_path / "empty")
    os.truncate(tmp_path / "none.zip", 0) if (tmp_path / "none.zip").exists() else (tmp_path / "none.zip").touch()
    with pytest.raises(CorruptError, match="cannot be read"):
        Bundle.open(tmp_path / "none.zip")
