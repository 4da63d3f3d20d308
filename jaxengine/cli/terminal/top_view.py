"""What `jaxengine top` shows of two looks at a server's metrics."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxengine.cli.terminal.scrape import Between, Scrape

LATENCIES = {
    "first token": "vllm:time_to_first_token_seconds",
    "between tokens": "vllm:inter_token_latency_seconds",
    "whole answer": "vllm:e2e_request_latency_seconds",
    "in the queue": "vllm:request_queue_time_seconds",
}


def view(before: Scrape, now: Scrape, url: str) -> RenderableType:
    """The whole screen."""
    between = Between(before, now)
    title = Text.assemble((now.model or "no model", "bold"), f"  {url}  ", (f"over {between.seconds:.1f} s", "dim"))
    return Group(title, Text(), _work(between), Text(), _latencies(between), Text(), _shapes(between))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _work(between: Between) -> RenderableType:
    now = between.now
    table = Table.grid(padding=(0, 2))
    pages = now.value("vllm:kv_cache_usage_perc")
    queries = between.gained("vllm:prefix_cache_queries_total")
    hits = between.gained("vllm:prefix_cache_hits_total")
    preempted, compiled = (
        between.gained("vllm:num_preemptions_total"),
        now.value("jaxengine:compile_events_after_ready_total"),
    )
    table.add_row(
        "sequences",
        f"{now.value('vllm:num_requests_running'):.0f} running",
        f"{now.value('vllm:num_requests_waiting'):.0f} waiting",
    )
    table.add_row(
        "tokens/s",
        f"{between.rate('vllm:generation_tokens_total'):,.1f} generated",
        f"{between.rate('vllm:prompt_tokens_total'):,.1f} of prompts",
    )
    table.add_row("KV cache", ProgressBar(total=1.0, completed=min(1.0, pages), width=20), f"{pages:.1%} held")
    table.add_row("prefix cache", f"{hits / queries:.1%} found" if queries else "-", f"{queries:,.0f} tokens looked up")
    table.add_row("preempted", f"{preempted:.0f}", f"{compiled:.0f} compilations since ready")
    return table


def _latencies(between: Between) -> RenderableType:
    table = _table("at most, of those that ended", "50%", "90%", "99%", "of")
    for title, name in LATENCIES.items():
        shown = [_milliseconds(between.percentile(name, share)) for share in (50, 90, 99)]
        table.add_row(title, *shown, f"{between.gained(f'{name}_count'):,.0f}")
    return table


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.4g} ms"


def _shapes(between: Between) -> RenderableType:
    """The shapes of steps; nothing for a server that has none."""
    shapes = between.now.shapes()
    if not shapes:
        return Text()
    table = _table("shape", "steps/s", "tokens/s", "padding", "ms a step", "of the time")
    for shape in shapes:
        steps = between.gained("jaxengine:step_time_seconds_count", shape=shape)
        spent = between.gained("jaxengine:step_time_seconds_sum", shape=shape)
        tokens = between.gained("jaxengine:computed_tokens_total", shape=shape)
        padding = between.gained("jaxengine:padding_tokens_total", shape=shape)
        if not steps:
            table.add_row(shape, "-", style="dim")
            continue
        table.add_row(
            shape,
            f"{steps / between.seconds:,.1f}",
            f"{tokens / between.seconds:,.1f}",
            f"{padding / max(1.0, tokens + padding):.1%}",
            f"{1e3 * spent / steps:,.4g}",
            f"{spent / between.seconds:.1%}",
        )
    return table
