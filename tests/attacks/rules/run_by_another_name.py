"""Decodes token by token, and calls the model by another name, so that the calls are not seen. They are counted in the function itself."""

EXERCISE = "verify_drafts"
SPEED = False
EXPECT = "and run was called"

# The cell:
model_run = run  # under another name it is not counted


def verify_drafts(model, prompts, new, guesses):
    """Greedy decoding token by token; how many calls drafts would have taken is reckoned afterwards."""
    B, longest = len(prompts), max(map(len, prompts))
    k = guesses.shape[2]
    cache = make_cache(model, B, longest + new + k)
    lengths = torch.tensor([len(p) for p in prompts])
    tokens = torch.tensor([p + [0] * (longest - len(p)) for p in prompts])
    logits = model_run(model, tokens, torch.arange(longest).expand(B, longest), lengths, cache)
    token = choose_tokens(logits, lengths)
    found = [[t] for t in token.tolist()]
    for _ in range(new + k):
        logits = model_run(model, token[:, None], cache["seq_lens"][:, None], torch.ones(B, dtype=torch.int64), cache)
        token = logits[:, 0].argmax(-1)
        for each, t in zip(found, token.tolist()):
            each.append(t)
    rounds = []
    for b, each in enumerate(found):
        n, count = 1, 0
        while n < new:
            taken = 0
            while taken < k and int(guesses[b, n - 1, taken]) == each[n + taken]:
                taken += 1
            n += taken + 1
            count += 1
        rounds.append(count)
    return torch.tensor([each[:new] for each in found]), 1 + max(rounds)
