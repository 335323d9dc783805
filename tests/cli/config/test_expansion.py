from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.config.document import Scalar
from phalanx.cli.config.expansion import expanded

ENVIRON = {"NAME": "job", "EMPTY": "", "NESTED": "${NAME}", "TRICK": "a, b: {c}\n- d"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("${NAME}", "job"),
        ("a-${NAME}-${NAME}", "a-job-job"),
        ("${NOBODY:-default}", "default"),
        ("${EMPTY:-default}", "default"),
        ("${NAME:-default}", "job"),
        ("${NOBODY:-}x", "x"),
        ("${NOBODY:-a:-b}", "a:-b"),
        ("${NESTED}", "${NAME}"),
        ("${TRICK}", "a, b: {c}\n- d"),
        ("$$", "$"),
        ("$${NAME}", "${NAME}"),
        ("$$$${NAME}", "$${NAME}"),
        ("$$${NAME}", "$job"),
        ("$NAME $ 5$", "$NAME $ 5$"),
    ],
)
def test_variables_are_replaced_in_a_value(written: str, meant: str) -> None:
    assert expanded(Scalar(written, "text", 1), ENVIRON).text == meant


def test_what_a_variable_leaves_empty_is_nothing_and_anything_else_is_text() -> None:
    assert expanded(Scalar("${EMPTY}", "text", 1), ENVIRON).kind == "nothing"
    assert expanded(Scalar("${NOBODY:-3}", "text", 1), ENVIRON).kind == "text"
    assert expanded(Scalar("3", "number", 1), ENVIRON).kind == "number"


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            "${NOBODY}",
            r"the variable NOBODY is not set; write \$\{NOBODY:-default\}, or \$\$\{NOBODY\} for the text itself",
        ),
        ("${NAME", r"'\$\{NAME' is no variable; write \$\{NAME\}, or \$\$ for a dollar"),
        ("${}", r"'\$\{\}' is no variable"),
        ("${A B}", "is no variable"),
        ("${1}", "is no variable"),
        ("${A:+x}", "is no variable"),
    ],
)
def test_what_cannot_be_replaced_is_a_mistake(written: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        expanded(Scalar(written, "text", 1), ENVIRON)


@given(st.text())
def test_any_text_can_be_written_with_its_dollars_doubled(text: str) -> None:
    assert expanded(Scalar(text.replace("$", "$$"), "text", 1), {}).text == text
