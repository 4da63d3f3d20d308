"""Log probabilities of completions, where names collide and pieces join."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.contract.outputs import Logprob, PositionLogprobs
from jaxengine.server.endpoints.completions.logprobs import CompletionLogprobsWriter
from jaxengine.server.generation.offsets import TextOffsets

A, SAME_AS_A, B = 1, 2, 3


def position(chosen: int) -> PositionLogprobs:
    entries = {A: Logprob(-0.5, 1, "a"), SAME_AS_A: Logprob(-3.0, 3, "a"), B: Logprob(-1.0, 2, "b")}
    return {chosen: entries[chosen], **entries}


def test_of_tokens_with_equal_text_the_most_likely_counts() -> None:
    for chosen in (A, SAME_AS_A, B):
        written = CompletionLogprobsWriter(as_ids=False, offsets=TextOffsets()).write([chosen], [position(chosen)])
        [top] = written["top_logprobs"]
        assert top == {"a": -0.5, "b": -1.0}
        greedy = written["token_logprobs"][0] == max(top.values())
        assert greedy == (chosen == A)


def test_offsets_go_on_from_piece_to_piece() -> None:
    tokens, positions = [A, B, A], [None, position(B), position(A)]
    whole = CompletionLogprobsWriter(as_ids=False, offsets=TextOffsets()).write(tokens, positions, "first")
    pieces = CompletionLogprobsWriter(as_ids=False, offsets=TextOffsets())
    first = pieces.write(tokens[:1], positions[:1], "first")
    rest = pieces.write(tokens[1:], positions[1:])
    assert whole["text_offset"] == [*first["text_offset"], *rest["text_offset"]] == [0, 5, 6]
    assert whole["tokens"] == ["first", "b", "a"]
    assert whole["token_logprobs"] == [None, -1.0, -0.5]


def test_tokens_that_the_text_leaves_out_take_no_place() -> None:
    written = CompletionLogprobsWriter(as_ids=False, offsets=TextOffsets(hidden=frozenset({B}))).write(
        [A, B, A], [None, position(B), position(A)], "<s>"
    )
    assert written["tokens"] == ["<s>", "b", "a"]
    assert written["text_offset"] == [0, 3, 3]


def test_bytes_that_became_no_character_take_the_place_of_what_replaced_them() -> None:
    parts = [b"a", b"\xe6", b"\xbc", b"\xa2", b"\xe6", b"\xe6", b"b", b"c\xe6", b"\xbc\xa2", b"d"]
    texts = ["a", "", "", "\u6f22", "", "", "b", "", "\u6f22", "d"]

    def decode(ids: Sequence[int]) -> str:
        return b"".join(parts[token_id] for token_id in ids).decode(errors="replace")

    positions: list[PositionLogprobs] = [{i: Logprob(-1.0, 1, text)} for i, text in enumerate(texts)]
    written = CompletionLogprobsWriter(as_ids=False, offsets=TextOffsets(decode=decode)).write(
        range(len(parts)), positions
    )
    text = decode(range(len(parts)))
    assert text == "a\u6f22\ufffd\ufffdbc\u6f22d"
    for name, offset in zip(written["tokens"], written["text_offset"], strict=True):
        assert text[offset:].startswith(name)
    assert written["text_offset"][-4:] == [4, 5, 6, 7]


def test_tokens_as_ids_have_the_offsets_of_their_texts() -> None:
    written = CompletionLogprobsWriter(as_ids=True, offsets=TextOffsets()).write([B, A], [position(B), position(A)])
    assert written["tokens"] == ["token_id:3", "token_id:1"]
    assert written["text_offset"] == [0, 1]
    assert set(written["top_logprobs"][0] or ()) == {"token_id:1", "token_id:2", "token_id:3"}
