//! Philly's trace, for the tests that go by it.

use std::io::Read;

use gpuos_sim::gangs::philly::{TraceJob, parse};

/// All its jobs.
pub fn trace() -> Vec<TraceJob> {
    let packed = include_bytes!("../../data/philly/philly.csv.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_string(&mut text)
        .expect("the trace is text");
    parse(&text).expect("the trace is sound")
}
