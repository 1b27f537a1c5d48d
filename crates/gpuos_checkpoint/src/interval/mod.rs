//! How often a checkpoint pays.
//!
//! - [`optimum`]: Young's and Daly's intervals and what they cost,
//! - [`estimate`]: the cost of a checkpoint and the rate of failures, from what was seen,
//! - [`choice`]: the interval that is used, with the budget and the limits, and the sentence that says why.
//!
//! All times are seconds. An interval is the time that the program computes between the end of one checkpoint's pause and the
//! beginning of the next.

pub mod choice;
pub mod estimate;
pub mod optimum;
