"""The routes by topic. Each checks its request, has it computed, and builds the answer."""
