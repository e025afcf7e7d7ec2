"""Training data: datasets, streams of tasks, batches, and the exemplars that are kept."""
