"""vLLM's names that are no options here, today's and former ones: what becomes of each, in one table.

A name that is known is never "unknown". A value that asks for what is done anyway passes; so does None, which is a name that
is not given. Any other value becomes an option of ours, or has no effect that could be seen in an answer and is noted in the log,
or is refused with what there is instead. The options that do exist are declared in `config.py` and `server/options.py`, vLLM's
names among their own; the command line and `examples/docs/options.md` are made from both.

    name            what becomes of a name's values
    model_names     \
    device_names     | the table, by what the names are of
    step_names       |
    server_names    /
    variables       environment variables
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jaxengine.errors import ConfigError, nearest
from jaxengine.options.names.device_names import DEVICE_NAMES
from jaxengine.options.names.model_names import MODEL_NAMES
from jaxengine.options.names.name import Name, as_mapping
from jaxengine.options.names.server_names import SERVER_NAMES
from jaxengine.options.names.step_names import STEP_NAMES
from jaxengine.options.names.variables import VARIABLES, Variable, read_environment

__all__ = ["NAMES", "VARIABLES", "Name", "Variable", "as_mapping", "read_environment", "translate"]

NAMES: Mapping[str, Name] = {**MODEL_NAMES, **DEVICE_NAMES, **STEP_NAMES, **SERVER_NAMES}


def translate(options: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Options in names of ours (`own`) alone. What stands for a key of an option is merged with what was given of it.

    Raises:
        ConfigError: a name that nobody knows (with the nearest of `own`), a value that asks for what is not built, or an option
            that is given twice.
    """
    translated = {name: value for name, value in options.items() if name in own}
    for name, value in options.items():
        if name in own:
            continue
        if name not in NAMES:
            raise ConfigError(f"unknown option {name!r}.{nearest(name, own)}")
        # What it stands for may be an option of the server, which has no meaning for an engine alone.
        for option, meant in translate(NAMES[name].options(name, value), own).items():
            before = translated.get(option)
            if isinstance(meant, Mapping):
                meant = {**meant, **(as_mapping(option, before) if before else {})}
            elif before is not None and before != meant:
                raise ConfigError(f"{name!r} means {option}={meant!r}, and {option}={before!r} is given too; give one")
            translated[option] = meant
    return translated
