"""What is learned from: datasets, streams of tasks, batches, and the exemplars that are kept."""
