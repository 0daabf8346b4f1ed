"""From an experiment to trained weights: schedule, three stages, checkpoints, resuming."""
