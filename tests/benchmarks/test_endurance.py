from __future__ import annotations

from benchmarks.endurance import CASE, Sample, aims_of, growth


def test_the_last_third_is_compared_with_the_one_before() -> None:
    grows = [
        Sample(at_s, {"memory_mb": 100 + at_s} | ({} if at_s % 10 else {"heap_mb": 50 + at_s % 7}))
        for at_s in range(300)
    ]
    figures = growth(grows, 0, 300)
    assert figures == {"memory_mb_before": 299, "memory_mb_last": 399, "heap_mb_before": 56, "heap_mb_last": 56}
    met = {aim.what.split()[0]: aim.as_json()["met"] for aim in aims_of({CASE: figures})}
    assert (met["memory_mb"], met["heap_mb"]) == (False, True)
    # An aim without a measured figure is not met, as without jcmd.
    assert not met["code_mb"]
