"""The least of what programs take, and no more than the threads work."""

from __future__ import annotations

import time

import pytest

from jaxengine.device.runtime.program_times import ProgramTimes


@pytest.mark.parametrize(("on_threads", "least", "most"), [(True, 0.0, 0.02), (False, 0.03, 1e3)])
def test_time_in_which_no_thread_works_is_not_a_programs_own(on_threads, least, most):
    times = ProgramTimes(lambda name, seconds: time.sleep(seconds), on_threads=on_threads)
    times("program", 0.2)
    times("program", 0.03)
    assert least <= times.least["program"] < most
