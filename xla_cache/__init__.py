"""Compilation ahead of time: many programs in parallel, each phase timed, and proof that nothing compiles afterwards."""

from xla_cache.compiler import CompileRecord, Program, compile_programs
from xla_cache.events import CompileCounter

__all__ = ["CompileCounter", "CompileRecord", "Program", "compile_programs"]
