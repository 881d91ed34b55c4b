"""Files that survive a crash: durable writes, folders of tensors, vectors in fewer bits."""
