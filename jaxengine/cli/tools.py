"""`jaxengine convert` and `jaxengine doctor`."""

from __future__ import annotations

import argparse
from typing import Any

from jaxengine.options.config import DTYPES, LM_HEAD_DTYPES


def add_commands(commands: Any) -> None:
    """Declare the commands."""
    convert = commands.add_parser("convert", help="write a checkpoint in the engine's layout and dtype (Orbax)")
    convert.add_argument("source", help="checkpoint directory or hub id")
    convert.add_argument("output", help="directory to write; must not exist unless --force")
    convert.add_argument("--dtype", default="auto", choices=DTYPES)
    convert.add_argument("--quantization", help="as for serve: how matrices are stored, and then have to be loaded")
    convert.add_argument("--lm-head-dtype", default="auto", choices=LM_HEAD_DTYPES, help="the same for the head")
    convert.add_argument("--revision", help="hub branch, tag or commit")
    convert.add_argument("--force", action="store_true", help="replace an existing output")
    convert.set_defaults(run=run_convert)

    doctor = commands.add_parser("doctor", help="devices, memory, versions, cache directory, and what is missing")
    doctor.set_defaults(run=run_doctor)


def run_convert(namespace: argparse.Namespace) -> int:
    from jaxengine.startup.log import show_log
    from jaxengine.tools.convert import convert

    show_log()
    convert(
        namespace.source,
        namespace.output,
        dtype=namespace.dtype,
        quantization=namespace.quantization,
        lm_head_dtype=namespace.lm_head_dtype,
        revision=namespace.revision,
        force=namespace.force,
    )
    return 0


def run_doctor(namespace: argparse.Namespace) -> int:
    from jaxengine.tools.doctor import report

    for line in report():
        print(line)
    return 0
