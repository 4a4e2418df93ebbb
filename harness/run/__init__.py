"""From cases to records: one case in a worker process, all of them from the parent."""
