"""Where a student's code runs: processes that hold no oracle, no seed and no verdict."""
