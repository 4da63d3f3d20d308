"""Shared by all tests: eight virtual CPU devices, and the project's real inputs where they are at hand."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.jax_users import loads_jax
from tests.rewriting import rewrite_share

FLAGS = [
    "--xla_force_host_platform_device_count=8",
    # Half the time of compilation, which is most of what tests do, for the same bits in slow code. CI's run under the newest
    # JAX sets XLA_FLAGS without them, and has the code that users have.
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
]
if version("jaxlib").startswith("0.10."):
    # As an engine's own programs are compiled (runtime/compiler_options.py): the same bits in less time. Later versions do not
    # know the first.
    FLAGS += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # test processes compile for TPUs side by side

# A worker shares the store of the process that started it.
if "JAXENGINE_TEST_CACHE" not in os.environ:
    os.environ["JAXENGINE_TEST_CACHE"] = tempfile.mkdtemp(prefix="jaxengine-tests-")
    atexit.register(shutil.rmtree, os.environ["JAXENGINE_TEST_CACHE"], ignore_errors=True)
# Never the user's own store. Engines that are alike load each other's programs, which makes the suite faster.
os.environ["JAXENGINE_CACHE_DIR"] = os.environ["JAXENGINE_TEST_CACHE"]

# How fast a machine makes inputs, beside other tests, says nothing of what is tested.
settings.register_profile("any speed", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

SHARED = Path(__file__).resolve().parents[2] / "shared"


# JAX's tracing makes many objects that live for a moment: to look through the young ones every 700 takes 3% of the time.
gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes, about a million objects, stays: the garbage collector looks at none of it, then or later."""
    gc.disable()
    try:
        rewrite_share()
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--share`, by which landings take turns in what is too much for each."""
    parser.addoption(
        "--share", metavar="I/N", help="only the tests of share I of N (from 0): the same ones wherever it is asked"
    )


def in_share(name: str, share: str) -> bool:
    """Whether a test belongs to share "I/N"; each belongs to one of N, whatever tests there are beside it."""
    index, _, count = share.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise pytest.UsageError(f"--share {share}: give I/N with 0 <= I < N, like 0/3")
    return zlib.crc32(name.encode()) % int(count) == int(index)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that a version of JAX can make a difference to, and the rare ones as slow; keep one share of them."""
    share = config.getoption("--share")
    if share:
        config.hook.pytest_deselected(items=[item for item in items if not in_share(item.nodeid, share)])
        items[:] = [item for item in items if in_share(item.nodeid, share)]
    if "jax" in config.option.markexpr:  # to read what a thousand files import takes seconds
        users = {path: loads_jax(path) for path in {item.path for item in items}}
        for item in items:
            if users[item.path]:
                item.add_marker("jax")
    for item in items:
        if item.get_closest_marker("rare"):
            item.add_marker("slow")


@pytest.fixture(scope="module")
def quick_engines() -> Iterator[None]:
    """For modules whose subject is how engines start and what they keep, not the code of their programs."""
    from tests.quick import quick_programs  # which loads JAX

    with quick_programs():
        yield


@pytest.fixture(scope="module")
def any_size() -> Iterator[None]:
    """Models of any size call the CPU's own library."""
    from jaxengine.startup import native

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "MIN_WEIGHT_BYTES", 0)
        yield


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """What a test does to the log's level and handlers, as commands do that show it, ends with the test."""
    logger = logging.getLogger("jaxengine")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers = before[1:]


@pytest.fixture(scope="session")
def native() -> str:
    """The registered library of C++ for the CPU, by its name: built once for all tests."""
    from jaxengine.startup.native import register_native
    from jaxengine.startup.native_libraries import native_directory
    from xla_cache.library import NoCompilerError

    try:
        name, _ = register_native(native_directory())
    except NoCompilerError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real inputs beside a developer's checkout; a user's checkout has none and the test is skipped."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs the project's ../shared/data, which is not part of the repository")
    return SHARED / "data"
