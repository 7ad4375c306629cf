"""Images in memory, the benchmarks they come from, augmentation, and splits over participants."""
