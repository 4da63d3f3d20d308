import pytest

from buckets import Bucket


def test_a_bucket_counts_its_places():
    assert Bucket(4, 128).tokens == 512
    assert str(Bucket(4, 128)) == "4x128"


@pytest.mark.parametrize(("batch", "seq"), [(0, 1), (1, 0), (-1, 4)])
def test_a_bucket_has_a_place(batch, seq):
    with pytest.raises(ValueError, match=f"batch={batch} seq={seq}"):
        Bucket(batch, seq)
