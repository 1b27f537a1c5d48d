//! Which checkpoint can be restored from what is left.
