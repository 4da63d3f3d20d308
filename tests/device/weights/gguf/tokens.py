"""A tokenizer as llama.cpp's converter writes it: byte-level BPE, or what sentencepiece has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def say_tokens(writer: Any, directory: Path, *, pre: str = "default") -> None:
    """Metadata of the byte-level tokenizer in a checkpoint directory: tokens, merges, special tokens, chat template."""
    stored = json.loads((directory / "tokenizer.json").read_text())
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    by_id = {number: token for token, number in stored["model"]["vocab"].items()}
    types = dict.fromkeys(by_id, 1)
    for added in stored["added_tokens"]:
        by_id[added["id"]] = added["content"]
        types[added["id"]] = 3 if added["special"] else 4
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([by_id[number] for number in sorted(by_id)])
    writer.add_token_types([types[number] for number in sorted(by_id)])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in stored["model"]["merges"]]
    )
    ids = {token: number for number, token in by_id.items()}
    for name, add in (("bos_token", writer.add_bos_token_id), ("eos_token", writer.add_eos_token_id)):
        token = settings.get(name)
        if token is not None:
            add(ids[token if isinstance(token, str) else token["content"]])
    template = directory / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text())
    elif settings.get("chat_template"):
        writer.add_chat_template(settings["chat_template"])
