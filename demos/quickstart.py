"""The README's example: one picture, decoded speculatively and plainly, with the same tokens."""

from mmspec import JacobiDrafter, LlamaGenPipeline

pipe = LlamaGenPipeline.from_pretrained("mmspec/emoji-t2i")
fast = pipe("a red apple", num_images_per_prompt=4, seed=7)
plain = pipe("a red apple", num_images_per_prompt=4, seed=7, speculate=False)
assert (fast.tokens == plain.tokens).all()

pipe.drafter = JacobiDrafter(
    window=16, controller="fixed"
)  # swapped like a diffusers scheduler, saved with the pipeline
again = pipe("a red apple", num_images_per_prompt=4, seed=7)
assert (again.tokens == plain.tokens).all()

fast.images[0].save("apple.png")
print(fast.stats, plain.stats, again.stats, sep="\n")
