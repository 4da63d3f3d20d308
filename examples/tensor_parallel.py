"""One model over two devices. On a machine with one CPU they are virtual, which shows that it works, not that it is fast."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

from jaxengine import LLM, SamplingParams  # the flag must be set before JAX is loaded

with LLM(tensor_parallel_size=2, max_num_seqs=2, max_model_len=128) as llm:
    (output,) = llm.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=24))

print(output.prompt + output.outputs[0].text)
