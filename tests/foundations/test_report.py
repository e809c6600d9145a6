"""A report shows what was predicted beside what was measured."""

from flashgp.foundations.report import Report


def test_predicted_and_measured_stand_side_by_side() -> None:
    report = Report(
        route="direct", predicted_bytes=3 * 2**20, peak_bytes=2**21, predicted_seconds=0.25, seconds=2.0, plan=object()
    )
    assert report.lines() == [
        ("route", "direct"),
        ("peak memory", "3.0 MiB predicted, 2.0 MiB measured"),
        ("time", "250.0 ms predicted, 2.0 s measured"),
    ]
    assert "3.0 MiB predicted, 2.0 MiB measured" in str(report)
    assert "250.0 ms predicted, 2.0 s measured" in report._repr_html_()


def test_what_is_known_of_only_one_side() -> None:
    assert Report(peak_bytes=2**21).lines() == [("peak memory", "2.0 MiB measured")]
    assert Report(predicted_seconds=2.0, peak_bytes=0).lines() == [
        ("peak memory", "0 B measured"),
        ("time", "2.0 s predicted"),
    ]
    assert Report().lines() == []
