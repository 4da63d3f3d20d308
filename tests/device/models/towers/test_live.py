"""Each tower makes of the same patches what transformers makes of them, pictures of several sizes in one launch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.towers.clip import ClipTower
from jaxengine.device.models.towers.internvl import InternVlTower
from jaxengine.device.models.towers.llama4 import Llama4Tower
from jaxengine.device.models.towers.pixtral import PixtralTower
from jaxengine.device.models.towers.places import ItemGrid, Places, padded
from jaxengine.device.models.towers.qwen_vl import Qwen2_5VisionTower, Qwen3VisionTower
from jaxengine.device.models.towers.siglip import Gemma3Tower, SmolVlmTower
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import Tower
from jaxengine.device.models.towers.whisper import (
    Qwen2AudioTower,
    VoxtralTower,
    WhisperTower,
    read_encoder,
)
from jaxengine.device.weights.rules import Rule
from jaxengine.media.mel import frames_of_places

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

VIT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
QWEN = {"depth": 4, "hidden_size": 64, "num_heads": 4, "intermediate_size": 96, "out_hidden_size": 48}
TEXT = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
TEXT |= {"num_key_value_heads": 2, "head_dim": 12}


class Case(NamedTuple):
    """A tower, its `vision_config`, what its `read_config` is told beside, the pictures, and transformers' model of both."""

    tower: type[Tower]
    vision: Mapping[str, Any]
    outer: Mapping[str, Any]
    sizes: Sequence[tuple[int, int]]
    model: Callable[[], Any]
    asked: Mapping[str, Any] = {}


def llava() -> Any:
    vision = transformers.CLIPVisionConfig(**LLAVA)
    text = {"model_type": "llama", **TEXT}
    return transformers.LlavaModel(
        transformers.LlavaConfig(vision_config=vision, text_config=text, vision_feature_layer=-2)
    )


def gemma3() -> Any:
    vision = {"model_type": "siglip_vision_model", **GEMMA3}
    config = transformers.Gemma3Config(vision_config=vision, text_config=TEXT, mm_tokens_per_image=4)
    return transformers.Gemma3Model(config)


def smolvlm() -> Any:
    text = {"model_type": "llama", **TEXT}
    config = transformers.SmolVLMConfig(vision_config=SMOLVLM, text_config=text, scale_factor=2)
    return transformers.SmolVLMModel(config)


def internvl(vision: Mapping[str, Any]) -> Callable[[], Any]:
    text = {"model_type": "qwen2", **TEXT}
    return lambda: transformers.InternVLModel(transformers.InternVLConfig(vision_config=dict(vision), text_config=text))


