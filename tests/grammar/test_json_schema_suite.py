"""The JSON Schema test suite: whatever a model without sense writes under one of its schemas validates, if it comes to an end."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import RequestError
from jaxengine.grammar.matching import Grammar, GrammarError, GrammarState
from tests.grammar.characters import Grammars
from tests.text import tiny

TOKENIZER = tiny.byte_level()
EOS = TOKENIZER.eos_token_id
VALIDATORS = {"draft7": jsonschema.Draft7Validator, "draft2020-12": jsonschema.Draft202012Validator}
OUTPUTS = 4
MAX_TOKENS = 150

KNOWN_DEVIATIONS = {
    # In draft 7 keywords beside $ref are ignored, and with them an $id that the reference would be resolved against.
    ("draft7", "$ref prevents a sibling $id from changing the base uri"),
}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    assert EOS is not None
    grammars = Grammars(TOKENIZER, vocab_size=TOKENIZER.vocab_size, end_ids=(EOS,))
    yield grammars
    grammars.close()


def write(grammar: Grammar, draw: random.Random) -> str | None:
    """A random text in the grammar, with a leaning towards its end; None when that did not come."""
    closing = {token for text in '"}]' for token in TOKENIZER.encode(text, add_special_tokens=False)}
    state, output = grammar.start(may_end=True), []
    for _ in range(MAX_TOKENS):
        state.advance(np.array(output, np.int32))
        [mask] = GrammarState.masks([state])
        assert not isinstance(mask, GrammarError), mask
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        assert max(allowed) < TOKENIZER.vocab_size
        if EOS in allowed and (len(allowed) == 1 or draw.random() < 0.5):
            return TOKENIZER.decode(output)
        closers = [token for token in allowed if token in closing]
        output.append(draw.choice(closers if closers and draw.random() < 0.5 else allowed))
        if output[-1] == EOS:
            return TOKENIZER.decode(output[:-1])
    return None


def schemas(directory: Path) -> Iterator[tuple[str, str, Any]]:
    for path in sorted(directory.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield path.stem, group["description"], group["schema"]


@pytest.mark.parametrize("draft", VALIDATORS)
def test_every_finished_output_validates(shared: Path, draft: str, grammars: Grammars) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for keyword, description, schema in schemas(shared / "structured/JSON-Schema-Test-Suite/tests" / draft):
        try:
            grammar = grammars.compile(StructuredOutputsParams(json=schema))
        except RequestError:
            counts["refused"] += 1
            continue
        counts["taken"] += 1
        draw = random.Random(f"{draft} {keyword} {description}")
        for _ in range(OUTPUTS):
            text = write(grammar, draw)
            if text is None:
                counts["cut"] += 1
                continue
            counts["finished"] += 1
            try:
                errors = list(VALIDATORS[draft](schema).iter_errors(json.loads(text)))
            except re.error:  # Python's regular expressions know less than JSON Schema's
                counts["unchecked"] += 1
                continue
            if errors and (draft, description) not in KNOWN_DEVIATIONS:
                wrong.append(f"{keyword}: {description}: {text} ({errors[0].message})")
    print(draft, dict(counts))
    assert not wrong, "\n".join(wrong)
    assert counts["taken"] >= 150, counts
    assert counts["finished"] > 0.9 * OUTPUTS * counts["taken"], counts
