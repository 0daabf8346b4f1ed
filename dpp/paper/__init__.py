"""The paper's tables: the grid of experiments, the run queue, results beside reported numbers."""
