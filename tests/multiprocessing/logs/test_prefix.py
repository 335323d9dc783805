"""The text before each teed line."""

from __future__ import annotations

import re

from phalanx.multiprocessing.prefix import LinePrefix, prefix_for


def test_the_default_is_role_and_local_rank() -> None:
    assert prefix_for(None, role="default", rank=12, local_rank=4) == "[default4]:"


def test_a_template_knows_rank_local_rank_role_host_and_round() -> None:
    template = "${role_name} $rank/$local_rank ${host} r$round| "
    assert prefix_for(template, role="w", rank=12, local_rank=4, host="n7", round=3) == "w 12/4 n7 r3| "


def test_unknown_variables_stay_as_they_are() -> None:
    assert prefix_for("$pid ${x} $", role="w", rank=0, local_rank=0) == "$pid ${x} $"


def test_an_empty_template_is_no_prefix() -> None:
    assert LinePrefix(prefix_for("", role="w", rank=0, local_rank=0)).now() == b""


def test_time_is_that_of_the_line_and_not_of_the_start() -> None:
    text = prefix_for("${time} [$rank] ", role="w", rank=1, local_rank=1)
    prefix = LinePrefix(text)
    first = prefix.now()
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d \[1\] ", first)
    prefix._second -= 1  # as if the cached second were over
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d \[1\] ", prefix.now())


def test_a_user_text_that_looks_like_a_variable_is_not_the_time() -> None:
    assert LinePrefix("$time ${time} ").now() == b"$time ${time} "
