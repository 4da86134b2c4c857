"""What bench/peers.py works out of what it measures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench import peers
from bench.report import NotMeasuredError
from bench.vendor import Limit

SETTING = peers.Setting(
    Limit(per_minute=60, burst=1),
    latency_s=0.5,
    workers=1,
    deadline_s=1.0,
    celery_python=Path("python"),
)


def item(number: int, due_s: float, prompt: str) -> peers.Item:
    return peers.Item(number, due_s, "acme", prompt, f"key {number}")


ITEMS = [item(0, 0.0, "a"), item(1, 0.0, "b"), item(2, 0.0, "a"), item(3, 4.0, "a")]


def killed(**more: int) -> peers.Killed:
    figures = {"items": 9, "before": 3, "lost": 0, "lost_without_list": 6, "again": 2}
    return peers.Killed(**(figures | {"paid_again": 1} | more), last_s=8.0, moved_s=0.0)


def test_items_have_two_repeats_of_five_and_tenants_alike() -> None:
    items = peers.items_of(90, name="work")

    assert Counter(one.tenant for one in items) == {"acme": 30, "globex": 30, "initech": 30}
    assert len({one.prompt for one in items}) == 54
    assert len({one.key for one in items}) == 90


def test_items_come_in_a_burst_and_then_steadily() -> None:
    due_s = [one.due_s for one in peers.items_of(90, name="work")]

    assert due_s[:36] == [0.0] * 36
    assert due_s[36] == pytest.approx(1 / peers.STEADY_PER_S)
    assert due_s[-1] == pytest.approx(54 / peers.STEADY_PER_S)


def test_items_that_do_not_repeat_are_as_many_works() -> None:
    items = peers.items_of(45, name="kill", repeated=False)

    assert len(items) == len({one.prompt for one in items}) == 45
    assert [one.number for one in items] == list(range(45))


def test_items_of_two_runs_share_no_prompt_and_no_key() -> None:
    one, other = (peers.items_of(30, name=name) for name in ("work", "kill"))

    assert not {item.prompt for item in one} & {item.prompt for item in other}
    assert not {item.key for item in one} & {item.key for item in other}


def test_ideal_answers_repeats_with_the_first_call() -> None:
    ready_s = peers.ideal(ITEMS, SETTING, joined=True)

    assert ready_s == pytest.approx({0: 0.5, 1: 1.5, 2: 0.5, 3: 4.0})


def test_ideal_without_joining_calls_for_each_item() -> None:
    ready_s = peers.ideal(ITEMS, SETTING, joined=False)

    assert ready_s == pytest.approx({0: 0.5, 1: 1.5, 2: 2.5, 3: 4.5})


def test_added_time_leaves_out_the_vendors_and_what_has_not_ended() -> None:
    added_s = peers.added({0: 0.5, 1: 3.0, 3: 4.1}, ITEMS, latency_s=0.5)

    assert added_s == pytest.approx([0.0, 2.5, 0.0])


def test_right_results_are_those_with_a_text() -> None:
    told = {0: (7.0, "You said: a [0]"), 1: (8.0, None)}

    assert peers.right(told, ITEMS) == {0: 7.0}


def test_another_items_result_is_refused() -> None:
    with pytest.raises(NotMeasuredError, match="item 1"):
        peers.right({1: (8.0, "You said: b of another [0]")}, ITEMS)


def test_kill_table_tells_callers_in_process_with_and_without_a_list() -> None:
    table = peers.kill_table({"celery": killed(), "httpx": killed()})

    assert [line[:5] for line in table.lines] == [
        ("Celery", "3", "0", "2", "1"),
        ("httpx with retries", "3", "6", "0", "0"),
        ("httpx with retries, the caller kept a list", "3", "0", "2", "1"),
    ]


def test_nobody_measured_is_no_result(tmp_path: Path) -> None:
    nowhere = str(tmp_path / ".venv-bench" / "bin" / "python")

    with pytest.raises(NotMeasuredError, match="there is no"):
        peers.main(["--only", "celery", "--celery-python", nowhere])


@pytest.mark.parametrize("option", ["--items", "--kill-items", "--per-minute"])
def test_work_of_nothing_is_not_measured(option: str) -> None:
    with pytest.raises(NotMeasuredError, match="one item at least"):
        peers.main(["--only", "httpx", option, "0"])
