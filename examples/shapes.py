"""Which shapes an engine would compile, without a model or a device."""

from buckets import planners

limits = planners.Limits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=2048, page_size=32)
grid = planners.plan("tokens", limits)
print(f"{len(grid)} buckets:", ", ".join(map(str, grid.buckets)))

prompts = [700, 30, 30]
fill = grid.fill(5, 5, prompts, max_tokens=512)
print(f"5 sequences decode, prompts of {prompts} tokens wait: bucket {fill.bucket} takes {fill.takes}")
