"""Formats of files: bytes to text or rows, whatever the files are called. This package does not know conversations."""
