"""The compiler's cycles are summed, and what it does not know is left out."""

from __future__ import annotations

from types import SimpleNamespace

from xla_cache.cycles import estimated_cycles


def compiled(*cycles: int) -> SimpleNamespace:
    text = "\n".join(f'fusion(x), backend_config={{"estimated_cycles":"{count}"}}' for count in cycles)
    return SimpleNamespace(as_text=lambda: text)


def test_known_cycles_are_summed():
    assert estimated_cycles(compiled(100, 23)) == 123


def test_unknown_cycles_are_left_out():
    assert estimated_cycles(compiled(100, 2**63 - 1)) == 100
    assert estimated_cycles(compiled(2**63 - 1)) is None


def test_none_where_the_compiler_writes_none():
    assert estimated_cycles(compiled()) is None
