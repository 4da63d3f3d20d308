"""The packaged head is small, and drafts for the packaged model."""

import json

from jaxengine.device.models.drafts.registry import head_of, read_head_config
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.embedded import checkpoint_path, draft_path


def test_it_is_of_the_embedded_model_and_small():
    assert {path.name for path in draft_path().iterdir()} == {"config.json", "model.safetensors"}
    assert sum(path.stat().st_size for path in draft_path().iterdir()) < 3 * 2**20
    model, head = (json.loads((path() / "config.json").read_text()) for path in (checkpoint_path, draft_path))
    own = read_head_config(head_of(head, "eagle3"), head, read_config(resolve(model), model))
    assert own.taps == (1, 3, 4)
