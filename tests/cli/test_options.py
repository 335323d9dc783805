from __future__ import annotations

import pytest

from phalanx.cli.options import GROUPS, HELP, OPTIONS, VERSION, Option


def test_no_two_options_share_a_spelling_or_a_variable() -> None:
    known = (*OPTIONS, HELP, VERSION)
    spellings = [s for option in known for s in (*option.spellings, f"-{option.short}") if s != "-None"]
    variables = [variable for option in OPTIONS for variable in option.variables]

    assert len(set(spellings)) == len(spellings)
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_row_is_whole(option: Option) -> None:
    assert option.group in GROUPS
    assert option.help
    assert not option.help.endswith(".")
    assert option.is_switch == (option.default == "0" and isinstance(option.read("1"), bool))
    if option.default is not None:
        option.read(option.default)  # a default is text that a user could write


def test_an_option_of_one_word_has_one_spelling_and_a_variable_of_its_own_name() -> None:
    (option,) = [option for option in OPTIONS if option.name == "standalone"]
    assert option.spellings == ("--standalone",)
    assert option.variables == ("PET_STANDALONE",)
