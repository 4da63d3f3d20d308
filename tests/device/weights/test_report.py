"""Counting a load from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from jaxengine.device.weights.report import LoadReport, Tracker


def test_the_line() -> None:
    report = LoadReport(num_read=3, num_tensors=4, bytes_read=2_000_000_000, total_bytes=4_000_000_000, seconds=0.5)
    assert report.gigabytes_per_s == 4.0
    assert str(report) == "3/4 tensors, 2.00 of 4.00 GB in 0.5 s (4.00 GB/s)"


def test_a_load_that_takes_no_time_has_a_speed() -> None:
    assert LoadReport(0, 0, 0, 0, 0.0).gigabytes_per_s == 0.0


def test_reports_count_up_whatever_thread_they_come_from() -> None:
    reports: list[LoadReport] = []
    tracker = Tracker([10] * 200, reports.append)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: tracker.add(10), range(200)))
    assert [report.num_read for report in reports] == list(range(1, 201))
    assert [report.bytes_read for report in reports] == list(range(10, 2001, 10))
    assert reports[-1].bytes_read == reports[-1].total_bytes
    assert [report.seconds for report in reports] == sorted(report.seconds for report in reports)


def test_nobody_has_to_listen() -> None:
    Tracker([1], None).add(1)
