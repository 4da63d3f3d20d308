"""Answers of a form that is fixed beforehand: a JSON schema, a regular expression, a choice."""

import json

from jaxengine import LLM, SamplingParams, StructuredOutputsParams

cat = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "lives": {"type": "integer", "minimum": 1, "maximum": 9},
        "mood": {"enum": ["sleepy", "hungry"]},
    },
    "required": ["name", "lives", "mood"],
    "additionalProperties": False,
}
forms = {
    "a cat": StructuredOutputsParams(json=cat),
    "a clock": StructuredOutputsParams(regex="(0[0-9]|1[0-9]|2[0-3]):[0-5][0-9]"),
    "yes or no": StructuredOutputsParams(choice=["yes", "no"]),
}

with LLM(max_num_seqs=4, max_model_len=1024) as llm:
    for name, form in forms.items():
        params = SamplingParams(max_tokens=100, seed=1, structured_outputs=form)
        text = llm.chat([{"role": "user", "content": f"Tell me: {name}."}], params)[0].outputs[0].text
        print(name, "->", json.dumps(json.loads(text)) if name == "a cat" else text)
