"""Crash-safe storage: durable writes, sealed documents, folders of tensors, quantized vectors, SQLite."""
