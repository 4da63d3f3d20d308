"""Several samples of one prompt, their log probabilities, stop strings and penalties."""

from jaxengine import LLM, SamplingParams

with LLM(max_num_seqs=4, max_model_len=256) as llm:
    several = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=24, stop=["."], presence_penalty=0.5, logprobs=2)
    (output,) = llm.generate("The old owl said", several)

for completion in output.outputs:
    print(f"[{completion.finish_reason}, log probability {completion.cumulative_logprob:.1f}] {completion.text}")
    first = completion.logprobs[0]
    print("   first token:", {entry.decoded_token: round(entry.logprob, 2) for entry in first.values()})
