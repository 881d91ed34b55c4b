"""The routes, by what they are about. Each checks what it is asked, has it computed, and shapes the answer."""
