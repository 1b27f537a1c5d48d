//! Tests of the memory of GPUs, as far as it is thinking.

mod bound;
mod link;
mod policies;
mod protocol;
mod table;
mod trace;
