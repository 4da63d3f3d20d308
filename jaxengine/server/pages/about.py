"""What the playground has to know of the model to offer what it can do, and nothing else."""

from __future__ import annotations

from typing import Any

from jaxengine import __version__
from jaxengine.contract.sampling_options import OPTIONS
from jaxengine.server.service import Service


def about(service: Service) -> dict[str, Any]:
    """The model's names and abilities.

    `chat` is whether it has a chat template (else texts are continued), `tools` and `reasoning` are the formats of its calls and
    thoughts, `inputs` is what messages may hold, `auto_tools` whether it may decide to call, `defaults` are
    what sampling does unless told otherwise.
    """
    tokenizer, limits, showing = service.tokenizer, service.options.limits, service.intake.showing
    defaults = service.intake.default_params
    return {
        "version": __version__,
        "models": list(service.model_names),
        "max_model_len": service.max_model_len,
        "generates": service.engine.facts.generates,
        "chat": tokenizer is not None and bool(tokenizer.settings.chat_templates),
        "inputs": ["text", *map(str, () if showing is None else showing.modalities)],
        "tools": service.formats.tools,
        "auto_tools": service.options.api.enable_auto_tool_choice,
        "reasoning": service.formats.reasoning,
        "max_n": limits.max_n,
        "max_logprobs": service.front.config.model.max_logprobs,
        "defaults": {option.name: getattr(defaults, option.name) for option in OPTIONS},
    }
