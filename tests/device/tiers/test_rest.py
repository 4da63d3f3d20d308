import logging

from jaxengine.device.tiers.rest import FIRST_REST_S, LONGEST_REST_S, WARN_EVERY_S, RareWarnings, Rest


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_what_fails_rests_longer_each_time_and_starts_anew_once_it_worked():
    clock = Clock()
    rest = Rest(clock)
    lengths = []
    for _ in range(10):
        assert not rest.resting
        rest.failed()
        rest.failed()  # of several threads
        begin = clock.now
        while rest.resting:
            clock.now += 0.5
        lengths.append(clock.now - begin)
    assert lengths[:3] == [FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S]
    assert lengths[-1] == LONGEST_REST_S
    rest.worked()
    rest.failed()
    clock.now += FIRST_REST_S
    assert not rest.resting


def test_a_warning_of_a_kind_each_minute(caplog):
    clock = Clock()
    warnings = RareWarnings(clock)
    with caplog.at_level(logging.WARNING, logger="jaxengine"):
        for number in range(3):
            warnings.warn("read", "cannot read %d", number)
        warnings.warn("write", "cannot write %s", "100%")
        clock.now += WARN_EVERY_S
        warnings.warn("read", "cannot read %d", 3)
    assert caplog.messages == [
        "cannot read 0",
        "cannot write 100%",
        "cannot read 3 (2 more like this since the last warning)",
    ]
