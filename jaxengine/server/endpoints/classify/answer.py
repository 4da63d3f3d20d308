"""The answer to a classification request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.contract.arrays import Floats
from jaxengine.server.pooling.answer import InputAnswer
from jaxengine.server.pooling.numbers import written


class ClassificationAnswer(InputAnswer):
    """One body and its inputs."""

    @property
    def task(self) -> str:
        return "classify"

    def answer(self, found: Sequence[Floats], usage: Mapping[str, Any]) -> Mapping[str, Any]:
        labels = self.service.intake.facts.pooler.labels
        data = [
            {
                "index": index,
                "label": labels[int(numbers.argmax())],
                "probs": written(numbers, None, None),
                "num_classes": len(numbers),
            }
            for index, numbers in enumerate(found)
        ]
        return {**self.head, "data": data, "usage": usage}
