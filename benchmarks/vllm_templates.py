r"""Whether a chat template wants texts or parts: what jaxengine finds beside what vLLM finds, for every template in a folder.

vLLM must be importable, so it runs in vLLM's environment; the folder is that of its source distribution:

    PYTHONPATH=this-repository python-with-vllm -P -m benchmarks.vllm_templates FOLDER

Templates that say the same are compared once. Of vLLM 0.33's 58 all agree (15 want parts), with vLLM 0.32's detection.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from vllm.renderers.hf import _detect_content_format

from jaxengine.text.chat import ChatTemplate


def main() -> int:
    texts = {path.read_text(): path for path in sorted(Path(sys.argv[1]).rglob("*.jinja*"))}
    found: Counter[str] = Counter()
    differ = 0
    for text, path in texts.items():
        own = "openai" if ChatTemplate(text).wants_parts else "string"
        theirs = _detect_content_format(text, default="string")
        found[theirs] += 1
        if own != theirs:
            differ += 1
            print(f"{path}: vLLM finds {theirs}, jaxengine {own}")
    print(f"{len(texts)} templates, {differ} differ; vLLM finds {dict(found)}")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
