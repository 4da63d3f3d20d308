"""The tokenizer equals transformers, live, on real tokenizer files and on small ones that turn each switch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from jaxengine.errors import CheckpointError
from jaxengine.text.tokenizer import Tokenizer
from tests.text import tiny

REAL = ("tokenizers/qwen3", "tokenizers/gpt2", "models/stories260K-hf")
TEXTS = (
    "",
    "Hello world",
    "  two leading spaces",
    "<s>hi there",
    "Hi<s> you</s>x  y",
    "a\n\nb <|im_end|> c\t\td",
    "é😀 中文 한국어 🏳️",
    "[INST] x [/INST]",
    "cafe\u0301 <|endoftext|>",
)


def transformers_tokenizer(directory: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize("name", REAL)
def test_encodes_and_decodes_as_transformers_does(shared: Path, name: str) -> None:
    theirs, ours = transformers_tokenizer(shared / name), Tokenizer.load(shared / name)
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special), (text, special)
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.vocab_size == len(theirs)
    assert ours.special_ids >= set(theirs.all_special_ids)
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]


def test_vocabulary_and_merges_alone_suffice(shared: Path, tmp_path: Path) -> None:
    for file in ("vocab.json", "merges.txt", "tokenizer_config.json", "config.json"):
        (tmp_path / file).write_bytes((shared / "tokenizers/gpt2" / file).read_bytes())
    ours, theirs = Tokenizer.load(tmp_path), Tokenizer.load(shared / "tokenizers/gpt2")
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    assert ours.eos_token == "<|endoftext|>"
    assert 50256 in ours.special_ids


@pytest.mark.parametrize("switches", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_tokenizer_json_decides_about_bos(tmp_path: Path, switches: dict[str, bool], adds_bos: bool) -> None:
    tokenizer = tiny.byte_level()
    if adds_bos:
        tokenizer.backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    path = tiny.write(tmp_path, tokenizer, tokenizer_class="PreTrainedTokenizerFast", **switches)
    theirs, ours = transformers_tokenizer(path), Tokenizer.load(path)
    assert (ours.encode("Tom")[0] == 0) is adds_bos
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("spacing", [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}])
def test_llama_spacing_follows_the_configuration(tmp_path: Path, spacing: dict[str, bool]) -> None:
    path = tiny.write(tmp_path, tiny.byte_fallback(), tokenizer_class="LlamaTokenizer", add_bos_token=True, **spacing)
    theirs, ours = transformers_tokenizer(path), Tokenizer.load(path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


def test_opt_reads_special_tokens_from_their_map(tmp_path: Path) -> None:
    tokenizer = tiny.byte_level()
    vocabulary = tokenizer.backend.get_vocab()
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = json.loads(tokenizer.backend.to_str())["model"]["merges"]
    (tmp_path / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merges), encoding="utf-8"
    )
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true}')
    token = {"content": "</s>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": token, "eos_token": "</s>"}))
    ours = Tokenizer.load(tmp_path)
    assert (ours.bos_token, ours.eos_token) == ("</s>", "</s>")
    assert ours.encode("Tom")[0] == vocabulary["</s>"]
    assert ours.decode(ours.encode("Tom said"), skip_special_tokens=True) == "Tom said"


def test_a_padded_vocabulary_decodes_to_nothing() -> None:
    tokenizer = tiny.byte_level()
    assert tokenizer.decode([*tokenizer.encode("Tom"), 5_000]) == "Tom"


def test_token_text_is_what_a_token_adds_to_running_text() -> None:
    tokenizer = tiny.byte_fallback()
    assert [tokenizer.token_text(i) for i in tokenizer.encode("the the")] == [" the", " the"]
    ids = tokenizer.encode("é", add_special_tokens=False)
    assert [tokenizer.token_text_after(ids[:at], ids[at]) for at in range(len(ids))][-1] == "é"
    assert "\ufffd" not in "".join(tokenizer.token_text_after(ids[:at], ids[at]) for at in range(len(ids)))


@pytest.mark.parametrize("make", [tiny.byte_level, tiny.byte_fallback])
def test_token_texts_join_to_the_text(make: Any) -> None:
    tokenizer = make()
    text = "Tom said 😀 hello\né中 to Mary"
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = "".join(tokenizer.token_text_after(ids[max(0, at - 4) : at], ids[at]) for at in range(len(ids)))
    assert joined.lstrip(" ") == text


def test_loading_does_not_import_transformers_or_jax(shared: Path) -> None:
    script = (
        "import sys; from jaxengine.text.tokenizer import Tokenizer; Tokenizer.load(sys.argv[1]).encode('hello')\n"
        "assert not {'transformers', 'jax', 'torch', 'jinja2'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script, str(shared / "tokenizers/gpt2")], check=True, timeout=60)


def test_missing_and_damaged_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        Tokenizer.load(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_what_no_library_reads_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "tokenizer.model").write_bytes(b"\x00not a sentencepiece model")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model.*skip_tokenizer_init"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("template", ["$A", "<s> $A", "$A </s>", "<s> $A </s>"])
def test_a_cut_text_keeps_what_is_added_to_it(template: str) -> None:
    tokenizer = tiny.byte_level()
    tokenizer.backend.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 1)]),
        ]
    )
    plain = tokenizer.encode("Tom said hello", add_special_tokens=False)
    before, after = [0] if "<s>" in template else [], [1] if "</s>" in template else []
    added = len(before) + len(after)
    for length in range(1, len(plain) + 4):
        [cut] = tokenizer.encode_batch(["Tom said hello"], max_length=length)
        assert cut == [*before, *plain[: max(0, length - added)], *after][:length]
        assert tokenizer.encode_batch(["Tom said hello"], max_length=length, add_special_tokens=False) == [
            plain[:length]
        ]


def test_config_json_that_was_read_and_changed_names_the_end(tmp_path: Path) -> None:
    path = tiny.write(tmp_path, tiny.byte_level(), eos_token=None)
    (path / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert Tokenizer.load(path).eos_token == "<s>"
    assert Tokenizer.load(path, config_json={"eos_token_id": 1}).eos_token == "</s>"
