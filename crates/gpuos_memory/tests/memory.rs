//! Tests of the memory of GPUs, as far as it is thinking.

mod bound;
mod link;
mod objects;
mod policies;
mod table;
mod trace;
