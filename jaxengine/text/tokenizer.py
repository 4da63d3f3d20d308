"""Text to token ids and back, equal to transformers without importing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from jaxengine.errors import CheckpointError, RequestError
from jaxengine.text.backend import load_backend
from jaxengine.text.longest_token import longest_token
from jaxengine.text.placeholders import NO_PLACEHOLDERS, Placeholders
from jaxengine.text.settings import TokenizerSettings

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What bytes decode to that are not, or not yet, a character."""


class Tokenizer:
    """A model's tokenizer with its special tokens and chat templates.

    Attributes:
        backend: the `tokenizers.Tokenizer` underneath.
        settings: what tokenizer_config.json and the files beside it say.
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings | None = None) -> None:
        self.backend = backend
        self.settings = settings or TokenizerSettings()
        self._token_texts: dict[int, str] = {}

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        config_json: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> Tokenizer:
        """Read the tokenizer files of a local checkpoint directory.

        Args:
            directory: where they are.
            config_json: the contents of the config.json there, for those who have read it (and may have changed it).
            chat_template: replaces the model's own: a file, or the template itself.

        Raises:
            CheckpointError: no usable tokenizer files there, or no such template file, or what is given is no template.
        """
        import dataclasses

        path = Path(directory)
        backend, settings = load_backend(path, TokenizerSettings.read(path, config_json))
        if chat_template is not None:
            settings = dataclasses.replace(settings, chat_templates=_template_text(chat_template))
        return cls(backend, settings)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, bos={self.bos_token!r}, eos={self.eos_token!r})"

    def __len__(self) -> int:
        return self.vocab_size

    @cached_property
    def vocab_size(self) -> int:
        """Number of token ids that have a text, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token(self) -> str | None:
        """Text of the begin-of-sequence token."""
        return self._named("bos_token", self.settings.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """Text of the end-of-sequence token."""
        return self._named("eos_token", self.settings.eos_token_id)

    @property
    def bos_token_id(self) -> int | None:
        """Id of the begin-of-sequence token."""
        return self._id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-sequence token. A model's generation_config.json may name more."""
        return self._id(self.eos_token)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out of the text."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def added_tokens(self) -> Mapping[int, str]:
        """Text of the tokens that were added to the trained vocabulary, special or not."""
        return {i: token.content for i, token in self.backend.get_added_tokens_decoder().items()}

    def certainly_exceeds(self, text: str, num_tokens: int) -> bool:
        """Whether a text has more tokens than this, told by its length alone; False where that does not tell.

        The first call for a long text looks through the vocabulary.
        """
        if len(text) <= num_tokens or self.longest_token is None:
            return False
        of_ascii, of_any = self.longest_token
        return len(text) > num_tokens * (of_ascii if text.isascii() else of_any)

    @cached_property
    def longest_token(self) -> tuple[int, int] | None:
        """The most characters that one token can stand for, of an ASCII text and of any; looks through the vocabulary once."""
        return longest_token(self.backend)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with BOS and EOS where the model's tokenizer adds them."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, max_length: int | None = None
    ) -> list[list[int]]:
        """Token ids of many texts, encoded on all cores.

        At most `max_length` of each: the first ones of the text, with all the special tokens that are added.
        """
        special = add_special_tokens and max_length is None
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=special)
        if max_length is not None:
            added = self.backend.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
            for encoding in encodings:
                encoding.truncate(max(0, max_length - added))
            if added:
                encodings = [self.backend.post_process(encoding) for encoding in encodings]
        return [encoding.ids[:max_length] for encoding in encodings]

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str]], *, max_length: int | None = None
    ) -> list[tuple[list[int], int | None]]:
        """Token ids of pairs of texts, with the special tokens around them, and where the tokens of the second kind begin.

        At most `max_length` of each pair: of the longer text, or of both, the last tokens are left out. Where the model makes no
        difference between the two texts, the second number is None.
        """
        texts = [text for pair in pairs for text in pair]
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        added = self.backend.num_special_tokens_to_add(is_pair=True)
        joined = []
        for first, second in zip(encodings[::2], encodings[1::2], strict=True):
            if max_length is not None and len(first) + len(second) + added > max_length:
                lengths = _cut_longest(len(first), len(second), max(0, max_length - added))
                first.truncate(lengths[0])
                second.truncate(lengths[1])
            whole = self.backend.post_process(first, second)
            joined.append((whole.ids, whole.type_ids.index(1) if 1 in whole.type_ids else None))
        return joined

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids; ids beyond the vocabulary (padding of the embedding) have none."""
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    @property
    def anchor_id(self) -> int | None:
        """A token after which a text goes on as it does in the middle; None where there is none."""
        return None if self._anchor is None else self._anchor[0]

    def token_text(self, token_id: int) -> str:
        """What one token adds to a text that goes on: leading spaces kept, the replacement character for stray bytes."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self._text_after_anchor(token_id)
        return text

    def token_text_after(self, context: Sequence[int], token_id: int) -> str:
        """As `token_text`, but bytes complete the character that the up to four ids of `context` began.

        The token that completes a character has the character's text; those before it have none.
        """
        text = self.token_text(token_id)
        if not text.startswith(REPLACEMENT) and not text.endswith(REPLACEMENT):
            return text
        for length in range(min(4, len(context)) + 1):
            ids = [*context[len(context) - length :], token_id] if length else [token_id]
            whole = self.decode(ids)
            if whole.endswith(REPLACEMENT):
                continue
            before = self.decode(ids[:-1]).rstrip(REPLACEMENT)
            if whole.startswith(before) and not whole[len(before) :].startswith(REPLACEMENT):
                return whole[len(before) :]
        return "" if text.endswith(REPLACEMENT) else text

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        content_format: str = "auto",
        placeholders: Placeholders = NO_PLACEHOLDERS,
        **variables: Any,
    ) -> str:
        """Render a conversation with the model's chat template (or one given by name or as text).

        `content_format` is how the template wants text parts: `string`, `openai` (a list), or `auto`, which looks. `placeholders`
        are those of what messages show.

        Raises:
            RequestError: there is no template, it refuses the messages, or the messages are malformed.
        """
        from jaxengine.text.chat import ChatTemplate, choose_template

        source = choose_template(self.settings.chat_templates, requested=chat_template, with_tools=tools is not None)
        return ChatTemplate.compiled(source).render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            content_format=content_format,
            variables={**self._template_tokens(), **variables},
            placeholders=placeholders,
        )

    def _template_tokens(self) -> dict[str, str]:
        named = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return {**{name: text for name, text in named.items() if text is not None}, **self.settings.special_tokens}

    def _named(self, name: str, fallback_id: int | None) -> str | None:
        text = self.settings.special_tokens.get(name)
        if text is None and fallback_id is not None:
            return self.backend.id_to_token(fallback_id)
        return text

    def _id(self, text: str | None) -> int | None:
        return None if text is None else self.backend.token_to_id(text)

    @cached_property
    def _anchor(self) -> tuple[int, str] | None:
        """A token with a plain visible text, before which nothing is stripped."""
        for letter in "aeiostnr.:ABC012":
            for token_id in self.backend.encode(letter, add_special_tokens=False).ids[::-1]:
                text = self.decode([token_id])
                if text == letter:
                    return token_id, text
        return None

    def _text_after_anchor(self, token_id: int) -> str:
        if self._anchor is None:
            return self.decode([token_id])
        anchor_id, anchor_text = self._anchor
        return self.decode([anchor_id, token_id])[len(anchor_text) :]


