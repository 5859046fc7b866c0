from autograder.classroom.config import configure

configure(get_config())  # noqa: F821  nbgrader and formgrader read this file with `get_config` defined
