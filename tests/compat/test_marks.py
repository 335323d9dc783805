"""The marker ``compat``: what it takes, and how the marks of many tests become one line."""

from __future__ import annotations

import pytest
from tests.compat.marks import BadMarks, Item, merged
from tests.compat.table import page


def test_better_in_one_test_is_the_verdict_and_hows_are_gathered() -> None:
    items = merged(
        [
            ("a", ("flag --tee", "same")),
            ("b", ("flag --tee", "better", "whole lines")),
            ("c", ("flag --tee", "same")),
            ("d", ("flag --tee", "better", "whole lines")),
        ]
    )
    assert items == {"flag --tee": Item("flag --tee", "better", ["whole lines"])}


@pytest.mark.parametrize(
    "arguments",
    [
        ("flag --tee",),
        ("flag --tee", "same", "how", "more"),
        ("flag --tee", 1),
        ("--tee", "same"),
        ("flag ", "same"),
        ("flag --tee", "equal"),
        ("flag --tee", "better"),
        ("flag --tee", "not offered", ""),
    ],
)
def test_a_mark_that_says_nothing_is_told_with_its_test(arguments: tuple[object, ...]) -> None:
    with pytest.raises(BadMarks, match=r"^a test: "):
        merged([("a test", arguments)])


def test_all_paths_of_one_object_have_one_verdict() -> None:
    paths = [f"name torch.distributed.launcher.{path}" for path in ("elastic_launch", "api.elastic_launch")]
    items = merged(
        [
            ("a", (paths[0], "same signature")),
            ("b", (paths[1], "same signature")),
            ("c", (paths[1], "better", "has a cause")),
        ]
    )
    assert [(items[path].verdict, items[path].hows) for path in paths] == [("better", ["has a cause"])] * 2
    assert "\n1 items: 0 same, 1 better" in page(items)


def test_a_name_whose_paths_contradict_each_other_is_told() -> None:
    paths = [f"name torch.distributed.launcher.{path}" for path in ("elastic_launch", "api.elastic_launch")]
    with pytest.raises(BadMarks, match="elsewhere"):
        merged([("a", (paths[0], "same")), ("b", (paths[1], "not offered", "why"))])


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_tested_is_more_than_a_signature(order: int) -> None:
    marks = [("a", ("name m.f", "same signature")), ("b", ("name m.f", "same"))]
    assert merged(marks[::order])["name m.f"].verdict == "same"


def test_a_variable_is_as_its_flag_unless_it_says_more() -> None:
    items = merged(
        [
            ("a", ("variable PET_TEE", "same")),
            ("b", ("flag --tee", "better", "whole lines")),
            ("c", ("variable PET_RDZV_ID", "better", "another reason")),
            ("d", ("flag --rdzv-id", "better", "a reason")),
        ]
    )
    assert (items["variable PET_TEE"].verdict, items["variable PET_TEE"].hows) == ("better", ["as the flag"])
    assert items["variable PET_RDZV_ID"].hows == ["another reason"]


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_not_offered_is_nowhere_the_same(order: int) -> None:
    marks = [("a", ("name m.f", "not offered", "why")), ("b", ("name m.f", "same"))]
    with pytest.raises(BadMarks, match="elsewhere"):
        merged(marks[::order])


def test_the_page_has_each_item_in_its_section() -> None:
    items = merged(
        [
            ("a", ("flag --tee", "better", "whole lines | no parts")),
            ("b", ("variable PET_TEE", "same")),
            ("c", ("name torch.distributed.run.main", "not offered", "a reason")),
            ("d", ("extension PContext", "same")),
        ]
    )
    text = page(items)
    assert "4 items: 1 same, 2 better, 1 not offered, 0 same signature." in text
    assert "| `--tee` | better: whole lines \\| no parts |" in text
    table = "| Name | Compared with torchrun |\n|---|---|\n| `main` | not offered: a reason |"
    assert f"### `torch.distributed.run`\n\n{table}" in text
