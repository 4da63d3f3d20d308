"""transformers on PyTorch for `media_speed.py`: all requests as one batch, attention by its default (SDPA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from showing import RATE, Generate, Item, answer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


def open_engine(settings: Mapping[str, Any]) -> Generate:
    dtype = getattr(torch, settings["options"]["dtype"])
    opening = {"image": seeing, "audio": hearing}[settings["modality"]]
    return opening(settings["model"], dtype)


def seeing(path: str, dtype: torch.dtype) -> Generate:
    """Qwen2.5-VL, its patches made with Pillow."""
    processor = Qwen2VLImageProcessorPil.from_pretrained(path)
    model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(path, dtype=dtype).eval()
    mark = model.config.image_token_id

    def generate(prompt: Sequence[int], items: Sequence[Item], output_len: int) -> Sequence[Sequence[int]]:
        made = processor(list(items), return_tensors="pt")
        count = int(made["image_grid_thw"][0].prod()) // processor.merge_size**2
        ids = torch.tensor([[token for one in prompt for token in [one] * (count if one == mark else 1)]] * len(items))
        shown = {"pixel_values": made["pixel_values"].to(dtype), "image_grid_thw": made["image_grid_thw"]}
        return generated(
            model, output_len, input_ids=ids, mm_token_type_ids=(ids == mark).int(), **shown
        )  # fmt: skip

    return generate


def hearing(path: str, dtype: torch.dtype) -> Generate:
    """Whisper, without its search for where a long sound goes on: sounds are of one window each."""
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(path)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(path, dtype=dtype).eval()

    def generate(prompt: Sequence[int], items: Sequence[Item], output_len: int) -> Sequence[Sequence[int]]:
        made = extractor(list(items), sampling_rate=RATE, return_tensors="pt")
        ids = torch.tensor([list(prompt)] * len(items))
        return generated(model, output_len, input_features=made["input_features"].to(dtype), decoder_input_ids=ids)

    return generate


@torch.inference_mode()
def generated(model: Any, output_len: int, **shown: torch.Tensor) -> Sequence[Sequence[int]]:
    """What comes after the prompts."""
    lengths = {"max_new_tokens": output_len, "min_new_tokens": output_len}
    found = transformers.GenerationMixin.generate(model, do_sample=False, **lengths, **shown)
    return found[:, -output_len:].tolist()


if __name__ == "__main__":
    answer(open_engine, {"transformers": transformers.__version__, "torch": torch.__version__})
