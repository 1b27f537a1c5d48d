//! The programs' side of the protocol: the library, the shell file, the Python package and the examples, against a mover that a thread plays.

mod client;
mod python;
mod shell;
mod support;
