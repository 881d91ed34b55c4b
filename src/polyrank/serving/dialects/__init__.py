"""Requests and answers of other services whose clients can use polyrank.

A dialect is a class: its names for the fields, and the shape of its answers. The user of an application cannot remove a
field that it sends. So nulls and fields that cannot change the result are accepted, a field that would change it is
refused only if its value does, and other fields are reported, or refused with ``unknown_fields = "refuse"``.
"""
