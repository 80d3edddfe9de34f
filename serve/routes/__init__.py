"""One file for each kind of route; each adds its own to the application."""
