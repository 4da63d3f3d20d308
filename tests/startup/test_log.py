"""Where the log goes, and what its lines look like."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from jaxengine.startup.log import FORMATTERS

SCRIPT = """
import logging
from jaxengine.startup.log import show_log
show_log()
logging.getLogger("jaxengine").info("plain")
show_log("text")
logging.getLogger("jaxengine").warning("stamped")
logging.getLogger("uvicorn.access").info("served")
"""


def record(message: str) -> logging.LogRecord:
    try:
        raise ValueError("why")
    except ValueError:
        return logging.LogRecord("jaxengine", logging.ERROR, "f", 1, message, (3,), sys.exc_info())


def test_a_line_of_json_has_everything() -> None:
    line = json.loads(FORMATTERS["json"].format(record("request %d\nfailed")))
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "jaxengine", "request 3\nfailed")
    assert line["time"].endswith("+00:00")
    assert "ValueError: why" in line["exception"]


@pytest.mark.parametrize("own", [False, True])
def test_lines_have_time_and_level_once_a_server_says_so(own: bool) -> None:
    begin = "import logging\nlogging.basicConfig(format='own %(message)s', level=20)\n" if own else ""
    done = subprocess.run([sys.executable, "-c", begin + SCRIPT], capture_output=True, text=True, timeout=60)
    plain, stamped, served = done.stderr.splitlines()
    if own:
        assert (plain, stamped, served) == ("own plain", "own stamped", "own served")
        return
    assert plain == "plain"
    assert stamped.endswith(" WARNING stamped")
    assert served.endswith(" INFO served")
    assert stamped[:2] == "20"


def test_lines_of_one_of_several_engines_begin_with_its_name() -> None:
    script = f"{SCRIPT}from jaxengine.startup.log import name_lines\nname_lines('engine 3')\n"
    script += "logging.getLogger('jaxengine.host').warning('%d%%', 5)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].endswith(" WARNING engine 3: 5%")
