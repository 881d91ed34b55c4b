"""Devices, precision, threads and distributed processes."""
