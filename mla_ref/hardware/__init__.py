"""What work runs on, and what is asked of it: devices, costs, clocks, and kernels on a CPU.

Nothing here knows what attention is, and nothing imports the rest of the package: the folder works alone.

================  ===================================================================
:mod:`.devices`   the one table of accelerators: ceilings, multiprocessors, targets
:mod:`.cost`      bytes and FLOPs of a piece of work, and the least time they take
:mod:`.timing`    how long a call takes, and how fast this machine copies and multiplies
:mod:`.emulator`  Triton kernels on a CPU, as the compiler means them, and their faults
================  ===================================================================
"""
