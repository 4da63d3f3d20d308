"""DeepSeek R1: the prompt or the model opens `<think>`; what never closes it is reasoning to the end."""

from jaxengine.parsers.reasoning.blocks import ReasoningFormat

FORMAT = ReasoningFormat(begin="<think>", end="</think>", begins_open=True)
