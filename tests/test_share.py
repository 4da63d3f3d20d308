"""Landings take turns in the slow cases (`--share` of tests/conftest.py)."""

import pytest

from tests.conftest import in_share


def test_each_test_is_in_one_share() -> None:
    names = [f"tests/test_a.py::test_b[{i}]" for i in range(300)]
    shares = [[name for name in names if in_share(name, f"{i}/3")] for i in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert all(len(share) > 60 for share in shares)


@pytest.mark.parametrize("share", ["3/3", "1", "a/2", "-1/2", "0/0"])
def test_a_share_that_is_none_is_refused(share: str) -> None:
    with pytest.raises(pytest.UsageError, match="give I/N"):
        in_share("tests/test_a.py::test_b", share)
