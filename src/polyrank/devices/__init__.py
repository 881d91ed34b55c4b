"""What computes: the device, precision and threads of one process, and several processes at one piece of work."""