def _cut_longest(first: int, second: int, most: int) -> tuple[int, int]:
    """The lengths of two texts that have `most` tokens together: the longer one is cut, and both where both are long."""
    short = min(first, second)
    long = short if short > most else max(short, most - short)
    if short + long > most:
        short = most // 2
        long = short + most % 2
    return (short, long) if first <= second else (long, short)


def _template_text(given: str) -> str:
    """A chat template option is a file where one of that name exists or the text has no template syntax."""
    from jaxengine.text.chat import ChatTemplate

    text, path = given, Path(given)
    looks_like_text = "{" in given or "\n" in given
    if not looks_like_text:
        if not path.is_file():
            raise CheckpointError(f"chat_template {given!r} is neither a file nor a jinja template")
        text = path.read_text(encoding="utf-8")
    try:
        ChatTemplate.compiled(text)
    except RequestError as error:
        raise CheckpointError(f"chat_template {given[:100]!r}: {error}") from error
    return text


def require_tokenizer(tokenizer: Tokenizer | None, what: str) -> Tokenizer:
    """The tokenizer, where an engine has one.

    Raises:
        RequestError: it was started with skip_tokenizer_init.
    """
    if tokenizer is None:
        raise RequestError(f"{what} needs a tokenizer, and the engine was started with skip_tokenizer_init=True")
    return tokenizer
