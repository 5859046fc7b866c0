"""Times of the dashboard on simulated classes of 10, 100 and 1,000 students with 80 exercises: dashboard.json.

The class is written as `grade` would have left it and nothing is judged. "first look" is what a fresh process takes
from nothing to all that the first page shows; "cold" is that without the cache that `grade` keeps.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "autograder" / "dashboard")]
SIZES = 10, 100, 1000
REPEATS = 5
FIRST = "from autograder.dashboard.app import Dashboard; import sys, pathlib; Dashboard(pathlib.Path(sys.argv[1]))"


def first_look(folder):
    """Return the seconds that a fresh process takes to import all, read the class, and set the first page's widgets."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", FIRST, folder], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return time.perf_counter() - started


def seconds(act):
    """Return how long something takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def measure(students, folder):
    """Return the times of a class."""
    import simulated

    from autograder.dashboard.app import SHOWS, SORTS, VIEWS, Dashboard

    simulated.write(simulated.make(students, 80), folder)
    cold = first_look(folder)
    found = {"cold": cold, "first look": statistics.median(first_look(folder) for _ in range(REPEATS))}
    board = Dashboard(folder)
    found["read"] = statistics.median(seconds(board._read) for _ in range(REPEATS))

    def put(widget, value):
        return seconds(lambda: setattr(widget, "value", value))

    times = [put(board.search, word) for word in ("1", "12", "up 0", "")]
    times += [put(board.sort, each) for each in reversed(SORTS)]
    times += [put(board.only, each) for each in reversed(SHOWS)]
    times += [put(board.lesson, each) for each in (*board.group.lessons, board.lesson.options[0])]
    times += [put(board.page, page) for page in (min(2, board.page.max), 1)]
    found["filter, median"], found["filter, most"] = statistics.median(times), max(times)
    put(board.view, "Exercise")  # which imports matplotlib
    for view in VIEWS:
        put(board.view, "Class" if view != "Class" else "Exercise")
        found[f"view {view}"] = put(board.view, view)
    found["hide names"] = put(board.hide, True)
    return {name: round(value, 3) for name, value in found.items()}


def main():
    """Measure, and write dashboard.json beside this script."""
    figures = {"exercises": 80, "load, last minute": round(os.getloadavg()[0], 1), "seconds": {}}
    for students in SIZES:
        folder = Path(tempfile.mkdtemp(prefix="dashboard-"))
        try:
            figures["seconds"][str(students)] = measure(students, folder)
        finally:
            shutil.rmtree(folder)
        print(students, figures["seconds"][str(students)], flush=True)
    print(record.write("dashboard", figures, ("voila", "nbgrader")))


if __name__ == "__main__":
    main()
