//! Slices of GPUs (MIG): how much of the work that comes a policy can accept.
//!
//! Jobs ask for one instance each, come at random times and run for a while. What fits nowhere when
//! it comes is rejected: nothing waits, so that the work a policy accepts shows what it leaves room
//! for. All policies of a seed see the same jobs.

pub mod board;
pub mod policy;
pub mod report;
pub mod run;
pub mod stream;

use board::Board;
use policy::Packing;
use run::Figures;
use stream::Stream;

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kind of GPU.
    pub board: Board,
    /// How many of them, in nodes of [`policy::NODE`].
    pub gpus: u32,
    /// Streams of jobs.
    pub streams: Vec<Stream>,
    /// Loads: work that comes, in % of the slices.
    pub loads: Vec<u64>,
    /// Policies; others are compared with the first.
    pub policies: Vec<Packing>,
    /// Seeds, each a run of its own.
    pub seeds: Vec<u64>,
}

impl Options {
    /// How many runs there are.
    pub fn runs(&self) -> usize {
        self.streams.len() * self.loads.len() * self.policies.len() * self.seeds.len()
    }
}

/// The runs of one stream and load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// Its stream.
    pub stream: Stream,
    /// Its load in %.
    pub load: u64,
    /// By policy and seed.
    pub figures: Vec<Vec<Figures>>,
}

/// Does all runs. `progress` is called before each with what it is.
///
/// # Errors
/// A board that cannot be packed.
pub fn run(options: &Options, mut progress: impl FnMut(String)) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for &stream in &options.streams {
        for &load in &options.loads {
            let mut figures = Vec::new();
            for &packing in &options.policies {
                let mut runs = Vec::new();
                for &seed in &options.seeds {
                    progress(format!("{} {load} % {}", stream.name(), packing.name()));
                    let found = run::run(&options.board, packing, stream, options.gpus, load, seed);
                    runs.push(found?);
                }
                figures.push(runs);
            }
            cases.push(Case {
                stream,
                load,
                figures,
            });
        }
    }
    Ok(cases)
}
