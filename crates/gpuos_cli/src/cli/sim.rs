//! `gpuos sim` in the table of flags.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gpuos_model::words::whole_number;

/// `gpuos sim`.
#[derive(Args)]
pub struct SimArgs {
    /// Job list of the openb trace (openb_pod_list_*.csv), or Philly's jobs with --protocol gangs
    /// or replay, gzipped or not. --protocol mig makes its jobs and takes none.
    #[arg(
        value_name = "TRACE",
        required_unless_present = "protocol",
        required_if_eq_any = [("protocol", "openb"), ("protocol", "lifetimes"), ("protocol", "gangs"), ("protocol", "replay")]
    )]
    pub trace: Option<PathBuf>,
    /// Policies to compare: gpuos, select, fgd, best-fit, dotprod, packing, clustering, random, stock.
    #[arg(
        long,
        value_name = "P[,P...]",
        value_delimiter = ',',
        default_value = "gpuos"
    )]
    pub policy: Vec<gpuos_sim::policy::Name>,
    /// How jobs arrive: openb lets 130 % of the cluster's GPUs arrive and none end, lifetimes
    /// lets them end as in the trace, gangs scales Philly's jobs to a site of 10,000 GPUs and
    /// compares gpuos, best-fit and stock (with and without topology/tree), replay gives 2,000 of
    /// Philly's jobs in 240 seconds to 256 nodes, as scripts/bench.sh replay does with a real
    /// slurmctld, and compares the same three on as many selections of jobs as there are seeds. mig
    /// packs slices of GPUs as jobs come and go, and compares the policies of --packing.
    #[arg(long, value_name = "NAME", default_value = "openb")]
    pub protocol: Protocol,
    /// Node list instead of openb_node_list_gpu_node.csv beside the trace.
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// Jobs as Slurm's gres/gpu can run them: a share of a GPU becomes a whole one, cores are
    /// rounded up, and jobs without GPUs go where the model of stock Slurm puts them under every
    /// policy. The policy select, the planner of select/gpuos, is for such jobs.
    #[arg(long)]
    pub whole_gpus: bool,
    /// Seeds of the order of jobs and nodes, as N or N-M.
    #[arg(long, value_name = "N[-M]", default_value = "42-51", value_parser = seeds)]
    pub seeds: Seeds,
    /// Load with --protocol lifetimes, gangs or replay, in % of the cluster's GPU time (mig: --loads).
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = whole_number::<u16>(1..=300))]
    pub load: u16,
    /// File for all figures of all runs.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// File for a plot of allocation against arrived load, of the gangs' leaf spans, or of accepted work.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Options of one protocol.
    #[command(flatten)]
    pub gangs: GangArgs,
    /// More of them.
    #[command(flatten)]
    pub mig: MigArgs,
}

/// Options of `gpuos sim --protocol mig`.
#[derive(Args)]
pub struct MigArgs {
    /// Kind of GPU with --protocol mig: a100-40gb, a100-80gb, a30, h100-80gb, h200, b200 or
    /// rtx-pro-6000; h100-80gb by default.
    #[arg(long, value_name = "NAME")]
    pub board: Option<String>,
    /// How many of them, in nodes of eight; 128 by default.
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=100_000))]
    pub gpus: Option<u32>,
    /// Streams of jobs with --protocol mig: uniform, small, bimodal; all by default.
    #[arg(long, value_name = "S[,S...]", value_delimiter = ',', value_parser = mig_stream)]
    pub stream: Vec<gpuos_sim::mig::stream::Stream>,
    /// Loads with --protocol mig, in % of the slices; 70,80,90,100,110,120 by default.
    #[arg(long, value_name = "PERCENT[,PERCENT...]", value_delimiter = ',', value_parser = whole_number::<u64>(1..=300))]
    pub loads: Vec<u64>,
    /// Policies with --protocol mig: first-fit, nvidia-order, best-fit, gpuos; all by default. The
    /// others are compared with the first.
    #[arg(long, value_name = "P[,P...]", value_delimiter = ',', value_parser = mig_packing)]
    pub packing: Vec<gpuos_sim::mig::policy::Packing>,
}

impl MigArgs {
    /// The first of these options that is given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--board", self.board.is_some()),
            ("--gpus", self.gpus.is_some()),
            ("--stream", !self.stream.is_empty()),
            ("--loads", !self.loads.is_empty()),
            ("--packing", !self.packing.is_empty()),
        ];
        let first = given.iter().find(|(_, given)| *given);
        first.map(|(name, _)| *name)
    }
}

