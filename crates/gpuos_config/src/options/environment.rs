//! What a job asks for by its environment alone: one that was made by no command with the options, as those of slurmrestd.
//!
//! Its variables are the defaults that sbatch would find in its own environment. From them follows what a job of sbatch has: what
//! Slurm carries to the controller and the nodes, and what the job hands to its steps.
use gpuos_core::wire::CHECKPOINT_VARIABLE;

use super::given::{GivenOptions, Opt};
use super::handover::{Handover, JOB_CHECKPOINT, VARIABLES};
use super::{OPTIONS, OptionError, SOURCES};

/// How the variables begin by which Slurm hands an option of gpuos from one command to the next, and on to slurmstepd.
const INHERITED: [&str; 2] = [
    "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_",
    "_SLURM_SPANK_OPTION_gpuos_",
];

/// [`SOURCES`] as Slurm hands it from one command to the next.
pub const SOURCES_INHERITED: &str = "SLURM_SPANK_GPUOS_SOURCES";

/// What becomes of a job by its environment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EnvironmentRequest {
    /// Entries that `spank_job_env` is to have.
    pub carried: Vec<String>,
    /// Which entries of the environment stay: not those that are of another job.
    pub kept: Vec<bool>,
    /// Entries that the environment is to have besides.
    pub added: Vec<String>,
}

impl EnvironmentRequest {
    /// Reads the entries `NAME=value` of an environment; of several with one name the first counts, as for programs.
    ///
    /// # Errors
    /// A variable of [`OPTIONS`] has no value of its option.
    pub fn read(entries: &[String]) -> Result<EnvironmentRequest, OptionError> {
        let get = |name: &str| {
            let value = |entry: &String| Some(entry.strip_prefix(name)?.strip_prefix('=')?.into());
            entries.iter().find_map(value)
        };
        let default = |opt: Opt| get(OPTIONS[opt as usize].environment);
        let settled = GivenOptions::default().finish(default)?.with_restart();
        let sources = settled.sources().text();
        // As sbatch does with what the job has that it is started in.
        let is_of_a_job = get(JOB_CHECKPOINT).is_some();
        let kept = |entry: &String| {
            let name = entry.split('=').next().unwrap_or_default();
            let is_folder = is_of_a_job && name == CHECKPOINT_VARIABLE;
            let is_inherited = INHERITED.iter().any(|begin| name.starts_with(begin));
            !is_folder && !is_inherited && name != SOURCES_INHERITED && !VARIABLES.contains(&name)
        };
        let kept = entries.iter().map(kept).collect();
        let handed = Handover::default().with(&settled, false).variables();
        let mut added: Vec<String> = handed
            .filter_map(|(name, value)| Some(format!("{name}={}", value?)))
            .collect();
        let mut carried = Vec::new();
        for (opt, given) in Opt::ALL.into_iter().zip(settled.values) {
            if let Some(given) = given {
                carried.push(format!("{}={}", opt.carried_as(), given.value));
            }
        }
        // slurmstepd has the options of a batch script from its environment.
        added.extend(carried.iter().cloned());
        if !sources.is_empty() {
            carried.push(format!("{SOURCES}={sources}"));
        }
        Ok(EnvironmentRequest {
            carried,
            kept,
            added,
        })
    }

    /// Whether the environment is to change.
    pub fn changes_environment(&self) -> bool {
        !self.added.is_empty() || self.kept.contains(&false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::options::{JobOptions, Source, Sources};

    fn read(entries: &[&str]) -> Result<EnvironmentRequest, OptionError> {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        EnvironmentRequest::read(&entries)
    }

    #[test]
    fn nothing_is_asked_by_other_variables() {
        for entries in [
            &[][..],
            &["PATH=/bin", "GPUOSX=1", "XGPUOS_WATCH=on", "GPUOS_WATCH"],
            &["GPUOS_WATCH=", "GPUOS_CHECKPOINT_DIR=/own"],
            &["GPUOS_WATCH=off"],
        ] {
            let request = read(entries).expect("nothing is wrong");
            assert!(request.carried.is_empty(), "{entries:?}: {request:?}");
            assert!(!request.changes_environment(), "{entries:?}: {request:?}");
        }
    }

    #[test]
    fn defaults_become_what_sbatch_makes_of_them() {
        let request = read(&[
            "GPUOS_TOPOLOGY=leaf",
            "PATH=/bin",
            "GPUOS_WATCH=5",
            "GPUOS_CHECKPOINT=10m",
            "GPUOS_RESTART=77",
            "GPUOS_TOPOLOGY=rack",
        ])
        .expect("these are values");
        assert_eq!(
            request.carried,
            [
                "_SLURM_SPANK_OPTION_gpuos_gpuos_topology=leaf",
                "_SLURM_SPANK_OPTION_gpuos_gpuos_watch=5",
                "_SLURM_SPANK_OPTION_gpuos_gpuos_checkpoint=10m,restart=77",
                "_SLURM_SPANK_OPTION_gpuos_gpuos_restart=77",
                "GPUOS_SOURCES=environment=topology,watch,checkpoint,restart",
            ]
        );
        let handed = ["GPUOS_JOB_LIMITS=watch=5 environment=watch"];
        assert_eq!(request.added[..1], handed);
        assert_eq!(request.added[1], "GPUOS_JOB_CHECKPOINT=10m,restart=77");
        assert_eq!(request.added[2..], request.carried[..4]);
        assert_eq!(request.kept, [true; 6]);
    }

    #[test]
    fn a_value_that_is_none_is_named_with_its_variable() {
        let error = read(&["GPUOS_WATCH=x"]).expect_err("x is no time");
        assert_eq!(error.source, Source::Environment);
        let sentence = error.to_string();
        let said = "GPUOS_WATCH=x (environment): 'x' is not understood";
        assert!(sentence.contains(said), "{sentence}");
    }

    #[test]
    fn what_is_of_another_job_goes() {
        let request = read(&[
            "GPUOS_JOB_LIMITS=power=900W",
            "GPUOS_JOB_CHECKPOINT=5m",
            "GPUOS_CHECKPOINT_DIR=/var/lib/gpuos/jobs/7",
            "_SLURM_SPANK_OPTION_gpuos_gpuos_power=900W",
            "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_power=900W",
            "SLURM_SPANK_GPUOS_SOURCES=environment=power",
            "_SLURM_SPANK_OPTION_other_power=1",
            "HOME=/",
        ])
        .expect("nothing is asked");
        let kept = [false, false, false, false, false, false, true, true];
        assert_eq!(request.kept, kept);
        assert!(request.carried.is_empty() && request.added.is_empty());
    }

    proptest! {
        #[test]
        fn what_is_carried_the_controller_reads(
            entries in proptest::collection::vec(
                "(GPUOS(_[A-Z]{2,9})?|GPUOS_(TOPOLOGY|WATCH|SHARE|MIG|MEM|POWER))=(off|on|leaf|5|1/2|timeslice|60G|300W|.{0,9})",
                0..6,
            )
        ) {
            if let Ok(request) = EnvironmentRequest::read(&entries) {
                let carried = || request.carried.iter().map(String::as_str);
                prop_assert!(JobOptions::from_spank_env(carried()).is_ok());
                prop_assert_eq!(request.kept.len(), entries.len());
                let sources = Sources::from_spank_env(carried());
                prop_assert_eq!(sources.text().is_empty(), request.carried.is_empty());
            }
        }
    }
}
