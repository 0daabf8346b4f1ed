"""From an experiment to trained weights: presets, schedule, the three stages."""
