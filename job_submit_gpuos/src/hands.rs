//! What changes the description of a job: the functions, which the plugin's entry points bring.

use std::ffi::{c_char, c_void};

use crate::spares::Change;

/// Where a description has an array of texts on Slurm's heap, and how many these are, in 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// The array.
    pub array: usize,
    /// The count.
    pub count: usize,
}

/// What changes the description of a job.
pub struct Hands {
    /// Puts a text in the place of one of Slurm's; whether that was done.
    pub rewrite: fn(*mut *mut c_char, &str) -> bool,
    /// Puts numbers there.
    pub put: fn(*mut c_void, &[Change]),
    /// Leaves out entries of an array of texts, of which it is said which stay, and adds others; whether that was done.
    pub relist: fn(*mut c_void, List, &[bool], &[String]) -> bool,
}
