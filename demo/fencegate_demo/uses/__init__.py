"""Seven uses of a lock with a fence, each a file to copy. How they are tried is in `fencegate_demo.trials`."""
