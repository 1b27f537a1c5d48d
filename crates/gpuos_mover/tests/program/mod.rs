//! The conductor of a job's program: its rules one by one, and whole jobs in which everything goes wrong that can.

mod anew;
mod any;
mod bench;
mod pace;
mod refuse;
mod rules;
mod sim;
mod words;
