"""Continue a few texts with the embedded model."""

from jaxengine import LLM, SamplingParams

prompts = ["Once upon a time", "The little fox", "One rainy morning"]

with LLM(max_num_seqs=4, max_model_len=256) as llm:
    outputs = llm.generate(prompts, SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=48))

for output in outputs:
    print(f"{output.prompt}{output.outputs[0].text}\n")
