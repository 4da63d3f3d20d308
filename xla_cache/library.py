"""C++ that programs call, built once with the compiler of this machine and kept as programs are.

    <identity>-<source>.json   sealed JSON: the digest of the library that was built of exactly this
    <identity>-<source>.lock   empty: held by the process that builds it, while others wait
    <sha256>.so                the library, under the digest of its bytes

Each source of a folder becomes a library, for the instructions of the machine that it is built on. The identity covers the
folder, the flags, the headers and what the compiler predefines with these flags: its version, and those instructions. A library
is in place before a record names it, both are written whole, and its digest is checked before it is loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax

from xla_cache.errors import CacheError, CorruptError
from xla_cache.files import write_whole
from xla_cache.location import check_trusted
from xla_cache.sealed import seal, unseal
from xla_cache.turns import turn

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread", "-w")
"""CXXFLAGS come behind them."""
GET_A_COMPILER = "install one (Debian: apt install g++; Fedora: dnf install gcc-c++; conda: gxx) or name it in CXX"
BUILD_SECONDS = 600


class NoCompilerError(CacheError):
    """This machine has no C++ compiler. The message says how to get one."""


@dataclass(frozen=True)
class Compiler:
    """The words of its command, its version, what it predefines, as a digest, and the names of that."""

    command: tuple[str, ...]
    version: str
    predefined: str
    macros: frozenset[str]


def find_compiler() -> Compiler:
    """The C++ compiler of this machine: CXX where it is set, else the first of `COMPILERS` in PATH.

    Raises:
        NoCompilerError: there is none, or it does not run.
    """
    given = os.environ.get("CXX")
    commands = [shlex.split(given)] if given else [[name] for name in COMPILERS]
    found = next((command for command in commands if command and shutil.which(command[0])), None)
    if found is None:
        what = f"CXX names {given!r}, which is not there" if given else f"none of {', '.join(COMPILERS)} is in PATH"
        raise NoCompilerError(f"no C++ compiler: {what}; {GET_A_COMPILER}")
    command = (*found, *FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")))
    try:
        predefined = _output(*command, "-dM", "-E", "-x", "c++", os.devnull)
        version = _output(*found, "--version").splitlines()[0]
    except (OSError, IndexError, subprocess.SubprocessError) as error:
        raise NoCompilerError(f"the C++ compiler {shlex.join(found)} does not run: {error}; {GET_A_COMPILER}") from None
    macros = frozenset(line.split()[1] for line in predefined.splitlines() if line.startswith("#define "))
    return Compiler(command, version, hashlib.sha256(predefined.encode()).hexdigest(), macros)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=True).stdout


@dataclass(frozen=True)
class Recipe:
    """What the sources of a folder are built with. `identity` is equal where the same becomes of them."""

    compiler: Compiler
    identity: str

    @classmethod
    def of(cls, folder: Path) -> Recipe:
        """That of a folder's files, but for Python, and of this machine.

        Raises:
            NoCompilerError: there is no compiler.
        """
        compiler = find_compiler()
        digest = hashlib.sha256("\0".join((compiler.predefined, *compiler.command)).encode())
        for root in (folder, Path(jax.ffi.include_dir()) / "xla"):
            for path in sorted(root.rglob("*")):
                if path.is_file() and path.suffix not in (".py", ".pyc"):
                    contents = path.read_bytes()
                    digest.update(f"{path.relative_to(root)}\0{len(contents)}\0".encode() + contents)
        return cls(compiler, digest.hexdigest()[:32])


@dataclass(frozen=True)
class Library:
    """Symbols that were loaded into this process."""

    symbols: ctypes.CDLL
    built: bool


def obtain_library(source: Path, directory: Path, recipe: Recipe) -> Library:
    """Load what `source` becomes by the recipe of its folder; build it where it is not kept.

    Raises:
        RefusedError: others can write to `directory`.
        CacheError: it does not build, cannot be kept or cannot be loaded.
    """
    if directory.exists():
        check_trusted(directory)
    record = directory / f"{recipe.identity}-{source.stem}.json"
    path, built = _kept(record), False
    if path is None:
        with turn(record.with_suffix(".lock")):  # replicas start together, and a build keeps a core busy for seconds
            path = _kept(record)
            if path is None:
                path, built = _build(source, record, recipe.compiler), True
    try:
        return Library(ctypes.CDLL(str(path)), built)
    except OSError as error:
        raise CacheError(f"{path} cannot be loaded: {error}") from None


def _kept(record: Path) -> Path | None:
    """The library that a record names; None where there is none that is whole."""
    try:
        named = unseal(record.read_bytes(), name=str(record))["library"]
        path = record.with_name(f"{named}.so")
        return path if hashlib.sha256(path.read_bytes()).hexdigest() == named else None
    except (OSError, CorruptError, KeyError):
        return None


def _build(source: Path, record: Path, compiler: Compiler) -> Path:
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "library.so"
        words = [*compiler.command, "-isystem", jax.ffi.include_dir(), str(source), "-o", str(output)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise CacheError(f"{source.name} could not be built: {error}") from None
        if done.returncode:
            raise CacheError(f"{shlex.join(words)} failed: {done.stderr.strip()[:1000]}")
        data = output.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    path = record.with_name(f"{digest}.so")
    try:
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_trusted(record.parent)
        write_whole(path, data)
        write_whole(record, seal({"library": digest, "compiler": compiler.version, "source": source.name}))
    except OSError as error:
        raise CacheError(f"{record.parent} cannot be written: {error}") from None
    return path
