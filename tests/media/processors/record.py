"""Record what transformers' processors make of pictures: `python -m tests.media.processors.record [ARCHITECTURE ...]`.

Needs transformers with its PIL backends, and torch and torchvision for Llama 4 and for videos, which it has in no other form.
Numbers of some places are kept of each item, enough to tell any other order, size or colour.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.media.processors.theirs import SIZES, cut
from tests.media_models import FAMILIES, picture

RECORDED = Path(__file__).with_name("recorded.json")
PLACES = 24
PROCESSORS = {
    "Gemma3ForConditionalGeneration": ("gemma3", "image_processing_pil", "Gemma3ImageProcessorPil"),
    "Gemma4ForConditionalGeneration": ("gemma4", "image_processing_pil", "Gemma4ImageProcessorPil"),
    "InternVLForConditionalGeneration": ("got_ocr2", "image_processing_pil", "GotOcr2ImageProcessorPil"),
    "Llama4ForConditionalGeneration": ("llama4", "image_processing", "Llama4ImageProcessor"),
    "LlavaForConditionalGeneration": ("llava", "image_processing_pil", "LlavaImageProcessorPil"),
    "LlavaForConditionalGeneration/pixtral": ("pixtral", "image_processing_pil", "PixtralImageProcessorPil"),
    "LlavaOnevisionForConditionalGeneration": (
        "llava_onevision",
        "image_processing_pil",
        "LlavaOnevisionImageProcessorPil",
    ),
    "Mistral3ForConditionalGeneration": ("pixtral", "image_processing_pil", "PixtralImageProcessorPil"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_vl", "image_processing_pil", "Qwen2VLImageProcessorPil"),
    "Qwen3VLForConditionalGeneration": ("qwen2_vl", "image_processing_pil", "Qwen2VLImageProcessorPil"),
    "Qwen3VLMoeForConditionalGeneration": ("qwen2_vl", "image_processing_pil", "Qwen2VLImageProcessorPil"),
    "Qwen3_5ForConditionalGeneration": ("qwen2_vl", "image_processing_pil", "Qwen2VLImageProcessorPil"),
    "SmolVLMForConditionalGeneration": ("smolvlm", "image_processing_pil", "SmolVLMImageProcessorPil"),
}
"""Where transformers has each family's arithmetic; all but Llama 4's without torch."""
VIDEOS = {
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl", "Qwen3VLVideoProcessor"),
}
FRAMES = ((4, 60, 40), (5, 100, 130), (6, 33, 90))
"""Videos: how many frames, of which width and height."""


def places(count: int) -> np.ndarray:
    """Those of so many numbers that are kept."""
    return np.random.Philox(count).random_raw(PLACES) % np.uint64(count)


def frames(count: int, width: int, height: int) -> np.ndarray:
    """A video."""
    return np.stack([picture(width, height, seed) for seed in range(count)])


def kept(patches: np.ndarray) -> dict[str, Any]:
    """What is recorded of an item's patches."""
    flat = np.asarray(patches, np.float32).ravel()
    return {"shape": list(patches.shape), "values": [round(float(value), 5) for value in flat[places(len(flat))]]}


def pictures_of(architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    """Each picture by its name, as transformers' patches in our order."""
    said = dict(FAMILIES[architecture].files["preprocessor_config.json"])
    said.pop("image_processor_type")
    patch = said.get("patch_size") or FAMILIES[architecture].vision.get("patch_size")
    patch = patch[0] if isinstance(patch, list) else patch
    family, file, name = PROCESSORS[architecture]
    kind = getattr(import_module(f"transformers.models.{family}.{file}_{family}"), name)
    if architecture == "Mistral3ForConditionalGeneration":
        said["patch_size"] = patch * FAMILIES[architecture].outer["spatial_merge_size"]
    processor = kind(**said)
    for width, height in SIZES:
        tensors = "pt" if "Llama4" in architecture else "np"
        made = processor(picture(width, height), return_tensors=tensors)
        pixels = made["pixel_values"]
        pixels = np.asarray(pixels.float() if tensors == "pt" else pixels, np.float32)
        if "image_position_ids" in made:  # padded, and colours last
            [real] = (made["image_position_ids"] >= 0).all(axis=-1)
            pixels = pixels[0][real].reshape(real.sum(), -1, 3).swapaxes(1, 2).reshape(real.sum(), -1)
        if pixels.ndim > 2:
            pixels = cut(pixels.reshape(-1, *pixels.shape[-3:]), patch)
        yield f"{width}x{height}", pixels


def videos_of(architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    """The same of videos."""
    import torch

    said = dict(FAMILIES[architecture].files["video_preprocessor_config.json"])
    said.pop("video_processor_type")
    module, name = VIDEOS[architecture]
    kind = getattr(import_module(f"transformers.models.{module}.video_processing_{module}"), name)
    processor = kind(**said, do_sample_frames=False, cap_pixels_per_frame=False)
    for count, width, height in FRAMES:
        video = torch.from_numpy(frames(count, width, height)).permute(0, 3, 1, 2)
        made = processor([video], return_tensors="pt")
        yield f"{count}x{width}x{height}", made["pixel_values_videos"].numpy()


def main() -> None:
    """Write those that are asked for, or all."""
    asked = sys.argv[1:] or list(FAMILIES)
    found = json.loads(RECORDED.read_text())
    for architecture in asked:
        found[architecture] = {name: kept(patches) for name, patches in pictures_of(architecture)}
        if architecture in VIDEOS:
            found[f"{architecture}/video"] = {name: kept(patches) for name, patches in videos_of(architecture)}
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
