"""polyrank inside other programs' frameworks, in this process; those that ask a server need nothing of ours."""
