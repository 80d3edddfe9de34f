"""The op table's rows, one file per family."""
