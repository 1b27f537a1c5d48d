//! The shell file.
