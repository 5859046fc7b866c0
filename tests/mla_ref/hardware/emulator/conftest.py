from contextlib import suppress

import torch

with suppress(ImportError):
    import triton

    if torch.cuda.is_available():  # where descriptors that a kernel makes are kept
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
