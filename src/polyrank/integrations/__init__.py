"""polyrank inside other frameworks, in one process; frameworks that call a server need nothing from here."""
