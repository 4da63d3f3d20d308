import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.disk import DiskOptions, read_disk_options


def shared(path="/pages", role="kv_both"):
    extra = {} if path is None else {"shared_storage_path": path}
    return {"kv_connector": "SharedStorageConnector", "kv_role": role, "kv_connector_extra_config": extra}


def test_a_directory_and_its_size():
    assert read_disk_options(None, None, {}) is None
    assert read_disk_options("/pages", None, {}) == DiskOptions(directory="/pages")
    assert read_disk_options("/pages", 1.5, {}) == DiskOptions(directory="/pages", max_bytes=3 << 29)
    assert read_disk_options("/pages", None, {"kv_connector": "TcpConnector"}) == DiskOptions(directory="/pages")


@pytest.mark.parametrize(
    ("role", "reads", "writes"),
    [("kv_both", True, True), ("kv_producer", False, True), ("kv_consumer", True, False)],
)
def test_vllm_s_connector_says_the_directory_and_who_writes(role, reads, writes):
    asked = read_disk_options(None, 2, shared(role=role))
    assert asked == DiskOptions(directory="/pages", max_bytes=2 << 30, reads=reads, writes=writes)


@pytest.mark.parametrize(
    ("directory", "size", "transfer", "message"),
    [
        (None, 5, {}, "kv_offloading_disk_size=5 needs kv_offloading_directory"),
        ("", None, {}, "must be the path of a directory, got ''"),
        ("/pages", None, shared(), "are the same thing"),
        (None, None, shared(None), "needs the directory that engines share.*got None"),
        (None, None, shared(7), "got 7"),
    ],
)
def test_what_contradicts_itself_is_refused(directory, size, transfer, message):
    with pytest.raises(ConfigError, match=message):
        read_disk_options(directory, size, transfer)
