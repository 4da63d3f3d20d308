"""What `--lora-modules` may be."""

from __future__ import annotations

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.flags import Parser, add_options, given_options
from jaxengine.server.adapters.options import AdaptersConfig, LoraModule
from jaxengine.server.options import ServerConfig, read_options


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        (["sql=/adapters/sql"], (LoraModule("sql", "/adapters/sql"),)),
        (["a=x=1", "b=y"], (LoraModule("a", "x=1"), LoraModule("b", "y"))),
        (
            ['{"name": "sql", "path": "p", "base_model_name": "llama"}', "b=y"],
            (LoraModule("sql", "p", "llama"), LoraModule("b", "y")),
        ),
        (['[{"name": "sql", "path": "p", "base_model_name": null}]'], (LoraModule("sql", "p"),)),
    ],
)
def test_modules_are_written_as_vllms_users_write_them(words: list[str], modules: tuple[LoraModule, ...]) -> None:
    parser = Parser()
    add_options(parser, ServerConfig)
    given = given_options(parser.parse_args(["--lora-modules", *words]), ServerConfig)
    _, options = read_options({"model": "m", "enable_lora": True, **given})
    assert options.adapters.modules == modules


def test_modules_may_be_mappings() -> None:
    assert AdaptersConfig(lora_modules=({"name": "a", "path": "p"},)).modules == (LoraModule("a", "p"),)


@pytest.mark.parametrize(
    "options",
    [
        {"lora_modules": ("a=b",)},
        {"default_mm_loras": {"image": "p"}},
        {"allow_runtime_lora_updating": True},
        {"lora_resolver_cache_dir": "d"},
    ],
)
def test_adapters_need_room_for_them(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} needs enable_lora"):
        read_options({"model": "m", **options})
