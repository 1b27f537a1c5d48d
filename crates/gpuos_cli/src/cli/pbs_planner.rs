//! `gpuos pbs-planner`.

use clap::Args;
use gpuos_model::words::whole_number;

/// `gpuos pbs-planner`.
#[derive(Args)]
pub struct PbsPlannerArgs {
    /// One pass only: start what fits now, say what waits and why, and end.
    #[arg(long)]
    pub once: bool,
    /// One pass that starts nothing, but says what it would start and where.
    #[arg(long)]
    pub dry_run: bool,
    /// Seconds from the end of a pass to the next one, 1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = whole_number::<u64>(1..=3600))]
    pub interval: u64,
    /// For how many jobs that do not fit vnodes are kept from later ones, 0 to 16.
    #[arg(long, value_name = "JOBS", default_value_t = 1, value_parser = whole_number::<u64>(0..=16))]
    pub keep: u64,
}
