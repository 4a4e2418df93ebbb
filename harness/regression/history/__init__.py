"""A folder of runs as a dataset: the trend of each case, its change points, a gate."""
