"""Skeletons: each turns a group of records into one launch and emits its kernel."""
