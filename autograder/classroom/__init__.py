"""A class: notebooks out and in, their verdicts, nbgrader's gradebook, feedback, export."""
