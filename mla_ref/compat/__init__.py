"""Other libraries' interfaces to MLA attention, on this package's kernels: to try them is to change one import."""
