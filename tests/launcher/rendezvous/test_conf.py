"""The keys of ``--rdzv-conf``."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.launcher.rendezvous.conf import SETTINGS, Conf, read_conf
from phalanx.rendezvous.settings import Growth

# A value that each key takes.
EXAMPLES = {
    "keep_alive_max_attempt": "4",
    "join_policy": "never",
    "master_port_range": "29500-29600",
    "store_port": "29501",
    "is_host": "true",
    "store_type": "file",
    "protocol": "https",
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.key)
def test_each_key_is_taken_and_reaches_its_field(setting: object) -> None:
    key, field = setting.key, setting.field  # type: ignore[attr-defined]
    conf, unknown = read_conf({key: EXAMPLES.get(key, "7")})
    assert not unknown
    if field is None:
        assert conf == Conf()
    else:
        assert getattr(conf, field) != getattr(Conf(), field)


def test_the_defaults_are_those_of_the_table() -> None:
    defaults = {one.key: one.default for one in SETTINGS if one.default and one.field}
    for key, text in defaults.items():
        try:
            conf, _ = read_conf({key: text})
        except ValueError:  # a default in words
            assert key in ("join_timeout", "store_port", "is_host"), key
            continue
        assert conf == Conf(), key


def test_the_lease_is_interval_times_attempts() -> None:
    assert Conf().ttl_s == 15
    assert read_conf({"keep_alive_interval": "1", "keep_alive_max_attempt": "3"})[0].ttl_s == 3
    with pytest.raises(ValueError, match=r"is 0\.3 s; a lease lasts 1 s or more"):
        read_conf({"keep_alive_interval": "0.1"})


def test_an_unknown_key_is_told_with_the_nearest_one_and_changes_nothing() -> None:
    conf, unknown = read_conf({"joint_timeout": "3", "last_call_timeout": "1"})
    assert conf == Conf(last_call_timeout=1.0)
    assert unknown == ("nobody knows the key 'joint_timeout', perhaps join_timeout; it has no effect",)


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("join_timeout", "0", "join_timeout must be more than 0 seconds"),
        ("join_timeout", "nan", "join_timeout must be a time in seconds, not 'nan'"),
        ("last_call_timeout", "-1", "last_call_timeout must be a time in seconds, not '-1'"),
        (
            "keep_alive_max_attempt",
            "1.5",
            "keep_alive_max_attempt must be a whole number of 1 or more, not '1.5'",
        ),
        ("is_host", "maybe", "is_host must be true or false, not 'maybe'"),
        ("store_type", "hash", "store_type must be tcp or file, not 'hash'"),
        ("join_policy", "later", "join_policy must be one of now, at-checkpoint, never, not 'later'"),
        ("store_port", "0", "store_port must be a port, not '0'"),
        ("master_port_range", "9", "master_port_range must be two ports as in 29500-29600, not '9'"),
        ("endpoint", "h0", "endpoint is no key of it; --rdzv-endpoint says it"),
    ],
)
def test_a_value_that_cannot_be_used_is_one_sentence(key: str, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        read_conf({key: text})


def test_yes_and_no_in_the_spellings_of_torchrun_and_in_others() -> None:
    for text, meant in {"True": True, "1": True, "yes": True, "False": False, "0": False, "n": False}.items():
        assert read_conf({"is_host": text})[0].is_host is meant


def test_when_newcomers_are_taken_in_is_said_in_words() -> None:
    assert read_conf({"join_policy": "At-Checkpoint"})[0].join_policy is Growth.AT_CHECKPOINT


@given(
    st.dictionaries(
        st.sampled_from([one.key for one in SETTINGS]), st.text(min_size=1, max_size=10), max_size=4
    )
)
def test_any_text_is_read_or_refused_with_a_sentence(raw: dict[str, str]) -> None:
    try:
        read_conf(raw)
    except ValueError as error:
        sentence = str(error)
    else:
        return
    assert "invalid literal" not in sentence
    assert "\n" not in sentence
