"""The first run: phases are told as they happen, and what is wrong is said before any device work."""

from __future__ import annotations

import json

import pytest

from jaxengine import LLM, SamplingParams
from jaxengine.errors import CapacityError, CheckpointError, ConfigError, EngineDeadError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from tests.integration.engines import SMALL, greedy, run, start, token_ids, write_config
from tests.quick import quick_programs


@pytest.mark.slow
def test_real_model_gives_its_recorded_tokens(shared):
    model = shared / "models" / "stories260K-hf"
    golden = json.loads((model / "golden_greedy_fp32.json").read_text())
    with LLM(str(model), max_num_seqs=4, page_size=16, bucket_planner="explicit", buckets=("4x64", "4x1")) as llm:
        for entry in golden:
            params = SamplingParams(temperature=0.0, max_tokens=len(entry["greedy_ids"]), ignore_eos=True, logprobs=0)
            [output] = llm.generate([{"prompt_token_ids": entry["prompt_ids"]}], params, use_tqdm=False)
            completion = output.outputs[0]
            assert list(completion.token_ids) == entry["greedy_ids"]
            logprobs = [
                position[token].logprob
                for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
            ]
            assert logprobs == pytest.approx(entry["greedy_logprobs"], abs=2e-4)
        assert llm.get_metrics()["num_compilations"] == 0


def test_embedded_model_continues_a_story():
    with LLM(max_num_seqs=2, max_model_len=128, bucket_planner="explicit", buckets=("2x32", "2x1")) as llm:
        [output] = llm.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=40), use_tqdm=False)
        [answer] = llm.chat(
            [{"role": "user", "content": "What is 2 + 3?"}], SamplingParams(temperature=0.0), use_tqdm=False
        )
    text = output.outputs[0].text
    assert len(text.split()) > 20
    assert text.isascii()
    assert "5" in answer.outputs[0].text


def test_phases_are_told(tmp_path, caplog):
    with caplog.at_level("INFO", logger="jaxengine"), quick_programs():
        start(write_config(tmp_path), buckets=("4x16",), xla_cache_path=str(tmp_path / "programs")).close()
    lines = [record.message for record in caplog.records]
    for phase in ("resolve", "load", "compile", "warm up", "ready"):
        assert any(f"] {phase}" in line for line in lines), phase
    assert any("ETA" in line for line in lines)
    assert any("trace" in line and "lower" in line for line in lines)
    ready = next(line for line in lines if "] ready" in line)
    assert "504 tokens in 63 pages of 8" in ready or "512 tokens in 64 pages of 8" in ready
    assert "sequences of 128 tokens" in ready


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kv_cache_memory_bytes": 1000}, CapacityError, "--kv-cache-memory-bytes 69632"),
        ({"num_pages": 3}, CapacityError, "needs"),
        ({"max_model_len": 1000}, ConfigError, "256 positions"),
        ({"max_num_batched_tokens": 2}, ConfigError, "at least max_num_seqs"),
        ({"page_size": 12}, ConfigError, "power of two"),
        ({"buckets": ("4by16",)}, ConfigError, "4by16"),
        ({"prefill_seq_range": (8, 8, 16)}, ConfigError, "linear or exponential"),
        ({"bucket_planner": "tokens"}, ConfigError, "buckets says nothing to the tokens planner"),
        (
            {"skip_tokenizer_init": False, "tokenizer_revision": "main"},
            ConfigError,
            "tokenizer_revision needs tokenizer",
        ),
        ({"attention_backend": "cuda"}, ConfigError, "cuda"),
        ({"attention_backend": "tpu"}, ConfigError, "runs on TPUs, and this engine is for the cpu"),
        ({"attention_backend": "gpu"}, ConfigError, "runs on GPUs, and this engine is for the cpu"),
        ({"load_format": "auto"}, CheckpointError, "safetensors"),
        ({"max_num_sequences": 3}, ConfigError, "Did you mean 'max_num_seqs'"),
        ({"dtype": "fp8"}, ConfigError, "bfloat16"),
    ],
)
def test_impossible_options_are_refused_with_what_is_possible(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        start(write_config(tmp_path), **options)


def test_unknown_architecture_lists_the_known(tmp_path):
    with pytest.raises(ConfigError, match=r"'T5Model'.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        start(write_config(tmp_path, architectures=["T5Model"]))


def test_a_key_nobody_reads_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="hidden_dropout"):
        start(write_config(tmp_path, hidden_dropout=0.1))


def test_hf_overrides_reach_the_model(tmp_path):
    model = write_config(tmp_path)
    plain, changed = start(model), start(model, hf_overrides={"rope_theta": 100.0})
    prompts = [list(range(3, 60))]
    assert token_ids(run(plain, prompts, greedy(16))) != token_ids(run(changed, prompts, greedy(16)))
    plain.close()
    changed.close()


@pytest.mark.parametrize("own", [[], [255]])
def test_an_end_in_hf_overrides_ends_generation(tmp_path, own):
    model = write_config(tmp_path, eos_token_id=254)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": own} if own else {}))
    prompt, until = list(range(3, 60)), SamplingParams(temperature=0.0, max_tokens=16, detokenize=False)
    engine = start(model)
    [tokens] = token_ids(run(engine, [prompt], greedy(16)))
    engine.close()
    end = tokens[5]
    engine = start(model, hf_overrides={"eos_token_id": end})
    [output] = run(engine, [prompt], until)
    engine.close()
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == (tokens[: tokens.index(end) + 1], "stop")
    assert engine.front.intake.end_token_ids == (end, *own)


def test_context_auto_is_the_most_that_fits(tmp_path):
    options = {**SMALL, "model": str(write_config(tmp_path)), "max_model_len": "auto"}
    planned = plan_space(prepare(EngineConfig.from_options(**options), Progress(), weights=True))
    assert planned.limits.max_model_len == 256


def test_a_closed_engine_says_so(tmp_path):
    engine = start(write_config(tmp_path))
    engine.close()
    engine.close()
    [request] = engine.front.intake.prepare([[1]], [SamplingParams(detokenize=False)])
    with pytest.raises(EngineDeadError):
        engine.core.add(request)


def test_options_of_the_small_engine_are_all_known(tmp_path):
    with LLM(str(write_config(tmp_path)), **SMALL) as llm:
        assert llm.vocab_size == 256
