"""Figures that became worse: which rows are compared, and which way is worse."""

import worse

BEFORE = [
    {"task": "a", "budget": "13%", "kl_nat": 0.010, "difference": -0.1, "commit": "1"},
    {"task": "b", "budget": "13%", "kl_nat": 0.010, "difference": -0.1, "commit": "1"},
    {"task": "gone", "budget": "13%", "kl_nat": 0.010, "commit": "1"},
]


def test_rows_that_both_have_are_compared_by_measure() -> None:
    now = [
        {"task": "a", "budget": "13%", "kl_nat": 0.012, "difference": 0.0, "commit": "2"},
        {"task": "b", "budget": "13%", "kl_nat": 0.0105, "difference": -0.8, "commit": "2"},
        {"task": "b", "budget": "25%", "kl_nat": 9.0, "commit": "2"},
    ]
    rows = list(worse.worse(BEFORE, now, worse.KNOWN["accuracy"], 1.1))
    assert [(row["row"], row["measure"]) for row in rows] == [("a 13%", "kl_nat"), ("b 13%", "difference")]
    assert (rows[0]["before"], rows[0]["now"], rows[0]["ratio"]) == (0.010, 0.012, 1.2)
    assert (rows[0]["commit_before"], rows[0]["commit_now"]) == ("1", "2")


def test_rows_are_told_apart_by_more_than_task_and_budget() -> None:
    figures = worse.Figures(("ratio",), ("threads",))
    rows = [{"task": "a", "budget": "", "threads": threads, "ratio": 1.0} for threads in (1, 2)]
    changed = [{**rows[0], "ratio": 2.0}, {**rows[1], "ratio": 0.5}]
    assert [row["row"] for row in worse.worse(rows, changed, figures, 1.1)] == ["a 1"]


def test_known_data_files_have_rows_with_these_names() -> None:
    for name, figures in worse.KNOWN.items():
        path = worse.FIGURES / f"{name}.json"
        rows = worse.harness.recorded(path)
        assert any({"task", "budget", *figures.keys} <= row.keys() for row in rows), name
        assert all(any(measure in row for row in rows) for measure in figures.measures), name