/// Options of `gpuos sim --protocol gangs`.
#[derive(Args)]
pub struct GangArgs {
    /// Cluster with --protocol gangs: rail8 (1,302 nodes of 8 GPUs, leaves of 32) or nvl72 (145
    /// racks of 18 trays with 4 GPUs); rail8 by default.
    #[arg(long, value_name = "NAME", value_parser = gang_site)]
    pub site: Option<gpuos_sim::gangs::site::SiteKind>,
    /// Nodes of that cluster, for a smaller one.
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=100_000))]
    pub site_nodes: Option<u32>,
    /// Days to simulate with --protocol gangs, 14 by default; the first tenth, one at least, does
    /// not count.
    #[arg(long, value_name = "DAYS", value_parser = whole_number::<u32>(2..=1000))]
    pub days: Option<u32>,
    /// Jobs of 8 GPUs and more ask for so many times as many with --protocol gangs, up to 1,024.
    #[arg(long, value_name = "FACTOR", value_parser = whole_number::<u32>(1..=128))]
    pub gang_scale: Option<u32>,
    /// Seconds that a gang of gpuos may wait for a close place with --protocol gangs; 0 by default.
    #[arg(long, value_name = "SECONDS", value_parser = whole_number::<u32>(0..))]
    pub patience: Option<u32>,
    /// Time limits of --protocol gangs so many times as long; 1 by default.
    #[arg(long, value_name = "FACTOR", value_parser = whole_number::<u32>(1..=1000))]
    pub limits: Option<u32>,
    /// gpuos places by the rule backfill with --protocol gangs, not by default.
    #[arg(long)]
    pub backfill: bool,
}

impl GangArgs {
    /// The first of these options that is given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--site", self.site.is_some()),
            ("--site-nodes", self.site_nodes.is_some()),
            ("--days", self.days.is_some()),
            ("--gang-scale", self.gang_scale.is_some()),
            ("--patience", self.patience.is_some()),
            ("--limits", self.limits.is_some()),
            ("--backfill", self.backfill),
        ];
        let first = given.iter().find(|(_, given)| *given);
        first.map(|(name, _)| *name)
    }
}

impl SimArgs {
    /// How many runs there are in all.
    pub fn runs(&self) -> usize {
        self.policy.len() * self.seeds.iter().count()
    }

    /// The trace; empty where the protocol takes none.
    pub fn trace(&self) -> &Path {
        self.trace.as_deref().unwrap_or(Path::new(""))
    }
}

/// Protocols of `gpuos sim`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Protocol {
    /// 130 % of the cluster's GPUs arrive, none end.
    Openb,
    /// Jobs end as in the trace.
    Lifetimes,
    /// Gangs on a site of 10,000 GPUs, behind a queue.
    Gangs,
    /// The jobs and nodes of the replay in the real slurmctld, without one.
    Replay,
    /// Slices of GPUs.
    Mig,
}

impl Protocol {
    /// How it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Openb => "openb",
            Protocol::Lifetimes => "lifetimes",
            Protocol::Gangs => "gangs",
            Protocol::Replay => "replay",
            Protocol::Mig => "mig",
        }
    }
}

/// A range of seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seeds {
    first: u64,
    last: u64,
}

impl Seeds {
    /// The seeds.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        self.first..=self.last
    }
}

fn mig_stream(text: &str) -> Result<gpuos_sim::mig::stream::Stream, String> {
    gpuos_sim::mig::stream::Stream::by_name(text)
        .ok_or_else(|| "write uniform, small or bimodal".into())
}

fn mig_packing(text: &str) -> Result<gpuos_sim::mig::policy::Packing, String> {
    gpuos_sim::mig::policy::Packing::by_name(text)
        .ok_or_else(|| "write gpuos, first-fit, nvidia-order or best-fit".into())
}

fn gang_site(text: &str) -> Result<gpuos_sim::gangs::site::SiteKind, String> {
    gpuos_sim::gangs::site::SiteKind::by_name(text).ok_or_else(|| "write rail8 or nvl72".into())
}

fn seeds(text: &str) -> Result<Seeds, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last && last - first < 1000 => Ok(Seeds { first, last }),
        _ => Err("write N or N-M with M not below N, at most 1000 of them".into()),
    }
}
