"""Chat with the embedded model, then let it call a tool."""

import json

from jaxengine import LLM, SamplingParams

weather = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
greedy = SamplingParams(temperature=0.0, max_tokens=64)

with LLM(max_num_seqs=4, max_model_len=1024) as llm:
    answer = llm.chat([{"role": "user", "content": "What is 7 + 5?"}], greedy)[0]
    print("What is 7 + 5?", "->", answer.outputs[0].text)

    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    call = llm.chat(question, greedy, tools=[weather])[0]
    print(question[0]["content"], "->", json.dumps(call.outputs[0].text))
