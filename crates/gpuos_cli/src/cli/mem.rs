//! `gpuos mem` in the table of flags.

use clap::{Args, Subcommand};
use gpuos_core::job::JobId;
use gpuos_memory::policy::NAMES;
use gpuos_model::words::{mib_of, whole_number};

use super::Reach;
use super::values::node_name;

/// `gpuos mem`.
#[derive(Args)]
pub struct MemArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: MemCommand,
}

/// What `gpuos mem` does.
#[derive(Subcommand)]
pub enum MemCommand {
    /// Show what a node lends of the memory of its GPUs and of the host, to which programs, and whose turn it is.
    Show(MemShowArgs),
    /// Replay what a program does with GPU memory, with less of it than it needs: what each policy moves over the link.
    Sim(MemSimArgs),
}

impl MemCommand {
    /// Its name, with that of the command.
    pub fn name(&self) -> &'static str {
        match self {
            MemCommand::Show(_) => "mem show",
            MemCommand::Sim(_) => "mem sim",
        }
    }
}

/// `gpuos mem show`.
#[derive(Args)]
pub struct MemShowArgs {
    /// Only programs of this job, by its own number; exit 1 when it has none here.
    #[arg(value_name = "JOBID")]
    pub job: Option<JobId>,
    /// Node to look at; without one this node.
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub node: Option<String>,
    /// Show it anew each second.
    #[arg(long)]
    pub watch: bool,
    /// How gpuosd is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `gpuos mem sim`.
#[derive(Args)]
pub struct MemSimArgs {
    /// File with a trace, or one of the patterns training, kv-cache, scan, loop, zipf and stencil; all patterns if it is left out.
    #[arg(value_name = "TRACE")]
    pub trace: Option<String>,
    /// GPU memory: a share of what the program has at most at once, or a size: 75%, 40G, 512M.
    #[arg(long, value_name = "SIZE", default_value = "75%", value_parser = room)]
    pub hbm: Room,
    /// Only this policy: gpuos, lru, clock, 2q or arc; can be given several times.
    #[arg(long, value_name = "POLICY", value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    pub policy: Vec<String>,
    /// Seed of the patterns.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole_number::<u64>(0..))]
    pub seed: u64,
    /// Print the trace of the pattern instead, as a text that the command reads.
    #[arg(long, requires = "trace", conflicts_with_all = ["hbm", "policy"])]
    pub print: bool,
}

/// How much GPU memory there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Percent of what the program has at most at once.
    Percent(u32),
    /// MiB.
    Mib(u64),
}

fn room(text: &str) -> Result<Room, String> {
    let form = "write a share or a size: 75%, 40G, 512M";
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: Option<u32> = digits.parse().ok().filter(|number| *number > 0);
    match (number, &text[digits.len()..]) {
        (Some(percent @ 1..=100), "%") => Ok(Room::Percent(percent)),
        (Some(_), unit) if unit != "%" => mib_of(&text.to_ascii_lowercase())
            .map(|mib| Room::Mib(mib.into()))
            .ok_or_else(|| form.into()),
        _ => Err(form.into()),
    }
}
