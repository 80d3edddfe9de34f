"""One file per model family, made of nn modules. Each has `ARCHITECTURES`, what the registry finds."""
