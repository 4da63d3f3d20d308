"""Programs compiled ahead of time: many in parallel, kept, verified, loaded, and proof that nothing compiles afterwards."""

from xla_cache.bundle import Bundle, Manifest, require_same, write_bundle
from xla_cache.cache import ProgramCache
from xla_cache.compiler import CompileRecord, build_programs, compile_programs, obtain
from xla_cache.environment import available_cores, device_fingerprint, environment
from xla_cache.errors import CacheError, CorruptError, LinkError, RefusedError
from xla_cache.events import CompileCounter
from xla_cache.key import Key, program_key
from xla_cache.location import default_directory
from xla_cache.program import Program
from xla_cache.record import Record
from xla_cache.sources import source_digests
from xla_cache.store import Store

__all__ = [
    "Bundle",
    "CacheError",
    "CompileCounter",
    "CompileRecord",
    "CorruptError",
    "Key",
    "LinkError",
    "Manifest",
    "Program",
    "ProgramCache",
    "Record",
    "RefusedError",
    "Store",
    "available_cores",
    "build_programs",
    "compile_programs",
    "default_directory",
    "device_fingerprint",
    "environment",
    "obtain",
    "program_key",
    "require_same",
    "source_digests",
    "write_bundle",
]
