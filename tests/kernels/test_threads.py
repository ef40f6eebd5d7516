"""Ranges cover everything once, on as many threads as allowed."""

import os
import threading

import pytest

from signfade.kernels.threads import available_threads, run_ranges


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_ranges_are_disjoint_and_cover_all(count: int, threads: int) -> None:
    seen: list[int] = []
    lock = threading.Lock()

    def work(first: int, last: int) -> None:
        with lock:
            seen.extend(range(first, last))

    run_ranges(work, count, threads)
    assert sorted(seen) == list(range(count))


def test_more_threads_than_one_run_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=20)
    run_ranges(
        lambda first, last: (together.wait(), None)[1], 3, 3
    )  # would time out if one waited for another


def test_an_error_in_any_range_comes_back() -> None:
    def work(first: int, last: int) -> None:
        if first > 0:
            raise RuntimeError("the second half fails")

    with pytest.raises(RuntimeError, match="second half"):
        run_ranges(work, 10, 2)


@pytest.mark.parametrize(
    ("wanted", "expected"), [("1", 1), ("4096", None), ("0", None), ("2,3", None), ("", None)]
)
def test_environment_bounds_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, wanted: str, expected: int | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = available_threads()
    assert 1 <= cores <= (os.cpu_count() or 1)
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert available_threads() == (expected or cores)
