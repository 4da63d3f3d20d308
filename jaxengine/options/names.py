"""Names that users of vLLM and OpenAI bring and that are no names here: what becomes of each, as `names.toml` says.

A name that is known is never "unknown". A value that asks for what is done anyway passes; so does None, which is a name that
is not given. Any other value becomes an option of ours, or has no effect that could be seen in an answer and is noted in the log,
or is refused with what there is instead. The options that do exist are declared in `config.py` and `server/options.py`, vLLM's
names among their own. The file is read when a name is first asked for that is no option: most starts never do.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jaxengine.errors import ConfigError, nearest

logger = logging.getLogger("jaxengine")

FATES = {"refused": "refused", "no_effect": "no effect", "read_as": "read as"}
"""What may become of values, as the file has it and as readers see it."""


NUMBERS = frozenset({"log_stats_interval", "kv_offloading_size", "max_audio_clip_filesize_mb"})
"""Options that are numbers, of those that other names and environment variables stand for."""


@dataclass(frozen=True, slots=True)
class Name:
    """What becomes of a name of an option, or of an environment variable.

    `says` is a sentence: what there is instead, or why there is nothing to choose. `neutral` are values that ask for what is done
    anyway; the type of the first says how the command line reads it: a flag, several words (a list), or one. `means` is an
    option, an option and one of its keys (`hf_overrides.rope_theta`), or options with the values that they get. `keys` are, for
    a value that is a mapping, the options that its keys are; empty where there is nothing to choose.
    """

    says: str
    fate: str
    neutral: tuple[Any, ...] = ()
    means: str | Mapping[str, Any] = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    short: str | None = None

    @property
    def is_flag(self) -> bool:
        """Whether the command line takes it without a value."""
        return bool(self.neutral) and isinstance(self.neutral[0], bool)

    @property
    def is_list(self) -> bool:
        """Whether the command line takes several words."""
        return bool(self.neutral) and isinstance(self.neutral[0], list)

    def options(self, name: str, value: Any) -> Mapping[str, Any]:
        """The options that a value stands for, often none.

        Raises:
            ConfigError: it asks for what is not built.
        """
        if value is None or _word(value) in {"none", *map(_word, self.neutral)}:
            return {}
        if self.fate == "refused":
            raise ConfigError(f"{name}={value!r} is refused: {self.says}")
        if self.fate == "no effect":
            logger.warning("%s=%r has no effect: %s", name, value, self.says)
            return {}
        if self.keys:
            given = as_mapping(name, value)
            if others := sorted(given.keys() - self.keys.keys()):
                raise ConfigError(f"{name}: {', '.join(others)} is refused; it may have {', '.join(self.keys)}")
            return {option: given[key] for key, option in self.keys.items() if option and given.get(key)}
        if isinstance(self.means, Mapping):
            return self.means
        option, _, key = self.means.partition(".")
        if option in NUMBERS:
            logger.info("%s=%s is read as %s: %s", name, value, option, self.says)
            return {option: _read(value)}
        return {option: {key: _read(value)} if key else value}


@cache
def known_names(section: str = "options") -> Mapping[str, Name]:
    """What becomes of each of vLLM's names of `options`, or of its `variables`, in the order of the file."""
    found = {}
    for group in _file()[section]:
        fate = next(word for word in FATES if word in group)
        means, keys, taken = (group.get(part, {}) for part in ("means", "keys", "taken"))
        for name in dict.fromkeys((*group.get("names", ()), *taken, *means, *keys)):
            value = taken.get(name)
            neutral = () if value is None else tuple(value) if isinstance(value, list) and value else (value,)
            short = group.get("short", {}).get(name)
            found[name] = Name(group[fate], FATES[fate], neutral, means.get(name, ""), keys.get(name, {}), short)
    return found


def reasons(section: str) -> Mapping[str, Any]:
    """What a section without groups says of each name, such as why `sampling` has no such field."""
    said: Mapping[str, Any] = _file()[section]
    return said


@cache
def _file() -> Mapping[str, Any]:
    import tomllib

    with Path(__file__).with_suffix(".toml").open("rb") as file:
        return tomllib.load(file)


def translate(options: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Options in names of ours (`own`) alone. What stands for a key of an option is merged with what was given of it.

    Raises:
        ConfigError: a name that is not known (with the nearest of `own`), a value that asks for what is not built, or an option
            that is given twice.
    """
    translated = {name: value for name, value in options.items() if name in own}
    for name, value in options.items():
        if name in own:
            continue
        if name not in known_names():
            raise ConfigError(f"unknown option {name!r}.{nearest(name, own)}")
        # What it stands for may be an option of the server, which has no meaning for an engine alone.
        for option, meant in translate(known_names()[name].options(name, value), own).items():
            before = translated.get(option)
            if isinstance(meant, Mapping):
                meant = {**meant, **(as_mapping(option, before) if before else {})}
            elif before is not None and before != meant:
                raise ConfigError(f"{name!r} means {option}={meant!r}, and {option}={before!r} is given too; give one")
            translated[option] = meant
    return translated


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that vLLM's environment variables stand for. Those that stand for none are named in the log, once a process.

    Raises:
        ConfigError: a value that cannot be read.
    """
    options: dict[str, Any] = {}
    for name in sorted(environ):
        if not name.startswith(("VLLM_", "PT_HPU_")):
            continue
        known = known_names("variables").get(name)
        if known is None or known.fate == "no effect":
            _notice(f"the variable {name} has no effect: {known.says if known else 'It means nothing here.'}")
            continue
        for option, value in known.options(name, environ[name]).items():
            options[option] = _number(name, value) if option in NUMBERS else value
    return options


def _number(variable: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"the variable {variable} must be a number, got {text!r}") from None


@cache
def _notice(text: str) -> None:
    logger.warning("%s", text)


def as_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """An option that maps names to values, which may be written as JSON.

    Raises:
        ConfigError: it is no such mapping.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{name} must be a JSON object: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must map names to values, got {value!r}")
    return dict(value)


def _read(value: Any) -> Any:
    """A value that the command line or the environment may have left as text, though it is JSON or a number."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value


def _word(value: Any) -> str:
    """A value as it would be written: 0, 0.0 and "0" are one, as are true and True, and whatever is empty."""
    if isinstance(value, (list, tuple, set, Mapping)):
        return json.dumps(value, default=str) if value else ""
    text = str(value).strip().lower()
    try:
        return f"{float(text):g}"
    except ValueError:
        return "" if text in ("{}", "[]") else text
