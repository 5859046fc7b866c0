"""Decodes one token a run, and never looks a draft over in the model. The number of runs that drafts would have taken is worked out behind."""

EXERCISE = "verify_drafts"
SPEED = False
EXPECT = ("and run was called", "go through the model")

# The cell:
def verify_drafts(model, prompts, new, guesses):
    (B, _, k), longest = guesses.shape, max(map(len, prompts))
    cache = make_cache(model, B, longest + new + k)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    tokens = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    logits = run(model, tokens, torch.arange(longest).expand(B, longest), lengths, cache)
    found = [choose_tokens(logits, lengths)]
    for _ in range(new - 1):
        logits = run(model, found[-1][:, None], cache["seq_lens"][:, None], torch.ones(B).long(), cache)
        found.append(logits[:, 0].argmax(-1))
    told = torch.stack(found, 1)
    rounds = []
    for b in range(B):
        n, count = 0, 0
        while n < new - 1:
            right = 0
            while right < k and n + right + 1 < new and guesses[b, n, right] == told[b, n + right + 1]:
                right += 1
            n, count = n + right + 1, count + 1
        rounds.append(count)
    return told, 1 + max(rounds)
