"""The longest tests come first, so that no worker is left with one of them at the end."""

FIRST = ("test_lessons.py", "test_kernels_compile.py", "test_solution_kernels.py", "test_second_course.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
