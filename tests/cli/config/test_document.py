"""YAML 1.2, its lines, and what a file may not hold."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.cli.config.document import Entries, Items, Scalar, read_document
from phalanx.cli.config.document import Mistakes as Collected
from phalanx.cli.mistakes import UsageError
from phalanx.cli.sources import JobFile

Reading = Callable[..., JobFile]
Mistakes = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("2:4", "text"),
        ("on", "text"),
        ("no", "text"),
        ("'5'", "text"),
        ("2026-01-01", "text"),
        ("12:30:45", "text"),
        ("007", "number"),
        ("1e-3", "number"),
        ("0.10", "number"),
        ("true", "truth"),
        ("~", "nothing"),
        ("null", "nothing"),
    ],
)
def test_a_scalar_is_read_as_yaml_1_2_and_keeps_its_text(written: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(f"\n\nkey: {written}\n")
    found = Collected("f.yaml")
    (entry,) = read_document(str(tmp_path / "f.yaml"), found).entries
    assert entry.value == Scalar(written.strip("'"), kind, 3)  # type: ignore[arg-type]
    assert entry.line == 3


def test_lists_and_maps_know_their_lines(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("a:\n- x\n- y: [1,\n   2]\n")
    (entry,) = read_document(str(tmp_path / "f.yaml"), Collected("f")).entries
    assert isinstance(entry.value, Items)
    text, inner = entry.value.items
    assert text.line == 2
    assert isinstance(inner, Entries)
    assert isinstance(inner.entries[0].value, Items)
    assert [one.line for one in inner.entries[0].value.items] == [3, 4]


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "~\n", "\ufeffjob:\n"])
def test_a_file_without_anything_says_nothing(text: str, read: Reading) -> None:
    found = read(text)
    assert (found.texts, found.program, found.env) == ({}, None, {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- a\n", "job.yaml:1: the file must be a map of sections"),
        ("a\n", "job.yaml:1: the file must be a map of sections"),
        ("job:\n  role: [a\n", "job.yaml:3: this is no YAML: while parsing a flow sequence"),
        ("job:\n\trole: a\n", "job.yaml:2: this is no YAML: while scanning for the next token"),
        ("job:\n---\nenv:\n", "job.yaml:2: this is no YAML: expected a single document"),
        ("job: *x\n", "job.yaml:1: this is no YAML: found undefined alias 'x'"),
        ("job: a\x00b\n", "job.yaml:1: this is no YAML: unacceptable character"),
        ("%YAML 1.1\n---\njob:\n", "job.yaml:1: a directive is not read here; the file is YAML 1.2"),
        ("job:\n  role: !include x\n", "job.yaml:2: job.role: the tag !include is not read here"),
        (
            "job:\n  role: !!python/object:os.system x\n",
            "job.yaml:2: job.role: the tag python/object:os.system is not read here",
        ),
        ("job:\n  role: !!binary aGk=\n", "job.yaml:2: job.role: the tag binary is not read here"),
        ("job: !!set {a, b}\n", "job.yaml:1: job: the tag set is not read here"),
        ("job:\n  <<: {role: a}\n", "job.yaml:2: job.<<: YAML 1.2 has no merge keys"),
        ("job:\n  [a, b]: c\n", "job.yaml:2: job: a key must be a plain word"),
        (
            "job:\n  role: a\n  role: b\n",
            "job.yaml:3: job.role: the key is there twice, first in line 2",
        ),
        ("job:\nenv:\njob:\n", "job.yaml:3: job: the key is there twice, first in line 1"),
        (
            "elastic: {nproc_per_node: ${N}}\n",
            'inside of { } and [ ] a variable stands in quotes: "${NAME}"',
        ),
        ("env: " + "[" * 5000, "job.yaml:1: lists and maps are nested too deeply"),
        ("env: " + "[" * 30 + "]" * 30, "lists and maps are too many, or nested too deeply"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_plain_yaml_is_a_mistake_with_its_line(
    text: str, sentence: str, mistakes: Mistakes
) -> None:
    (told,) = mistakes(text)
    assert sentence in told


def test_an_anchor_may_be_used_again(read: Reading) -> None:
    found = read("job:\n  role: &name trainer\nenv:\n  NAME: *name\n")
    assert found.env["NAME"].text == "trainer"


def test_aliases_of_aliases_blow_nothing_up(mistakes: Mistakes) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (told,) = [one for one in mistakes("\n".join(lines) + "\n") if "too many" in one]
    assert "lists and maps are too many, or nested too deeply" in told


def test_an_alias_to_what_it_is_in_is_no_endless_loop(mistakes: Mistakes) -> None:
    (told,) = mistakes("env: &all\n  A: [*all]\n")
    assert "nested too deeply" in told


# What YAML is made of, and what it is not made of.
FRAGMENTS = [
    *"[]{}&*!|>'\"\\#?:,%@`=\t\n",
    *(
        "job:",
        "elastic:",
        "  nnodes: ",
        "2:4",
        "script:",
        "  args: ",
        "- ",
        "  ",
        "&a ",
        "*a",
        "---",
        "...",
        "<<: ",
    ),
    *(
        "!!int ",
        "!x ",
        "!!binary ",
        "!<tag:x> ",
        "%YAML 1.1",
        "|2-\n",
        "0x1",
        "1e9",
        ".inf",
        "~",
        "true",
        "env:\n  A: ",
    ),
    *(
        "${A}",
        "${",
        "$$",
        "\x85",
        "\u2028",
        "\x00",
        "é",
        "training:\n  lr: ",
        "distributed:",
        "  max_nodes: ",
        "  tee: ",
    ),
]


@given(parts=st.lists(st.sampled_from(FRAGMENTS), max_size=14))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_is_in_the_file_it_is_read_or_refused_with_a_sentence(
    parts: list[str], read: Reading
) -> None:
    with contextlib.suppress(UsageError):
        read("".join(parts), {"A": "1"})


def test_an_anchor_that_is_set_again_is_no_warning(read: Reading) -> None:
    found = read("env:\n  A: &a x\n  B: &a y\n  C: *a\n")
    assert found.env["C"].text == "y"


def test_a_file_that_cannot_be_read_or_is_no_text_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the configuration file '/no/such': No such file"):
        read_document("/no/such", Collected("x"))
    with pytest.raises(UsageError, match=f"cannot read the configuration file '{tmp_path}': Is a directory"):
        read_document(str(tmp_path), Collected("x"))
    (tmp_path / "latin").write_bytes(b"job:\n  role: \xe4\n")
    with pytest.raises(UsageError, match="latin:2: the file is no UTF-8"):
        read_document(str(tmp_path / "latin"), Collected("x"))
    with pytest.raises(UsageError, match=r"/dev/zero is no configuration file: it has more than 256 KiB"):
        read_document("/dev/zero", Collected("x"))


def test_without_the_package_the_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    code = (
        "import sys; sys.modules['ruamel'] = sys.modules['ruamel.yaml'] = None\n"
        "from phalanx.cli import main; sys.exit(main(['run', '--config', 'job.yaml', 'x.py']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "phalanx: error: a configuration file needs the package ruamel.yaml, which is not installed; "
        "pip install 'phalanx-launcher[config]'\n"
    )
