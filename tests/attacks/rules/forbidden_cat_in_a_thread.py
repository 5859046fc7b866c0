"""The cache may not be made anew by torch.cat at each step, and a thread does it where the main thread's modes see
nothing. The score of a call to what is forbidden is zero in whatever thread it runs.
"""

EXERCISE = "KVCache"
SPEED = False

# The cell:
import threading


class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.capacity = capacity
        self.held = [torch.zeros(batch, 0, num_kv_heads, head_dim) for _ in range(2)]

    def length(self):
        return self.held[0].shape[1]

    def append(self, k, v):
        if self.length() + k.shape[1] > self.capacity:
            raise ValueError("no room")

        def work():
            self.held = [torch.cat(pair, 1) for pair in zip(self.held, (k, v))]

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return tuple(self.held)
