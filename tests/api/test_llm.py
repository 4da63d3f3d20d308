"""`LLM` end to end on the page-faithful fake runner: no model, every other part real."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxengine.api.llm import LLM
from jaxengine.contract.batch import Batch
from jaxengine.contract.lora_request import LoRARequest
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from jaxengine.errors import (
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    OverloadedError,
    RequestError,
    UnsupportedError,
)
from tests.fakes import FakePending, FakeRunner, oracle, oracle_embedding
from tests.fronts import MAX_LEN, TOKENIZER, make_engine, runner_of


def make_llm(**options: Any) -> LLM:
    """`options` are those of a front."""
    return LLM.from_engine(
        make_engine(**{"num_pages": 200, "max_num_seqs": 4, "max_num_batched_tokens": 32, **options})
    )


GREEDY = SamplingParams(temperature=0, max_tokens=8)


def expected_tokens(prompt: Any, params: SamplingParams) -> list[tuple[int, ...]]:
    """The oracle's answer, request by request, for the intake of a fresh engine."""
    entry = make_llm()._engine.front.intake
    [request] = entry.prepare([prompt], [params])
    max_len = MAX_LEN
    return [oracle(request, i, vocab_size=TOKENIZER.vocab_size, max_len=max_len).tokens for i in range(params.n)]


def test_outputs_are_the_oracles_in_the_order_of_the_prompts() -> None:
    prompts = ["Once upon a time", "Tom", "The quick brown fox jumps over the lazy dog", "Mary said hello", "x"]
    outputs = make_llm().generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    for prompt, output in zip(prompts, outputs, strict=True):
        [completion] = output.outputs
        assert [completion.token_ids] == expected_tokens(prompt, GREEDY)
        whole = TOKENIZER.decode([*output.prompt_token_ids, *completion.token_ids], skip_special_tokens=True)
        assert whole == prompt + completion.text
        assert output.finished
        assert completion.finish_reason in ("length", "stop")


def test_one_set_of_parameters_or_one_each() -> None:
    llm = make_llm()
    prompts: list[Any] = ["Tom", TOKENIZER.encode("Mary"), {"prompt": "The", "cache_salt": "s"}]
    params = [GREEDY, GREEDY.replace(max_tokens=2), GREEDY.replace(max_tokens=3, output_kind=RequestOutputKind.DELTA)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [8, 2, 3]
    with pytest.raises(RequestError, match="a list of 3, one per prompt, got 2"):
        llm.generate(prompts, params[:2])
    with pytest.raises(RequestError, match="got int"):
        llm.generate("Tom", 3)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="3 prompts need as many priorities, got 1"):
        llm.generate(prompts, GREEDY, priority=[1])
    assert llm.generate([], GREEDY) == []


def test_several_sequences_and_repeatable_seeds() -> None:
    params = SamplingParams(n=3, temperature=1.0, max_tokens=5)
    first, second = (make_llm().generate("Once upon a time", params, use_tqdm=False)[0] for _ in range(2))
    assert first.outputs == second.outputs
    assert [completion.index for completion in first.outputs] == [0, 1, 2]
    assert [completion.token_ids for completion in first.outputs] == expected_tokens("Once upon a time", params)
    assert len({completion.token_ids for completion in first.outputs}) == 3