class Llama4Seeing(torch.nn.Module):
    """The parts of Llama 4 that see, under their names in its checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.llama4 import modeling_llama4 as llama

        vision = {**LLAMA4, "projector_input_dim": 4096, "projector_output_dim": 4096, "vision_output_dim": 4096}
        config = transformers.Llama4Config(vision_config=vision, text_config={"hidden_size": 48})
        self.vision_model = llama.Llama4VisionModel._from_config(config.vision_config)
        self.multi_modal_projector = llama.Llama4MultiModalProjector(config)

    def get_image_features(self, pixels: Any) -> Any:
        seen = self.vision_model(pixels).last_hidden_state
        return SimpleNamespace(pooler_output=self.multi_modal_projector(seen))


def llama4() -> Any:
    return Llama4Seeing()


def mistral3() -> Any:
    vision, text = {"model_type": "pixtral", **MISTRAL3}, {"model_type": "mistral", **TEXT}
    config = transformers.Mistral3Config(
        vision_config=vision, text_config=text, spatial_merge_size=2, multimodal_projector_bias=True
    )
    return transformers.Mistral3Model(config)


LLAVA = {**VIT, "num_hidden_layers": 3, "image_size": 56, "patch_size": 14}
GEMMA3 = {**VIT, "image_size": 112, "patch_size": 14, "vision_use_head": False}
SMOLVLM = {**VIT, "image_size": 64, "patch_size": 8}
INTERNVL = {**VIT, "image_size": [56, 56], "patch_size": [14, 14], "attention_bias": True}
INTERNVL_NORMED = {**INTERNVL, "attention_bias": False, "use_qk_norm": True, "norm_type": "rms_norm"}
LLAMA4 = {**VIT, "image_size": 56, "patch_size": 14, "intermediate_size": 256, "pixel_shuffle_ratio": 0.5}
MISTRAL3 = {**VIT, "image_size": 112, "patch_size": 14}
DEFAULT = {"vision_feature_select_strategy": "default"}
CASES = {
    "llava": Case(
        ClipTower,
        LLAVA,
        {"out_size": 48, "layer": -2},
        [(56, 56)] * 2,
        llava,
        {**DEFAULT, "vision_feature_layer": -2},
    ),
    "gemma3": Case(Gemma3Tower, GEMMA3, {"out_size": 48, "tokens": 4}, [(112, 112)] * 2, gemma3),
    "smolvlm": Case(SmolVlmTower, SMOLVLM, {"out_size": 48, "merge": 2}, [(64, 64)] * 2, smolvlm),
    "internvl": Case(
        InternVlTower,
        INTERNVL,
        {"out_size": 48, "merge": 2},
        [(56, 56)] * 2,
        internvl(INTERNVL),
        {**DEFAULT, "vision_feature_layer": -1},
    ),
    "internvl-normed": Case(
        InternVlTower,
        INTERNVL_NORMED,
        {"out_size": 48, "merge": 2},
        [(56, 56)] * 2,
        internvl(INTERNVL_NORMED),
        {**DEFAULT, "vision_feature_layer": -1},
    ),
    "llama4": Case(Llama4Tower, LLAMA4, {"out_size": 48}, [(56, 56)] * 2, llama4),
    "mistral3": Case(
        PixtralTower,
        MISTRAL3,
        {"out_size": 48, "merge": 2, "epsilon": 1e-6},
        [(112, 56), (84, 112)],
        mistral3,
        {"vision_feature_layer": -1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tower_is_transformers_tower(name: str) -> None:
    case = CASES[name]
    model = randomised(case.model())
    reader = ConfigReader(dict(case.vision))
    config = case.tower.read_config(reader, **case.outer)
    reader.finish(case.tower.IGNORED, family=name)
    patch = case.vision["patch_size"]
    patch = patch if isinstance(patch, int) else patch[0]
    height, width = (max(sizes) for sizes in zip(*case.sizes, strict=True))
    pixels = np.random.default_rng(0).standard_normal((len(case.sizes), 3, height, width)).astype(np.float32)
    asked = dict(case.asked)
    if case.tower is PixtralTower:
        asked["image_sizes"] = torch.tensor(case.sizes)
    given = torch.tensor(pixels[None] if case.tower is SmolVlmTower else pixels)
    with torch.no_grad():
        made = model.get_image_features(given, **asked).pooler_output
    expected = torch.cat([each.reshape(-1, 48) for each in made]).numpy()
    patches = [cut(of[:, :h, :w], patch) for of, (h, w) in zip(pixels, case.sizes, strict=True)]
    grids = [ItemGrid(1, h // patch, w // patch) for h, w in case.sizes]
    close(encode(case.tower, config, model.state_dict(), np.concatenate(patches), grids), expected)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_qwens_towers_take_pictures_of_any_size_and_videos(name: str) -> None:
    from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl, modeling_qwen2_5_vl
    from transformers.models.qwen3_vl import configuration_qwen3_vl, modeling_qwen3_vl

    tower: type[Tower]
    if name == "qwen2_5_vl":
        tower = Qwen2_5VisionTower
        vision = QWEN | {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1, 3]}
        model = modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel(
            configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig(**vision)
        )
    else:
        tower = Qwen3VisionTower
        vision = QWEN | {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2]}
        model = modeling_qwen3_vl.Qwen3VLVisionModel(configuration_qwen3_vl.Qwen3VLVisionConfig(**vision))
    randomised(model)
    reader = ConfigReader(vision)
    config = tower.read_config(reader)
    reader.finish(tower.IGNORED, family=name)
    grids = [ItemGrid(1, 8, 12), ItemGrid(2, 6, 4), ItemGrid(1, 14, 10)]
    count = sum(grid.patches for grid in grids)
    patches = np.random.default_rng(0).standard_normal((count, config.patch_values)).astype(np.float32)
    with torch.no_grad():
        made = model(torch.tensor(patches), grid_thw=torch.tensor([grid[:3] for grid in grids]))
    parts = [made.pooler_output, *(getattr(made, "deepstack_features", None) or [])]
    expected = torch.cat(parts, dim=-1).numpy()
    close(encode(tower, config, model.state_dict(), patches, grids, prefix="visual."), expected)


def encode(
    kind: type[Tower],
    config: Any,
    tensors: Mapping[str, Any],
    patches: np.ndarray,
    grids: Sequence[ItemGrid],
    *,
    prefix: str = "",
) -> np.ndarray:
    """What a tower with these weights makes of patches, in a launch with room to spare."""
    tower = kind(config, ModelContext(dtype=jnp.float32, platform="cpu"))
    load(tower, config, {prefix + name: tensor.numpy() for name, tensor in tensors.items()})
    places = kind.places(config, grids)
    room = padded(
        places,
        patches=len(places.order) + 37,
        rows=len(places.offsets) + 3,
        windows=len(places.windows) + 3,
        embeddings=len(places.taken) + 5,
    )
    given = np.full((len(room.order), config.patch_values), 1e3, np.float32)  # what lies in padding does not matter
    given[room.order >= 0] = patches[room.order[room.order >= 0]]
    embeddings = jax.jit(lambda patches, step: tower(patches, step))(given, step_of(room, len(places.order)))
    return np.asarray(embeddings)[: len(places.taken)]


def step_of(places: Places, used: int) -> TowerStep:
    names = ("offsets", "windows", "positions", "table", "shares", "taken")
    return TowerStep(**{name: jnp.asarray(getattr(places, name)) for name in names}, used=jnp.int32(used))


def load(tower: Tower, config: Any, tensors: Mapping[str, np.ndarray]) -> None:
    """Give a tower its parameters by its table; each is made of one tensor."""
    for path, variable in nnx.to_flat_state(nnx.state(tower)):
        name = ".".join(map(str, path))
        [(rule, numbers)] = [
            (rule, found.groups())
            for rule in tower.WEIGHTS
            if isinstance(rule, Rule) and (found := re.fullmatch(re.escape(rule.target).replace(r"\*", r"(\d+)"), name))
        ]
        source = rule.source
        for number in numbers:
            source = source.replace("*", number, 1)
        [tensor] = [tensors[spelled] for spelled in spellings(source) if spelled in tensors]
        shape = variable.get_value().shape
        made = tensor if rule.transform is None else rule.transform(tensor, config, shape)
        assert made.shape == shape, name
        variable.set_value(jnp.asarray(made))


def spellings(source: str) -> list[str]:
    parts = re.split(r"(\[[^\]]*\])", source)
    return [
        "".join(of) for of in itertools.product(*([part[1:-1], ""] if part[:1] == "[" else [part] for part in parts))
    ]


def randomised(model: Any) -> Any:
    torch.manual_seed(0)
    for parameter in model.eval().parameters():
        parameter.data = torch.randn_like(parameter) * 0.2
    return model


def cut(pixels: np.ndarray, size: int) -> np.ndarray:
    """`[3, height, width]` -> patches row by row, `[n, 3 * size * size]`."""
    channels, height, width = pixels.shape
    grid = pixels.reshape(channels, height // size, size, width // size, size)
    return grid.transpose(1, 3, 0, 2, 4).reshape(-1, channels * size * size)


def close(made: np.ndarray, expected: np.ndarray) -> None:
    assert made.shape == expected.shape
    assert np.abs(made - expected).max() < 2e-6 * np.ptp(expected)


@pytest.mark.parametrize("name", ["whisper", "qwen2_audio", "voxtral"])
def test_encoders_of_sound(name: str) -> None:
    sizes = {
        "encoder_layers": 2,
        "decoder_attention_heads": 4,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "d_model": 64,
    }
    audio = {**sizes, "num_mel_bins": 20, "max_source_positions": 40}
    features = np.random.default_rng(0).standard_normal((2, 20, 80)).astype(np.float32)
    tower: type[WhisperTower]
    if name == "whisper":
        model = randomised(
            transformers.WhisperModel(transformers.WhisperConfig(**audio, decoder_layers=1, pad_token_id=0))
        )
        config, tower = read_encoder(ConfigReader(audio)), WhisperTower
        with torch.no_grad():
            expected = model.encoder(torch.tensor(features)).last_hidden_state.reshape(-1, 64).numpy()
        tensors = model.state_dict()
    elif name == "qwen2_audio":
        from transformers.models.qwen2_audio import modeling_qwen2_audio as qwen

        text = {"model_type": "qwen2", **TEXT}
        outer = transformers.Qwen2AudioConfig(audio_config=audio, text_config=text)
        model = randomised(qwen.Qwen2AudioModel(outer))
        config, tower = read_encoder(ConfigReader(audio), out_size=48, merge=2), Qwen2AudioTower
        with torch.no_grad():
            heard = model.audio_tower(torch.tensor(features)).last_hidden_state
            expected = model.multi_modal_projector(heard).reshape(-1, 48).numpy()
        tensors = model.state_dict()
    else:
        kept = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "hidden_size": 64}
        audio = {**kept, "num_mel_bins": 20, "max_source_positions": 40}
        text = {"model_type": "llama", **TEXT}
        outer = transformers.VoxtralConfig(audio_config=audio, text_config=text)
        model = randomised(transformers.VoxtralModel(outer))
        config, tower = read_encoder(ConfigReader(audio), out_size=48, merge=4), VoxtralTower
        with torch.no_grad():
            expected = model.get_audio_features(torch.tensor(features)).pooler_output.reshape(-1, 48).numpy()
        tensors = model.state_dict()
    patches = np.concatenate([frames_of_places(of) for of in features])
    made = encode(tower, config, tensors, patches, [ItemGrid(1, 1, 40)] * 2)
    close(made, expected)
