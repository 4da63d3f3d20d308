"""Two texts become one prompt, for models that read both to say how well they fit: rerankers and other cross-encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.errors import RequestError
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.text.tokenizer import Tokenizer

ROLES = ("query", "document")
"""The roles of the two messages that a template is given."""

Pair = tuple[str, str]
"""A query and a document."""


def pair_template(tokenizer: Tokenizer, *, given: bool) -> str | None:
    """The template that pairs go through, None where the tokenizer joins them: one that was `given` at the start, or the model's
    own where it is one for pairs."""
    templates = tokenizer.settings.chat_templates
    if isinstance(templates, Mapping):
        return next((templates[name] for name in ("reranker", "rerank", "score") if name in templates), None)
    if templates is None or given:
        return templates
    return templates if all(f"'{role}'" in templates or f'"{role}"' in templates for role in ROLES) else None


def pair_prompts(
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    *,
    template: str | None = None,
    instruction: str | None = None,
    variables: Mapping[str, Any] | None = None,
    max_length: int | None = None,
) -> list[ParsedPrompt]:
    """A prompt for each pair, at most `max_length` tokens of it.

    A `template` is given messages of the roles `query` and `document`, and one of `system` with the `instruction`.

    Raises:
        RequestError: an instruction and no template, or the template refuses the texts.
    """
    if template is None:
        if instruction is not None or variables:
            name = "instruction" if instruction is not None else "chat_template_kwargs"
            raise RequestError(
                f"{name} is for rerankers with a template, and this model has none; start it with one (chat_template)",
                param=name,
            )
        encoded = tokenizer.encode_pairs(pairs, max_length=max_length)
        return [ParsedPrompt(None, tuple(ids), second_from=second) for ids, second in encoded]
    said = [] if instruction is None else [{"role": "system", "content": instruction}]
    texts = [
        tokenizer.apply_chat_template(
            [*said, {"role": "query", "content": query}, {"role": "document", "content": document}],
            chat_template=template,
            **{**({} if instruction is None else {"instruction": instruction}), **(variables or {})},
        )
        for query, document in pairs
    ]
    encoded_texts = tokenizer.encode_batch(texts, add_special_tokens=False, max_length=max_length)
    return [ParsedPrompt(text, tuple(ids)) for text, ids in zip(texts, encoded_texts, strict=True)]


def match_pairs(first: Sequence[str], second: Sequence[str]) -> list[Pair]:
    """One text with each of the others, or as many with as many.

    Raises:
        RequestError: other numbers of texts, or none.
    """
    if not first or not second:
        raise RequestError("texts to compare must not be empty", param="data_2" if first else "data_1")
    if len(first) not in (1, len(second)):
        raise RequestError(
            f"{len(first)} texts cannot be compared with {len(second)}: give one on the left, or as many as on the right",
            param="data_1",
        )
    return list(zip(first if len(first) > 1 else [*first] * len(second), second, strict=True))
