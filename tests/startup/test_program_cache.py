"""Where programs are looked up, and what is said when a place cannot be used."""

from __future__ import annotations

from pathlib import Path

from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import plan_model
from jaxengine.startup.program_cache import open_cache
from tests.integration.engines import SMALL, write_config
from xla_cache import Store


def store_of(tmp_path: Path, **options: object) -> Store | None:
    chosen = EngineConfig.from_options(**{**SMALL, "model": str(write_config(tmp_path / "model")), **options})
    cache, _ = open_cache(chosen, plan_model(chosen), None)
    return cache.store


def test_the_store_is_where_it_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "environment"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store_of(tmp_path, xla_cache_path=str(tmp_path / "given")).path == tmp_path / "given"
    assert store_of(tmp_path).path == tmp_path / "environment" / "xla"
    monkeypatch.delenv("JAXENGINE_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    assert store_of(tmp_path).path == tmp_path / "xdg" / "jaxengine" / "xla"
    assert store_of(tmp_path, xla_cache_path="off") is None
    assert not (tmp_path / "environment").exists()


def test_a_store_that_others_can_write_is_left_alone(tmp_path, caplog):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert store_of(tmp_path, xla_cache_path=str(tmp_path / "open")) is None
    assert "can be written by others" in caplog.text
    assert "not kept" in caplog.text
