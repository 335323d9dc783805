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
    assert "4 items: 2 same, 1 better, 1 not offered." in text
    assert "| `--tee` | better: whole lines \\| no parts |" in text
    table = "| Name | Compared with torchrun |\n|---|---|\n| `main` | not offered: a reason |"
    assert f"### `torch.distributed.run`\n\n{table}" in text
