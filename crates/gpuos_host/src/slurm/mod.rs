//! Slurm, by its commands and files. Read on 22.05, 24.11 and 26.05; a field that a release does not print is simply empty.
//!
//! - [`Slurm`]: the workload manager of a node, for gpuosd; [`act`]: what slurmctld is told for it,
//! - [`Job`], [`NodeRecord`], [`Running`]: what squeue and scontrol print, read so that no user's text is structure (docs/decisions/0021),
//! - [`Target`]: one job as commands take it, which is never the number of an array,
//! - [`site`]: Slurm and gpuos.toml joined into the planner's model,
//! - [`numbering`]: Slurm's number of a GPU; `control_groups`: which control groups are Slurm's own, and [`group_names`]: of which job those are that have no number,
//! - [`files`]: slurm.conf and its like, read without Slurm; [`releases`]: those with a layout.

pub mod act;
mod address;
mod config;
pub(crate) mod control_groups;
pub mod files;
pub mod group_names;
mod job;
mod local;
mod manager;
mod node;
pub mod numbering;
mod preempt;
mod read;
pub mod releases;
mod rows;
#[cfg(test)]
mod sample;
pub mod site;
mod strict;
mod target;
mod text;

pub use config::Running;
pub use job::{Allocation, Job};
pub use local::conf_folder;
pub(crate) use local::text;
pub use manager::Slurm;
pub use node::NodeRecord;
pub use preempt::{Preemption, seconds};
pub(crate) use rows::rows_of;
pub use target::{Target, in_command};
pub use text::Record;

use anyhow::{Result, anyhow, bail};

use gpuos_workload::action::Outcome;

use crate::Machine;

/// Runs scontrol and answers what it printed. Error: it is missing or it failed; the sentence
/// carries Slurm's own words.
pub fn scontrol(machine: &dyn Machine, args: &[&str]) -> Result<String> {
    let output = machine.run("scontrol", args)?;
    if !output.ok {
        let said = if output.stderr.trim().is_empty() {
            &output.stdout
        } else {
            &output.stderr
        };
        bail!(
            "`scontrol {}` failed: {}",
            args.join(" "),
            said.trim()
                .lines()
                .next_back()
                .unwrap_or("it gave no reason")
        );
    }
    Ok(output.stdout)
}

/// All nodes, in the order of Slurm's node table.
pub fn nodes(machine: &dyn Machine) -> Result<Vec<NodeRecord>> {
    Ok(NodeRecord::parse_all(&scontrol(
        machine,
        &["-d", "show", "nodes"],
    )?))
}

/// All jobs that slurmctld still knows. One whose record does not tell users' texts from Slurm's has
/// [`Job::unreadable`] set.
pub fn jobs(machine: &dyn Machine) -> Result<Vec<Job>> {
    let of_squeue = rows::rows(machine, act::LIMIT, &["-t", "all"], |_| true);
    let rows = of_squeue.map_err(|outcome| match outcome {
        Outcome::Refused(why) | Outcome::NoAnswer(why) => anyhow!(why),
        other => anyhow!("{other:?}"),
    })?;
    let text = scontrol(machine, &["-d", "show", "jobs"])?;
    let ask = |row: &rows::Row| scontrol(machine, &["-d", "show", "job", &read::name(row)]).ok();
    Ok(read::list(&text, &rows, ask))
}

/// The nodes of a reservation; `None`: slurmctld does not tell.
pub fn reserved_nodes(machine: &dyn Machine, name: &str) -> Option<Vec<String>> {
    let text = scontrol(machine, &["show", "reservation", name]).ok()?;
    let all = Record::parse_all(&text, "ReservationName");
    let own = all
        .iter()
        .find(|record| record.get("ReservationName") == Some(name))?;
    gpuos_model::hostlist::expand(&own.text("Nodes")).ok()
}

/// The configuration that slurmctld runs with.
pub fn running(machine: &dyn Machine) -> Result<Running> {
    Ok(Running::parse(&scontrol(machine, &["show", "config"])?))
}
