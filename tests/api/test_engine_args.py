"""`EngineArgs` behind a command line of somebody's own, as vLLM's examples use it."""

from __future__ import annotations

import argparse

import pytest

from jaxengine import AsyncEngineArgs, EngineArgs
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig


def own_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(epilog="mine")
    parser.add_argument("--question", default="why?")
    assert EngineArgs.add_cli_args(parser) is parser
    parser.set_defaults(model="acme/tiny")
    return parser


def test_options_are_read_beside_others() -> None:
    parser = own_parser()
    args = parser.parse_args(
        ["-tp", "2", "--gpu-memory-utilization", "0.5", "--swap-space", "4", "--rope-theta", "1e4"]
    )
    assert (args.question, args.model, args.seed, args.enable_prefix_caching, args.enable_eplb) == (
        "why?",
        "acme/tiny",
        0,
        True,
        None,
    )
    engine_args = AsyncEngineArgs.from_cli_args(args)
    assert type(engine_args) is AsyncEngineArgs
    meant = EngineConfig.from_options(
        model="acme/tiny",
        tensor_parallel_size=2,
        memory_utilization=0.5,
        kv_offloading_size=4,
        hf_overrides={"rope_theta": 1e4},
    )
    assert engine_args.create_engine_config() == meant
    assert parser.epilog == "mine"


def test_an_option_of_several_words_is_added_to_none() -> None:
    args = own_parser().parse_args(["--bucket-planner", "explicit", "--buckets", "4x1", "1x16"])
    assert EngineArgs.from_cli_args(args).create_engine_config().compilation.buckets == ("4x1", "1x16")


def test_what_is_not_given_has_its_default() -> None:
    args = own_parser().parse_args([])
    assert EngineArgs.from_cli_args(args).create_engine_config() == EngineConfig.from_options(model="acme/tiny")


def test_what_is_not_built_is_refused() -> None:
    with pytest.raises(ConfigError, match="enable_eplb=True is refused"):
        EngineArgs.from_cli_args(own_parser().parse_args(["--enable-eplb"]))
