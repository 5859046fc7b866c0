"""The advice under a table of times agrees with the table."""

from autograder.kernels.report import speed_lines


def advice(floor=189.3e6, **row):
    step = {"step": "kernel", "us": 100.0, **row}
    speed = {"how": "modelled", "device": "H100", "noise": None, "fraction": 0.5, "ratio": 1.0, "bytes": floor}
    return speed_lines({**speed, "seconds": 1e-4, "floor": 5e-5, "baseline": 1e-4, "steps": [step]})[-1]


def test_wide_loads_of_the_same_again_call_for_larger_tiles():
    tiles = dict(distinct_bytes=189.3e6, issued_bytes=2449e6)
    for bound in ("load and store units", "L2"):
        assert "take larger tiles" in advice(bound=bound, load_widths={"16": 9, "4": 2}, **tiles)
    assert "make each wider, or take more" in advice(
        bound="load and store units", load_widths={"2": 64, "16": 1}, **tiles
    )


def test_loads_that_are_wide_are_not_to_be_made_wider():
    text = advice(bound="load and store units", load_widths={"16": 8}, distinct_bytes=9e7, issued_bytes=1e8)
    assert "wider" not in text
    assert "take more" in text


def test_bytes_are_held_against_the_floors_and_those_that_are_the_floors_are_not_blamed():
    assert advice(bound="DRAM", distinct_bytes=400e6).endswith("compare them with the floor's, 189.3 MB")
    assert "the bytes are the floor's, 189.3 MB" in advice(bound="DRAM", distinct_bytes=190e6)
    assert "wider" not in advice(bound="DRAM", distinct_bytes=190e6, load_widths={"16": 4})
