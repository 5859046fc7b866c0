"""The sample class of lesson 11."""

from autograder.course.sample import Submission

SUBMISSIONS = (Submission("ada", "the solution as it stands"),)
DEMO = ("ada",)
