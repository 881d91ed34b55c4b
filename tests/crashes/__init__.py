"""A scripted workload on an index, and disks that fail under it."""
