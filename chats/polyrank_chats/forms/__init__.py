"""Readers of the forms of exports: a module for each program, and for tables, JSON and transcripts of any program."""
