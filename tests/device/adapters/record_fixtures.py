"""Record what PEFT writes and what merged models compute: `python -m tests.device.adapters.record_fixtures CASE ...`, or `all`.

Needs torch and peft.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
from safetensors.numpy import load_file, save_file

from tests.device.adapters.cases import ADAPTERS, FIXTURES, adapter_tensors
from tests.device.models.cases import CASES, PROMPTS
from tests.device.models.record_fixtures import build, logits


def record(name: str) -> None:
    """Write one case's files."""
    case, options = ADAPTERS[name]
    model, _, _ = build(*CASES[case])
    before = np.concatenate([logits(model, prompt) for prompt in PROMPTS])
    with tempfile.TemporaryDirectory() as folder:
        given = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
        given.save_pretrained(folder)
        file = Path(folder) / "adapter_model.safetensors"
        shapes = {key: list(tensor.shape) for key, tensor in load_file(file).items()}
        tied = bool(options.get("ensure_weight_tying"))
        save_file(adapter_tensors(shapes, tied=tied), file, metadata={"format": "pt"})
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
        base, _, _ = build(*CASES[case])
        loaded = peft.PeftModel.from_pretrained(base, folder)
        # of a matrix that embedding and head share PEFT merges both, one upon the other
        merged = (loaded if tied else loaded.merge_and_unload()).to(torch.float32).eval()
    config |= {"base_model_name_or_path": case, "target_modules": sorted(config["target_modules"])}
    FIXTURES.mkdir(exist_ok=True)
    stored = {"config": config, "shapes": shapes}
    (FIXTURES / f"{name}.json").write_text(json.dumps(stored, separators=(",", ":"), sort_keys=True) + "\n")
    computed = [logits(merged, prompt) for prompt in PROMPTS]
    np.savez(FIXTURES / f"{name}.npz", **{str(i): array for i, array in enumerate(computed)})
    after = np.concatenate(computed)
    print(f"{name}: spread {after.std():.2f}, moved by {np.abs(after - before).mean():.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=[*ADAPTERS, "all"], metavar="CASE")
    asked = parser.parse_args().cases
    for case in ADAPTERS if "all" in asked else asked:
        torch.manual_seed(0)
        record(case)
