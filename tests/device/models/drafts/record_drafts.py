"""Record what transformers' layers guess: `python -m tests.device.models.drafts.record_drafts CASE ...`. Needs torch."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch

from tests.device.models.cases import CASES, FIXTURES
from tests.device.models.drafts.cases import COUNT, DRAFTS, TOKENS, Case, states
from tests.device.models.record_fixtures import build

EPSILON_KEYS = ("rms_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")


@torch.no_grad()
def record(name: str) -> None:
    """Write the fixture of a case."""
    case = DRAFTS[name]
    architecture, _ = CASES[case.target]
    _, config, _ = build(architecture, case.options)
    config |= {"architectures": [case.architecture or architecture], **(case.extras or {})}
    config |= {"num_nextn_predict_layers": 1} if case.architecture else {}
    layers = {"num_hidden_layers": len(case.source)} if "layers_block_type" not in case.block else {}
    options = {key: value for key, value in {**case.options, **case.block, **layers}.items() if value is not None}
    model, _, shapes = build(architecture, options)
    logits = guessed(model, case, epsilon=next(config[key] for key in EPSILON_KEYS if key in config))
    guesses = logits.argmax(axis=1).tolist()
    stored = {"config": config, "shapes": shapes, "guesses": guesses, "logits": np.round(logits, 5).tolist()}
    path = FIXTURES / "drafts" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(stored))
    print(name, guesses)


def guessed(model: Any, case: Case, *, epsilon: float) -> np.ndarray:
    """Logits `[COUNT, V]`, each made of all places before again, without a cache."""
    base = model.model if hasattr(model, "model") else model.backbone
    streams: list[torch.Tensor] = []
    base.layers[-1].register_forward_hook(
        lambda module, given, out: streams.append((out[0] if isinstance(out, tuple) else out).clone())
    )
    around = {name: torch.tensor(tensor) for name, tensor in case.around.items()}
    token_norm, state_norm, join = (
        around[f"{case.prefix}{case.names[part]}.weight"] for part in ("token_norm", "state_norm", "join")
    )
    offset = 1.0 if "qwen3" in case.target else 0.0
    tokens, given, found = list(TOKENS), torch.tensor(states()), []
    embed = model.get_input_embeddings()
    for _ in range(COUNT):
        parts = [
            normed(embed(torch.tensor(tokens)), token_norm + offset, epsilon),
            normed(given, state_norm + offset, epsilon),
        ]
        x = torch.cat(parts[::-1] if case.state_first else parts, dim=-1) @ join.T
        hidden = base(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
        logits = model.get_output_embeddings()(hidden[-1])
        handed = hidden if case.hands_normed else streams[-1].reshape(hidden.shape)
        found.append(logits.numpy())
        tokens.append(int(logits.argmax()))
        given = torch.cat([given, handed[-1:]])
    return np.stack(found)


def normed(x: torch.Tensor, scale: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Over the root of the mean square, times `scale`."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * scale


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=[*DRAFTS, "all"])
    asked = parser.parse_args().cases
    for each in DRAFTS if "all" in asked else asked:
        record(each)
