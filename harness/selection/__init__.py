"""Which implementation should I run? For one scenario, or for a whole workload."""
