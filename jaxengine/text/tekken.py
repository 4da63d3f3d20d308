"""Mistral's own tokenizer file, tekken.json: ranks of byte strings, and tokens of control before them.

The layout is that of mistral-common's `Tekkenizer`, which needs tiktoken, pycountry and more; the file can be read without.
"""

from __future__ import annotations

import dataclasses
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from jaxengine.errors import CheckpointError
from jaxengine.text.settings import TokenizerSettings

FILE = "tekken.json"
BOS, EOS, UNKNOWN, SYSTEM = "<s>", "</s>", "<unk>", "[SYSTEM_PROMPT]"
FILLER = "<SPECIAL_{}>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant') or message.tool_calls %}"
    "{{ raise_exception('tekken.json brings no template for tools: give one (--chat-template)') }}{% endif %}"
    "{% set around = {'system': ['[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]'], 'user': ['[INST]', '[/INST]']} %}"
    "{{ around[message.role][0] if message.role in around else '' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{{ {'audio': '[BEGIN_AUDIO][AUDIO]', 'image': '[IMG]'}.get(part.type, part.text) }}"
    "{% endfor %}{% endif %}"
    "{{ around[message.role][1] if message.role in around else eos_token }}{% endfor %}"
)
"""How mistral-common writes conversations since version 7, the first with tokens around what the system says; without tools."""


def load_tekken(path: Path, settings: TokenizerSettings) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    """The tokenizer, and the settings completed by what the file says.

    Raises:
        CheckpointError: the file is damaged, or of a layout before that which names its special tokens.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        config = said["config"]
        size, before = int(config["default_vocab_size"]), int(config["default_num_special_tokens"])
        if said.get("special_tokens") is None:
            raise CheckpointError(
                f"{path.name} is of a version ({config.get('version')}) that names no special tokens; give tokenizer.json, or "
                "tokenizer=<another directory or hub id>"
            )
        control = {int(token["rank"]): str(token["token_str"]) for token in said["special_tokens"]}
        by_rank = {int(token["rank"]): token["token_bytes"] for token in said["vocab"]}
        pieces = [b64decode(by_rank[rank], validate=True) for rank in range(size - before)]
        backend = _built(
            pieces, [control.get(number, FILLER.format(number)) for number in range(before)], config["pattern"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read as a tokenizer ({error}); download the file again") from error
    named = {"bos_token": BOS, "eos_token": EOS, "unk_token": UNKNOWN}
    known = {name: text for name, text in named.items() if text in control.values()}
    template = TEMPLATE if SYSTEM in control.values() else None
    return backend, dataclasses.replace(
        settings,
        special_tokens={**known, **settings.special_tokens},
        chat_templates=settings.chat_templates or template,
    )


def _built(pieces: Sequence[bytes], control: Sequence[str], pattern: str) -> tokenizers.Tokenizer:
    """Ids of `control` tokens come first. Bytes are written as the library's byte level has them."""
    written = dict(zip(_byte_order(), sorted(pre_tokenizers.ByteLevel.alphabet()), strict=True))
    texts = ["".join(written[byte] for byte in piece) for piece in pieces]
    ids = {text: number for number, text in enumerate((*control, *texts))}
    if len(ids) != len(control) + len(texts):
        raise ValueError("two tokens are alike")
    merges = [pair for piece, text in zip(pieces, texts, strict=True) if len(piece) > 1 for pair in _pairs(text, ids)]
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    if BOS in ids:
        backend.post_processor = processors.TemplateProcessing(
            single=[BOS, "$A"], pair=[BOS, "$A", BOS, "$B"], special_tokens=[(BOS, ids[BOS])]
        )
    return backend


def _byte_order() -> list[int]:
    """Bytes in the order of the characters that stand for them: those that are printed are themselves, the others follow."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [*printed, *(byte for byte in range(256) if byte not in printed)]


def _pairs(text: str, ids: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs of tokens that make one, those of the lower ranks first: a rank is that of what a pair makes."""
    cuts = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
    found = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
    return sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