def test_a_stop_string_frees_its_pages() -> None:
    llm = make_llm()
    [free] = llm.generate("Once upon a time", GREEDY.replace(max_tokens=20), use_tqdm=False)
    text = free.outputs[0].text
    stop = text[len(text) // 2 :][:3]
    [cut] = llm.generate("Once upon a time", GREEDY.replace(max_tokens=20, stop=stop), use_tqdm=False)
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert len(cut.outputs[0].token_ids) < 20
    assert llm._engine.ledger.pools.usage == 0
    llm._engine.ledger.check()


def test_defaults_come_from_the_model_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="jaxengine"):
        llm = make_llm(sampling={"temperature": 0.5, "top_k": 3}, max_new_tokens=4)
    assert "temperature=0.5, top_k=3 (generation config)" in caplog.text
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=3)
    [output] = llm.generate("Tom", use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4


def test_chat_renders_the_template_and_adds_no_special_tokens() -> None:
    llm = make_llm()
    conversation = [{"role": "user", "content": "Hi"}]
    [one] = llm.chat(conversation, GREEDY, use_tqdm=False)
    assert one.prompt == "<user>Hi<bot>"
    assert list(one.prompt_token_ids) == TOKENIZER.encode("<user>Hi<bot>", add_special_tokens=False)
    assert [one.outputs[0].token_ids] == expected_tokens(list(one.prompt_token_ids), GREEDY)
    two = llm.chat([conversation, [*conversation, {"role": "assistant", "content": "Ho"}]], GREEDY, use_tqdm=False)
    assert [output.prompt for output in two] == ["<user>Hi<bot>", "<user>Hi<assistant>Ho<bot>"]
    [own] = llm.chat(
        conversation,
        GREEDY,
        use_tqdm=False,
        chat_template="{{ mood }}{{ messages[0].content }}{{ tools | length }}",
        chat_template_kwargs={"mood": "glad "},
        tools=[{"type": "function", "function": {"name": "f"}}],
        add_generation_prompt=False,
    )
    assert own.prompt == "glad Hi1"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "must be a list of"),
        ([], "must be a list of"),
        (
            [[{"role": "user", "content": "a"}], [{"content": "b"}]],
            "conversation 1: message 0 must be a dict with a role",
        ),
    ],
)
def test_malformed_conversations(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_llm().chat(messages, GREEDY)


def test_a_bad_prompt_leaves_the_engine_usable() -> None:
    llm = make_llm(num_pages=6)
    with pytest.raises(RequestError, match="prompt 1: The decoder prompt cannot be empty"):
        llm.generate(["Tom", []], GREEDY, use_tqdm=False)
    with pytest.raises(ContextLengthError, match="prompt 1: "):
        llm.generate(["Tom", [5] * 60], GREEDY, use_tqdm=False)  # longer than the pool of 20 tokens
    assert not llm._engine.core.has_unfinished
    assert llm.generate("Tom", GREEDY, use_tqdm=False)[0].finished


class Interrupting(FakeRunner):
    """Ctrl-C arrives while the third step runs."""

    def launch(self, batch: Batch) -> FakePending:
        if self.steps == 2:
            signal.raise_signal(signal.SIGINT)
        return super().launch(batch)


@pytest.fixture
def foreground() -> Iterator[None]:
    """Ctrl-C as a terminal has it: a process in the background of a script is started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("foreground")
def test_ctrl_c_ends_the_call_between_steps_and_the_engine_goes_on() -> None:
    llm = make_llm(runner=Interrupting)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Once upon a time", "Tom"], GREEDY, use_tqdm=False)
    assert signal.getsignal(signal.SIGINT) is before
    assert not llm._engine.core.has_unfinished
    llm._engine.ledger.check()
    assert llm._engine.ledger.pools.usage == 0
    [output] = llm.generate("Tom", GREEDY, use_tqdm=False)
    assert [output.outputs[0].token_ids] == expected_tokens("Tom", GREEDY)


def test_it_works_in_another_thread() -> None:
    llm, outputs = make_llm(), []
    thread = threading.Thread(target=lambda: outputs.extend(llm.generate("Tom", GREEDY, use_tqdm=False)))
    thread.start()
    thread.join(30)
    assert outputs[0].finished


def test_the_bar_says_tokens_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    make_llm().generate(["Tom", "Mary"], GREEDY)
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown
    assert "tok/s, out:" in shown
    make_llm().generate("Tom", GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_prefix_cache_metrics_and_reset() -> None:
    llm = make_llm()
    prompt = "The quick brown fox jumps over the lazy dog"
    llm.generate(prompt, GREEDY, use_tqdm=False)
    [again] = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert again.num_cached_tokens > 0
    metrics = llm.get_metrics()
    assert metrics["prefix_cache_hits"] == again.num_cached_tokens
    assert metrics["num_steps"] > 0
    assert metrics["num_padded_tokens"] >= metrics["num_computed_tokens"]
    assert llm.reset_prefix_cache()
    [cold] = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert cold.num_cached_tokens == 0
    assert cold.outputs == again.outputs


def test_closing_frees_the_device() -> None:
    with make_llm() as llm:
        llm.generate("Tom", GREEDY, use_tqdm=False)
    assert runner_of(llm._engine).closed
    llm.close()
    with pytest.raises(EngineDeadError):
        llm.generate("Tom", GREEDY, use_tqdm=False)


def test_without_a_tokenizer_only_ids_work() -> None:
    llm = make_llm(tokenizer=None)
    [output] = llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    assert output.outputs[0].text == ""
    for call in (llm.get_tokenizer, lambda: llm.generate("Tom"), lambda: llm.chat([{"role": "user", "content": "a"}])):
        with pytest.raises(RequestError, match="skip_tokenizer_init"):
            call()


def test_beam_search_returns_width_sequences_best_first() -> None:
    llm = make_llm()
    found = llm.beam_search(["Once upon", "Tom"], BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True))
    assert len(found) == 2
    for prompt, output in zip(("Once upon", "Tom"), found, strict=True):
        assert len(output.sequences) == 2
        scores = []
        for beam in output.sequences:
            assert beam.text is not None
            assert beam.text.startswith(prompt)
            generated = beam.tokens[len(TOKENIZER.encode(prompt)) :]
            chosen = sum(position[token].logprob for position, token in zip(beam.logprobs, generated, strict=True))
            assert beam.cum_logprob == pytest.approx(chosen)
            assert (len(generated), beam.finish_reason) == (4, "length")
            scores.append(beam.cum_logprob / len(generated))
        assert scores == sorted(scores, reverse=True)
    assert found == make_llm().beam_search(
        ["Once upon", "Tom"], BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True)
    )


def test_beams_stop_at_the_context() -> None:
    ids = [5] * (MAX_LEN - 2)
    [output] = make_llm().beam_search([ids], BeamSearchParams(beam_width=1, max_tokens=9))
    assert [len(beam.tokens) for beam in output.sequences] == [MAX_LEN]


def test_a_wrong_option_is_reported_without_loading_jax() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'max_model_len'"):
        LLM(max_model_length=3)
    script = (
        "import sys\nfrom jaxengine import LLM\nfrom jaxengine.errors import ConfigError\n"
        "try: LLM('x', tensor_paralel_size=2)\nexcept ConfigError: pass\nelse: raise SystemExit('no error')\n"
        "assert 'jax' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env={**os.environ, "PYTHONPATH": "."})


def test_embeddings_are_the_oracles_scaled_to_length_one() -> None:
    llm = make_llm()
    prompts: list[Any] = ["Once upon a time", TOKENIZER.encode("Tom"), {"prompt": "x", "cache_salt": "s"}] * 3
    outputs = llm.embed(prompts, use_tqdm=False)
    for prompt, output in zip(["Once upon a time", "Tom", "x"] * 3, outputs, strict=True):
        ids = TOKENIZER.encode(prompt)
        vector = oracle_embedding(ids)
        np.testing.assert_allclose(output.outputs.embedding, vector / np.linalg.norm(vector), rtol=1e-6)
        assert (list(output.prompt_token_ids), output.finished) == (ids, True)
    assert llm.embed([], use_tqdm=False) == []
    llm._engine.core.check_idle()


def test_a_score_is_the_cosine_of_embeddings() -> None:
    llm = make_llm()
    texts = ["Tom", "Once upon a time", "Tom"]
    vectors = {
        text: np.array(out.outputs.embedding) for text, out in zip(texts, llm.embed(texts, use_tqdm=False), strict=True)
    }
    found = llm.score("Tom", texts, use_tqdm=False)
    assert [output.outputs.score for output in found] == pytest.approx(
        [vectors["Tom"] @ vectors[text] for text in texts]
    )
    assert llm.score(texts, texts[::-1], use_tqdm=False)[1].outputs.score == pytest.approx(1.0)
    with pytest.raises(RequestError, match="3 texts cannot be compared with 2"):
        llm.score(texts, texts[:2])
    with pytest.raises(RequestError, match="this model has no task 'classify'; it has embed"):
        llm.classify("Tom")


def test_encode_is_embed_with_arrays() -> None:
    llm, text = make_llm(), "The quick brown fox jumps over the lazy dog"
    params = [PoolingParams(normalize=False), PoolingParams(dimensions=3), PoolingParams(truncate_prompt_tokens=2)]
    raw, cut, short = llm.encode([text] * 3, params, pooling_task="embed", use_tqdm=False)
    vector = oracle_embedding(TOKENIZER.encode(text))
    assert raw.outputs.data.tolist() == vector.tolist()
    np.testing.assert_allclose(cut.outputs.data, vector[:3] / np.linalg.norm(vector[:3]), rtol=1e-6)
    assert list(short.prompt_token_ids) == TOKENIZER.encode(text)[:2]
    [again] = llm.encode(text, use_tqdm=False)
    assert again.num_cached_tokens > 0, "the prefix cache serves embeddings too"
    assert [again.outputs.data.tolist()] == [llm.embed(text, use_tqdm=False)[0].outputs.embedding]


def test_what_cannot_be_embedded_is_refused_before_anything_runs() -> None:
    llm = make_llm()
    with pytest.raises(RequestError, match="this model has no task 'token_embed'; it has embed"):
        llm.encode("Tom", pooling_task="token_embed")
    with pytest.raises(RequestError, match=r"must be one PoolingParams or a list of 2, .*, got 1"):
        llm.embed(["a", "b"], pooling_params=[PoolingParams()])
    with pytest.raises(RequestError, match="pooling_params must be PoolingParams, got SamplingParams"):
        llm.embed(["a"], pooling_params=[GREEDY])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="sampling_params must be SamplingParams, got PoolingParams"):
        llm.generate(["a"], [PoolingParams()])  # type: ignore[list-item]
    with pytest.raises(ContextLengthError, match=r"^prompt 1: This model's maximum context length"):
        llm.embed(["a", [5] * (MAX_LEN + 1)])
    assert runner_of(llm._engine).steps == 0


def test_what_vllms_users_do_with_it() -> None:
    """Names of vLLM's LLM that are not there say what is; `lora_request=None` is what those give who have none."""
    llm = make_llm()
    params = llm.get_default_sampling_params()
    params.max_tokens = 3
    [output] = llm.generate("Tom", params, use_tqdm=False, lora_request=None)
    assert len(output.outputs[0].token_ids) <= 3
    assert llm.get_default_sampling_params().max_tokens == 16
    with pytest.raises(RequestError, match="lora_request must be LoRARequest or None, got str"):
        llm.generate("Tom", params, lora_request="adapter")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="needs an engine that was started with enable_lora=True"):
        llm.generate("Tom", params, lora_request=LoRARequest("one", 1, "/adapters/one"))
    with pytest.raises(UnsupportedError, match=r"LLM\.apply_model is not supported: the model is compiled programs"):
        llm.apply_model(print)
    assert not hasattr(llm, "collective_rpc")
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'generat'"):
        llm.generat("a")
    with pytest.raises(UnsupportedError, match="no device here to trace"):
        llm.start_profile()
    with pytest.raises(UnsupportedError, match="no device here to trace"):
        llm.stop_profile()


