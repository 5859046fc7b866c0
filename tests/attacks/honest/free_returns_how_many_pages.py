"""Honest: `free` gives the pages back and returns how many they were. Nothing says that it returns None, and a refusal is an error raised, not a value."""

EXERCISE = "BasicPagedCache"

# The cell:
class BasicPagedCache:
    """Latents and rotated keys of any number of sequences, in pages of one pool."""

    def __init__(self, num_pages, page_size, R, Dr):
        """Make an empty pool: [num_pages, page_size, R] and [num_pages, page_size, Dr], float32."""
        self.page_size = page_size
        self.c_kv = torch.zeros(num_pages, page_size, R)
        self.k_rope = torch.zeros(num_pages, page_size, Dr)
        self.free_pages = list(reversed(range(num_pages)))
        self.tables = {}
        self.lengths = {}

    def used_pages(self):
        """Return how many pages the sequences hold (an int)."""
        return len(self.c_kv) - len(self.free_pages)

    def table(self, sequence):
        """Return the page numbers of a sequence in the order of its tokens: a list that later calls do not change.

        `[]` if the sequence holds nothing."""
        return list(self.tables.get(sequence, []))

    def append(self, sequence, c_kv, k_rope):
        """Write n new tokens behind those that the sequence holds.

        Parameters
        ----------
        sequence : int
            Any number; a sequence that holds nothing begins at position 0.
        c_kv, k_rope : [n, R], [n, Dr]

        Raises
        ------
        ValueError
            The free pool has too few pages for all n. Nothing has changed then.
        """
        pages, length = self.table(sequence), self.lengths.get(sequence, 0)
        needed = -(-(length + len(c_kv)) // self.page_size) - len(pages)
        if needed > len(self.free_pages):
            raise ValueError(f"{needed} pages needed, {len(self.free_pages)} free")
        pages += [self.free_pages.pop() for _ in range(needed)]
        for s in range(len(c_kv)):
            entry, slot = divmod(length + s, self.page_size)
            self.c_kv[pages[entry], slot] = c_kv[s]
            self.k_rope[pages[entry], slot] = k_rope[s]
        self.tables[sequence], self.lengths[sequence] = pages, length + len(c_kv)

    def read(self, sequence):
        """Return copies of all tokens of a sequence, [length, R] and [length, Dr]; length 0 if it holds nothing."""
        pages, length = self.table(sequence), self.lengths.get(sequence, 0)
        c_kv, k_rope = (x.new_empty(length, x.shape[-1]) for x in (self.c_kv, self.k_rope))
        for s in range(length):
            entry, slot = divmod(s, self.page_size)
            c_kv[s] = self.c_kv[pages[entry], slot]
            k_rope[s] = self.k_rope[pages[entry], slot]
        return c_kv, k_rope

    def free(self, sequence):
        """Forget a sequence and give its pages back. Raises ValueError if it holds nothing."""
        if not self.lengths.get(sequence):
            raise ValueError(f"sequence {sequence} holds nothing")
        pages = self.tables.pop(sequence)
        self.free_pages += pages
        del self.lengths[sequence]
        return len(pages)
    