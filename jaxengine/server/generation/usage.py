"""How many tokens an answer cost, counted as its outputs come."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.request import Request
from jaxengine.server.generation.protocol import GenerationRequest, Usage
from jaxengine.server.service import Service


class UsageCounter:
    """Counts the outputs of requests that were submitted together.

    Attributes:
        reasoning_tokens: those of the generated ones that were reasoning, None where that is not told apart.
        prompt_tokens: those of all prompts.
        completion_tokens: those that were generated.
    """

    def __init__(self, requests: Sequence[Request], service: Service) -> None:
        self.reasoning_tokens: int | None = None
        self.prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self.completion_tokens = 0
        self._cached: dict[str, int] = {}
        self._tell_cached = service.options.api.enable_prompt_tokens_details

    def add(self, output: RequestOutput) -> None:
        """Take in an output (a delta, or a final one)."""
        for completion in output.outputs:
            self.completion_tokens += len(completion.token_ids)
        self._cached[output.request_id] = output.num_cached_tokens

    @property
    def cached_tokens(self) -> int | None:
        """How many prompt tokens came from the prefix cache; None where the server does not tell."""
        return sum(self._cached.values()) if self._tell_cached else None

    def before(self) -> Usage:
        """The count before any token: that of chunks which only open an answer."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        }

    def usage(self) -> Usage:
        """The count so far."""
        cached = self.cached_tokens
        usage: Usage = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        }
        if self.reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage


def wants_usage(body: GenerationRequest, service: Service) -> tuple[bool, bool]:
    """Whether a stream ends with usage, and whether every chunk carries it."""
    options, forced = body.stream_options, service.options.api.enable_force_include_usage
    at_end = forced or bool(options and options.include_usage)
    return at_end, forced or bool(at_end and options and options.continuous_usage_stats)
