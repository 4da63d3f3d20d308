"""Adapters by `lora_request`: each prompt runs with its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jaxengine import LLM, AsyncLLM, BeamSearchParams, LoRARequest, PoolingParams, SamplingParams
from jaxengine.errors import CheckpointError, JaxEngineError, RequestError
from tests.fronts import make_engine, runner_of

ONE, TWO = LoRARequest("one", 1, "/adapters/one"), LoRARequest("two", 2, "/adapters/two")
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
PROMPT = {"prompt_token_ids": [5, 6, 7, 8, 9, 10]}


def tokens(outputs: list[Any]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_each_prompt_runs_with_its_adapter() -> None:
    llm = LLM.from_engine(make_engine(max_loras=2))
    alone = [tokens(llm.generate(PROMPT, GREEDY, lora_request=each, use_tqdm=False))[0] for each in (None, ONE, TWO)]
    assert len(set(alone)) == 3
    together = llm.generate([PROMPT] * 4, GREEDY, lora_request=[TWO, None, ONE, TWO], use_tqdm=False)
    assert [output.lora_request for output in together] == [TWO, None, ONE, TWO]
    assert tokens(together) == [alone[2], alone[0], alone[1], alone[2]]
    assert together[0].num_cached_tokens == 4
    assert tokens(llm.generate([PROMPT, PROMPT], GREEDY, lora_request=ONE, use_tqdm=False)) == [alone[1]] * 2
    messages: Any = [{"role": "user", "content": "Tom"}]
    chats = [tokens(llm.chat(messages, GREEDY, lora_request=each, use_tqdm=False))[0] for each in (None, ONE)]
    assert chats[0] != chats[1]


def test_pooling_and_beams_run_with_adapters_too() -> None:
    llm = LLM.from_engine(make_engine(max_loras=1))
    embedded = [llm.embed("Tom", lora_request=each, use_tqdm=False)[0].outputs.embedding for each in (None, ONE, TWO)]
    assert len(set(map(tuple, embedded))) == 3
    beams = [
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=2, max_tokens=3), lora_request=each)[0].sequences[0].tokens
        for each in (None, ONE)
    ]
    assert beams[0] != beams[1]


def test_files_that_changed_are_read_again_when_that_is_asked_for() -> None:
    llm = LLM.from_engine(make_engine(max_loras=1))
    before = tokens(llm.generate(PROMPT, GREEDY, lora_request=ONE, use_tqdm=False))
    runner_of(llm._engine).files["/adapters/one"] = "f" * 32
    assert tokens(llm.generate(PROMPT, GREEDY, lora_request=ONE, use_tqdm=False)) == before
    again = LoRARequest("one", 1, "/adapters/one", load_inplace=True)
    assert tokens(llm.generate(PROMPT, GREEDY, lora_request=again, use_tqdm=False)) != before


def test_one_that_cannot_be_read_again_ends_its_request_alone() -> None:
    llm = LLM.from_engine(make_engine(max_loras=1))
    llm.generate(PROMPT, GREEDY, lora_request=ONE, use_tqdm=False)
    llm.generate(PROMPT, GREEDY, lora_request=TWO, use_tqdm=False)  # there is room for no other
    runner_of(llm._engine).files["/adapters/one"] = "f" * 32
    gone, fine = llm.generate([PROMPT] * 2, GREEDY, lora_request=[ONE, TWO], use_tqdm=False)
    assert gone.outputs[0].finish_reason == "error"
    assert "is another one than when it was loaded" in str(gone.outputs[0].stop_reason)
    assert fine.outputs[0].finish_reason == "length"
    with pytest.raises(JaxEngineError, match="the engine gave up a request"):
        llm.embed("Tom", lora_request=ONE, use_tqdm=False)


def test_an_async_engine_reads_adapters_while_others_run() -> None:
    async def go() -> None:
        async with AsyncLLM.from_engine(make_engine(max_loras=2)) as llm:

            async def run(name: str, adapter: LoRARequest | None) -> tuple[int, ...]:
                *_, last = [output async for output in llm.generate(PROMPT, GREEDY, name, lora_request=adapter)]
                return last.outputs[0].token_ids

            found = await asyncio.gather(*(run(str(i), each) for i, each in enumerate((None, ONE, TWO, ONE))))
            assert len(set(found)) == 3
            assert found[1] == found[3]
            [embedding] = [each async for each in llm.encode("Tom", PoolingParams(), "e", lora_request=TWO)]
            assert embedding.finished
            with pytest.raises(CheckpointError, match="/adapters/ten is no adapter"):
                await run("x", LoRARequest("ten", 10, "/adapters/ten"))

    asyncio.run(go())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("", 1, "/a"), "lora_name must not be empty"),
        (("a", 0, "/a"), "lora_int_id must be an integer of at least 1, got 0"),
        (("a", 1, ""), "lora_path must be the directory of an adapter"),
    ],
)
def test_what_is_no_adapter(fields: tuple[str, int, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        LoRARequest(*fields)


def test_wrong_counts() -> None:
    llm = LLM.from_engine(make_engine(max_loras=1))
    with pytest.raises(RequestError, match="must be one LoRARequest or a list of 1, got 2"):
        llm.generate(PROMPT, GREEDY, lora_request=[ONE, ONE], use_tqdm=False)