def test_an_llm_sleeps_between_calls() -> None:
    llm = make_llm()
    params = SamplingParams(temperature=0, max_tokens=6)
    before = llm.generate("Tom", params, use_tqdm=False)[0].outputs[0].token_ids
    with pytest.raises(RequestError, match="level must be 0"):
        llm.sleep(3)
    with pytest.raises(RequestError, match="tags must be some of weights, kv_cache, scheduling, got 'heap'"):
        llm.wake_up(["heap"])
    llm.sleep()
    llm.sleep()
    assert runner_of(llm._engine).released
    with pytest.raises(OverloadedError, match="sleeps; wake it up first"):
        llm.generate("Tom", params, use_tqdm=False)
    with pytest.raises(OverloadedError, match="wake up the weights first"):
        llm.update_weights("elsewhere")
    llm.wake_up(["kv_cache"])
    with pytest.raises(OverloadedError, match="sleeps; wake it up first"):
        llm.generate("Tom", params, use_tqdm=False)
    llm.wake_up(["weights"])
    assert llm.generate("Tom", params, use_tqdm=False)[0].outputs[0].token_ids == before
    with pytest.raises(UnsupportedError, match="reads none"):
        llm.update_weights("elsewhere")
    with pytest.raises(RequestError, match="weights must be a checkpoint's directory, arrays by name, or pairs"):
        llm.update_weights({"model.norm": [1.0]})
    with pytest.raises(RequestError, match=r"two arrays of the name 'model\.norm'"):
        llm.update_weights([("model", {"norm": np.ones(2)}), ("model.norm", np.ones(2))])
    llm.close()
