"""Formats of files: bytes to text or rows, whatever the files are called. What a conversation is, is not known here."""
