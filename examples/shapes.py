"""Which shapes an engine would compile, without a model or a device."""

from buckets import planners

limits = planners.Limits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=2048, page_size=32)
grid = planners.plan("rows", limits)
print(f"{len(grid)} shapes:", ", ".join(str(shape) for shape in grid.shapes))

prompts = [700, 30, 30]
fill = grid.fill_prefill(prompts, max_tokens=512)
print(f"prompts of {prompts} tokens left: bucket {fill.bucket} takes {fill.takes}")
