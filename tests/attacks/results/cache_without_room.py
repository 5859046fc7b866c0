"""The cache is made for the prompts alone, and the new tokens lie in what it has to spare."""

EXERCISE = "generate_texts"
SPEED = False
EXPECT = "make it larger"

# The cell:
def generate_texts(model, prompts, new, chunk, stop):
    """Go on from prompts with the likeliest tokens.

    model: dict; prompts: list of B lists of ints, none empty; new, chunk, stop: int.
    Returns [B, new], int64: the new tokens of each text, -1 behind the one that is stop.

    The traps: positions go on behind the prompt; padding is no token; prompts end in different chunks.
    """
    B, longest = len(prompts), max(map(len, prompts))
    cache = make_cache(model, B, longest)
    token = torch.zeros(B, dtype=torch.int64)
    for start in range(0, longest, chunk):
        parts = [prompt[start : start + chunk] for prompt in prompts]
        lengths = torch.tensor([len(part) for part in parts])
        S = int(lengths.max())
        tokens = torch.tensor([part + [0] * (S - len(part)) for part in parts])
        logits = run(model, tokens, (start + torch.arange(S)).expand(B, S), lengths, cache)
        token = torch.where(lengths > 0, choose_tokens(logits, lengths), token)
    found = torch.full((B, new), -1)
    going = torch.ones(B, dtype=torch.bool)
    for n in range(new):
        found[:, n] = torch.where(going, token, -1)
        going = going & (token != stop)
        if n + 1 == new or not going.any():
            break
        logits = run(model, token[:, None], cache["seq_lens"][:, None], going.long(), cache)
        token = choose_tokens(logits, torch.ones_like(token))
    return found
