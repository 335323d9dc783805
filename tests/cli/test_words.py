from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import HELP, OPTIONS, VERSION, Option
from phalanx.cli.words import read_words

VALUED = [option for option in OPTIONS if not option.is_switch]
SWITCHES = [option for option in OPTIONS if option.is_switch]
EVERY_SPELLING = sorted(spelling for option in (*OPTIONS, HELP, VERSION) for spelling in option.spellings)

# What a script may be given: anything at all, and often something that looks like one of our own flags.
ours = st.sampled_from([*EVERY_SPELLING, "-h", "-m", "-r", "-t", "--", "-"])
prefixes = st.sampled_from(EVERY_SPELLING).flatmap(
    lambda flag: st.integers(1, len(flag)).map(lambda end: flag[:end])
)
text = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
argument = st.one_of(
    text, ours, prefixes, st.tuples(ours, text).map("=".join), st.tuples(prefixes, text).map("=".join)
)

flags_before = st.lists(
    st.sampled_from(
        [
            ("--nnodes", "1"),
            ("--nproc_per_node=2",),
            ("--standalone",),
            ("--max-r", "3"),
            ("-r3",),
            ("-t", "0:3"),
            ("-m",),
            ("--rdzv-conf", "a=b,c=d"),
            ("--node-rank", "-1"),
            ("--role", "-"),
        ]
    ),
    max_size=4,
).map(lambda groups: [word for group in groups for word in group])


@given(flags=flags_before, tail=st.lists(argument, max_size=8))
def test_nothing_after_the_script_is_read(flags: list[str], tail: list[str]) -> None:
    line = read_words([*flags, "train.py", *tail])

    assert line.script == "train.py"
    assert list(line.arguments) == tail
    assert line == read_words([*flags, "train.py", *tail])
    assert line.given == read_words([*flags, "train.py"]).given


@given(flags=flags_before, script=argument, tail=st.lists(argument, max_size=4))
def test_after_two_dashes_the_next_word_is_the_script_whatever_it_looks_like(
    flags: list[str], script: str, tail: list[str]
) -> None:
    line = read_words([*flags, "--", script, *tail])

    assert (line.script, list(line.arguments)) == (script, tail)


@given(words=st.lists(argument, max_size=8))
def test_any_words_at_all_are_read_or_refused_in_one_sentence(words: list[str]) -> None:
    try:
        read_words(words)
    except UsageError as mistake:
        sentence = str(mistake)
    else:
        return
    assert sentence


@pytest.mark.parametrize("option", VALUED, ids=lambda option: option.name)
def test_a_flag_takes_its_value_in_both_spellings_as_the_next_word_or_after_an_equals_sign(
    option: Option,
) -> None:
    for spelling in option.spellings:
        for words in ([spelling, "some value"], [f"{spelling}=some value"]):
            assert read_words([*words, "train.py"]).given == {option.dest: "some value"}


@pytest.mark.parametrize("option", SWITCHES, ids=lambda option: option.name)
def test_a_switch_stands_alone_in_both_spellings(option: Option) -> None:
    for spelling in option.spellings:
        line = read_words([spelling, "train.py"])
        assert (line.given, line.script) == ({option.dest: "1"}, "train.py")


def test_the_two_spellings_may_be_mixed_up_in_one_flag_only_where_one_of_them_is_meant() -> None:
    with pytest.raises(UsageError, match=r"^unknown flag --nproc-per_node; did you mean --nproc-per-node\?$"):
        read_words(["--nproc-per_node", "2", "train.py"])


@pytest.mark.parametrize("words", [["-r", "3"], ["-r3"], ["-r=3"], ["--redirects=3"], ["--redir", "3"]])
def test_a_short_flag_takes_its_value_apart_attached_or_after_an_equals_sign(words: list[str]) -> None:
    assert read_words([*words, "train.py"]).given == {"redirects": "3"}


@pytest.mark.parametrize("words", [["-m", "pkg.train"], ["-mpkg.train"], ["--module", "pkg.train"]])
def test_a_module_is_named_after_the_flag_or_attached_to_it(words: list[str]) -> None:
    line = read_words([*words, "-t"])
    assert (line.given, line.script, line.arguments) == ({"module": "1"}, "pkg.train", ("-t",))


def test_of_a_flag_that_is_given_twice_the_last_one_counts() -> None:
    assert read_words(["--tee=1", "-t", "3", "train.py"]).given == {"tee": "3"}


def test_an_empty_value_after_an_equals_sign_is_a_value() -> None:
    assert read_words(["--log-dir=", "-t=", "train.py"]).given == {"log_dir": "", "tee": ""}


@pytest.mark.parametrize("number", ["-1", "-0.5", "-3e2"])
def test_a_negative_number_is_a_value_and_not_a_flag(number: str) -> None:
    assert read_words(["--node-rank", number, "train.py"]).given == {"node_rank": number}


@pytest.mark.parametrize(
    ("prefix", "dest"),
    [
        ("--nproc", "nproc_per_node"),
        ("--max-r", "max_restarts"),
        ("--stand", "standalone"),
        ("--nn", "nnodes"),
        ("--log-m", "log_max_size"),
        ("--log_l", "log_line_prefix_template"),
        ("--std", "stderr_tail"),
    ],
)
def test_a_flag_may_be_shortened_while_one_option_begins_so(prefix: str, dest: str) -> None:
    assert list(read_words([f"{prefix}=1" if dest != "standalone" else prefix, "train.py"]).given) == [dest]


def test_an_abbreviation_that_torchrun_takes_is_not_made_ambiguous_by_an_option_of_ours() -> None:
    assert read_words(["--log-", "logs", "train.py"]).given == {"log_dir": "logs"}


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["--he"], ["--nnodes", "1", "-h", "train.py"]])
def test_help_before_the_script_is_ours(words: list[str]) -> None:
    assert read_words(words).wants is HELP


def test_help_after_the_script_is_the_scripts_own() -> None:
    line = read_words(["train.py", "-h", "--version"])
    assert (line.wants, line.arguments) == (None, ("-h", "--version"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nporc", "2", "x.py"], "unknown flag --nporc; did you mean --nproc-per-node?"),
        (["--max_restart_s", "2", "x.py"], "unknown flag --max_restart_s; did you mean --max-restarts?"),
        (["--lr", "0.1", "x.py"], "unknown flag --lr; flags of your program go after its name"),
        (["-x", "x.py"], "unknown flag -x; flags of your program go after its name"),
        (["--no", "x.py"], "--no could be --node-rank or --no-python; write one of them"),
        (["--tee"], "--tee needs a value: --tee STREAMS"),
        (
            ["--rdzv-conf", "--nnodes", "1", "x.py"],
            "--rdzv-conf needs a value, and --nnodes looks like a flag; write --rdzv-conf=--nnodes if it is the value",
        ),
        (
            ["--role", "--", "x.py"],
            "--role needs a value, and -- looks like a flag; write --role=-- if it is the value",
        ),
        (["--standalone=yes", "x.py"], "--standalone takes no value; leave out '=yes'"),
    ],
)
def test_a_mistake_in_a_flag_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_words(words)
    assert str(caught.value) == sentence
