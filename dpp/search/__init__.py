"""Beyond the paper: parts that search for their places. Nothing of the paper's core imports it."""
