"""What a launcher decides of its workers' environment."""

from __future__ import annotations

import pytest

from phalanx.launcher.environment import check_env, leaves_omp_to_us


def test_threads_are_limited_where_workers_share_the_cpus_and_nobody_has_said_how_many() -> None:
    assert leaves_omp_to_us({}, 4)
    assert not leaves_omp_to_us({}, 1)
    assert not leaves_omp_to_us({"OMP_NUM_THREADS": "8"}, 4)


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"": "x"}, "'' is no name"),
        ({"A=B": "x"}, "'A=B' is no name"),
        ({"A\0": "x"}, "is no name"),
        ({"A": "x\0y"}, "the value of A has a NUL"),
    ],
)
def test_a_variable_that_no_environment_can_hold_is_refused(env: dict[str, str], reason: str) -> None:
    check_env({"FINE": "", "with space": "a=b"})
    with pytest.raises(ValueError, match=reason):
        check_env(env)
