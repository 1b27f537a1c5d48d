//! `--gpuos-checkpoint` at submission: whether this site makes checkpoints, and whether the job can have enough nodes.

use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_config::options::{Drain, JobOptions, Sources};
use gpuos_model::messages::Message;
use slurm_ffi::preempt::Grace;

use crate::messages::{notes, refused};
use crate::refusal::Refusal;
use crate::shape::Shape;

/// Checks a new job.
///
/// # Errors
/// The site makes no checkpoints, drains none where the job wants that, or the scheme needs more nodes than the job asks for at least.
pub fn check(
    config: &CheckpointConfig,
    options: &JobOptions,
    shape: &Shape,
) -> Result<(), Refusal> {
    match (options.checkpoint, options.restart) {
        (None, Some(said)) => Err(refused::restart_without(said).into()),
        (Some(asked), _) if !config.enabled => Err(refused::no_checkpoints(asked).into()),
        (Some(asked), _)
            if config.shared.is_none() && matches!(asked.drain, Some(Drain::Every(_))) =>
        {
            Err(refused::no_shared(asked).into())
        }
        _ => nodes(config, options, shape),
    }
}

/// Checks which component of a heterogeneous job a new one is, if it is one.
///
/// # Errors
/// It is not the first. Each component makes checkpoints by itself, so those of two would not be of the same moment.
pub fn component(options: &JobOptions, component: Option<u32>) -> Result<(), Refusal> {
    match (options.checkpoint, component) {
        (Some(asked), Some(1..)) => Err(refused::further_component(asked).into()),
        _ => Ok(()),
    }
}

/// Checks the folder in memory of a new job, which asks for so many MiB on each node, where that is known. One that takes all of them is
/// refused nowhere: it is a bound, and the program may write less.
///
/// # Errors
/// The folder may be larger than all that the job has.
pub fn memory(options: &JobOptions, mib: Option<u64>) -> Result<(), Refusal> {
    let Some(asked) = options.checkpoint else {
        return Ok(());
    };
    match asked.memory_mib.zip(mib) {
        Some((wanted, mib)) if u64::from(wanted) > mib => {
            Err(refused::memory_misfits(asked, mib).into())
        }
        _ => Ok(()),
    }
}

/// Checks the nodes of a new job, or of one that is changed. A range of nodes is judged by its smallest.
///
/// # Errors
/// The scheme needs more.
pub fn nodes(
    config: &CheckpointConfig,
    options: &JobOptions,
    shape: &Shape,
) -> Result<(), Refusal> {
    let Some((asked, nodes)) = options.checkpoint.zip(least_nodes(shape)) else {
        return Ok(());
    };
    // Nodes are not told apart here: too few of them is all that can be wrong with a scheme that the job names.
    let Some(scheme) = asked
        .scheme
        .filter(|scheme| scheme.nodes() > nodes as usize)
    else {
        return Ok(());
    };
    let least = scheme.nodes() as u32;
    // A job may be given as many as `most`, and has its scheme then.
    let (may, range) = match shape.max_nodes {
        most if most > nodes => (
            format!("the job may be given only {nodes} (--nodes={nodes}-{most})"),
            match most > least {
                true => format!("--nodes={least}-{most}"),
                false => format!("--nodes={least}"),
            },
        ),
        _ => (
            format!("the job asks for {nodes}"),
            format!("--nodes={least}"),
        ),
    };
    // The usual one, as far as so few nodes have it.
    let other = config.scheme_for(None, nodes);
    let other = other.map_or_else(|_| "single".to_owned(), |other| other.to_string());
    Err(Refusal::impossible(refused::scheme_needs_nodes(
        asked, scheme, least, may, range, other,
    )))
}

/// The fewest nodes that a job can get, where that is known: without `--nodes`, tasks and GPUs may have Slurm take more than one.
fn least_nodes(shape: &Shape) -> Option<u32> {
    let open = shape.tasks > 1 || shape.gres_forms().next().is_some();
    match shape.min_nodes {
        0 if open => None,
        nodes => Some(nodes.max(1)),
    }
}

/// What the user of a job is to know that is taken. `requeues`: whether Slurm starts it again after a node has failed, where that is
/// known.
pub fn note(options: &JobOptions, sources: &Sources, requeues: Option<bool>) -> Option<Message> {
    let asked = options.checkpoint?;
    let named = || sources.named("--gpuos-checkpoint", &asked.to_string());
    (requeues == Some(false)).then(|| notes::not_requeued(named()))
}

/// The same of its folder in memory, where the job has so many MiB for each CPU and so many CPUs on each node for sure.
pub fn memory_note(
    options: &JobOptions,
    sources: &Sources,
    (mib, cpus): (u64, u64),
) -> Option<Message> {
    let asked = options.checkpoint?;
    let needed = u64::from(asked.memory_mib?).div_ceil(mib.max(1));
    let named = || sources.named("--gpuos-checkpoint", &asked.to_string());
    (needed > cpus).then(|| notes::memory_of_few_cpus(named(), mib, needed))
}

/// The same of the time that the job has when it is preempted, in the first of its partitions or QOS in which that may not be enough.
pub fn grace(
    config: &CheckpointConfig,
    graces: &[Grace],
    (options, sources): (&JobOptions, &Sources),
    shape: &Shape,
) -> Option<Message> {
    let asked = options.checkpoint?;
    let nodes = least_nodes(shape).unwrap_or(u32::MAX);
    let takes = config.last_takes_s(&asked, nodes);
    let named = || sources.named("--gpuos-checkpoint", &asked.to_string());
    graces.iter().find_map(|grace| match grace.seconds {
        0 => Some(notes::no_grace(named(), &grace.of)),
        seconds if u64::from(seconds) < takes => {
            Some(notes::short_grace(named(), &grace.of, seconds, takes))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use gpuos_config::gpuos_toml::Config;

    use super::*;

    fn options(value: &str) -> JobOptions {
        let mut options = JobOptions::default();
        options.set("gpuos-checkpoint", value).unwrap();
        options
    }

    fn site(text: &str) -> CheckpointConfig {
        let text = format!("[checkpoint]\n{text}\n");
        Config::parse(&text, "gpuos.toml").unwrap().checkpoint
    }

    fn on(min_nodes: u32) -> Shape {
        Shape {
            min_nodes,
            ..Shape::default()
        }
    }

    #[test]
    fn a_site_without_checkpoints_refuses_the_option_and_no_other_job() {
        let off = site("");
        let why = check(&off, &options("10m"), &on(4)).unwrap_err();
        assert_eq!(
            why.sentence,
            "--gpuos-checkpoint=10m: this site makes no checkpoints; write no --gpuos-checkpoint; an administrator can turn \
             them on with [checkpoint] enabled = true in gpuos.toml"
        );
        assert_eq!(check(&off, &options("off"), &on(4)), Ok(()));
        assert_eq!(check(&off, &JobOptions::default(), &on(1)), Ok(()));
        // A change of a job that was taken before does not question that.
        assert_eq!(nodes(&off, &options("10m"), &on(4)), Ok(()));
    }

    #[test]
    fn from_what_a_job_begins_says_nothing_in_one_without_checkpoints() {
        let site = site("enabled = true");
        let mut alone = JobOptions::default();
        alone.set("gpuos-restart", "12/3").unwrap();
        let why = check(&site, &alone, &on(1)).unwrap_err();
        assert_eq!(
            why.sentence,
            "--gpuos-restart=12/3: a job without --gpuos-checkpoint has no checkpoints; write --gpuos-checkpoint=TIME with it, or \
             leave it out"
        );
        let mut both = options("10m,l2=single");
        both.set("gpuos-restart", "12/3").unwrap();
        assert_eq!(check(&site, &both, &on(1)), Ok(()));
    }

    #[test]
    fn a_site_without_a_shared_folder_refuses_to_drain() {
        let without = site("enabled = true");
        let why = check(&without, &options("10m,l3=every:2"), &on(1)).unwrap_err();
        assert_eq!(
            why.sentence,
            "--gpuos-checkpoint=10m,l3=every:2: this site drains no checkpoints to a parallel file system; write no l3=; an \
             administrator can have it done with shared = \"/PATH\" in [checkpoint] of gpuos.toml"
        );
        assert_eq!(check(&without, &options("10m,l3=off"), &on(1)), Ok(()));
        let with = site("enabled = true\nshared = \"/scratch/c\"");
        assert_eq!(check(&with, &options("10m,l3=every:2"), &on(1)), Ok(()));
    }

    #[test]
    fn the_first_component_of_a_heterogeneous_job_alone_makes_checkpoints() {
        for (value, of, taken) in [
            ("10m", None, true),
            ("10m", Some(0), true),
            ("off", Some(1), true),
            ("10m", Some(1), false),
            ("auto", Some(127), false),
        ] {
            assert_eq!(
                component(&options(value), of).is_ok(),
                taken,
                "{value} {of:?}"
            );
        }
        let why = component(&options("10m"), Some(1)).unwrap_err();
        assert_eq!(
            why.sentence,
            "--gpuos-checkpoint=10m: this is not the first component of its heterogeneous job, and checkpoints of two components \
             would not be of the same moment; write it for the first component alone, whose program saves, and nothing or \
             --gpuos-checkpoint=off for the others"
        );
    }

    #[test]
    fn a_folder_in_memory_is_of_the_jobs_own() {
        let of = |value, mib| memory(&options(value), mib);
        for (value, mib, fits) in [
            ("10m,l0=16G", None, true),
            ("10m,l0=16G", Some(32 << 10), true),
            ("10m,l0=16G", Some(16 << 10), true),
            ("10m,l0=16G", Some((16 << 10) - 1), false),
            ("10m", Some(1), true),
            ("off", Some(1), true),
        ] {
            assert_eq!(of(value, mib).is_ok(), fits, "{value} {mib:?}");
        }
        assert_eq!(memory(&JobOptions::default(), Some(1)), Ok(()));
        assert_eq!(
            of("10m,l0=16G", Some(8192)).unwrap_err().sentence,
            "--gpuos-checkpoint=10m,l0=16G: l0= is part of the memory that the job has on each node, and --mem is 8192 MiB; write \
             --mem=SIZE for the program and l0= together, or a smaller l0="
        );
    }

    #[test]
    fn a_scheme_needs_its_nodes() {
        let site = site("enabled = true\nscheme = \"rs:6+2\"");
        let tasks = |tasks| Shape {
            tasks,
            ..Shape::default()
        };
        let gpus = Shape {
            per_job: Some("gres/gpu:16".into()),
            ..Shape::default()
        };
        let range = Shape {
            min_nodes: 2,
            max_nodes: 16,
            ..Shape::default()
        };
        for (value, shape, fits) in [
            // Whatever the site's scheme needs, one that fits takes its place.
            ("10m", on(1), true),
            ("10m", on(3), true),
            ("10m,l2=single", on(1), true),
            ("10m,l2=partner", on(1), false),
            ("10m,l2=partner", on(0), false),
            ("10m,l2=partner", tasks(1), false),
            ("10m,l2=partner", tasks(64), true),
            ("10m,l2=partner", gpus, true),
            ("10m,l2=partner", on(2), true),
            ("10m,l2=partner", range.clone(), true),
            ("10m,l2=xor:4", range, false),
            ("10m,l2=rs:6+2", on(7), false),
            ("10m,l2=rs:6+2", on(8), true),
            ("10m,l2=rs:6+2", on(u32::MAX), true),
        ] {
            let checked = check(&site, &options(value), &shape);
            assert_eq!(checked.is_ok(), fits, "{value} {shape:?}: {checked:?}");
        }
        let why = check(&site, &options("10m,l2=xor:4"), &on(2)).unwrap_err();
        assert_eq!(
            why.sentence,
            "--gpuos-checkpoint=10m,l2=xor:4: l2=xor:4 needs at least 4 nodes, and the job asks for 2; write --nodes=4, or \
             l2=partner"
        );
        for (least, most, may, write) in [
            (1, 0, "the job asks for 1", "--nodes=3, or l2=single"),
            (1, 1, "the job asks for 1", "--nodes=3, or l2=single"),
            (2, 2, "the job asks for 2", "--nodes=3, or l2=partner"),
            (
                2,
                3,
                "the job may be given only 2 (--nodes=2-3)",
                "--nodes=3, or l2=partner",
            ),
            (
                2,
                4,
                "the job may be given only 2 (--nodes=2-4)",
                "--nodes=3-4, or l2=partner",
            ),
        ] {
            let shape = Shape {
                min_nodes: least,
                max_nodes: most,
                ..Shape::default()
            };
            let why = check(
                &self::site("enabled = true"),
                &options("10m,l2=xor:3"),
                &shape,
            );
            assert_eq!(
                why.unwrap_err().sentence,
                format!(
                    "--gpuos-checkpoint=10m,l2=xor:3: l2=xor:3 needs at least 3 nodes, and {may}; write {write}"
                )
            );
        }
    }

    #[test]
    fn a_job_that_is_not_requeued_is_told_so() {
        let sources = Sources::default();
        let said = |value, requeues| {
            let note = note(&options(value), &sources, requeues);
            note.map(String::from)
        };
        assert_eq!(
            said("10m", Some(false)).unwrap(),
            "gpuos: --gpuos-checkpoint=10m: Slurm does not start the job again by itself after a node has failed; --requeue has it \
             do so"
        );
        assert_eq!(said("10m", Some(true)), None);
        assert_eq!(said("10m", None), None);
        assert_eq!(said("off", Some(false)), None);
    }

    #[test]
    fn a_folder_in_memory_that_the_cpus_may_not_bring_is_told() {
        let said = |value, mib, cpus| {
            let note = memory_note(&options(value), &Sources::default(), (mib, cpus));
            note.map(String::from)
        };
        assert_eq!(
            said("10m,l0=16G", 4096, 1).unwrap(),
            "gpuos: --gpuos-checkpoint=10m,l0=16G: l0= is part of the job's memory, and with --mem-per-cpu of 4096 MiB a node has as \
             much for it alone only if the job has 4 CPUs there: the program may be ended for its memory"
        );
        assert_eq!(said("10m,l0=16G", 4096, 4), None);
        assert!(said("10m,l0=16G", 4095, 4).is_some());
        assert_eq!(said("10m,l0=16G", 16_384, 1), None);
        assert_eq!(said("10m", 1, 1), None);
        assert_eq!(said("off", 1, 1), None);
    }

    #[test]
    fn a_job_that_may_be_preempted_too_soon_is_told_so() {
        let said = |site: &CheckpointConfig, value, graces: &[(&str, u32)]| {
            let of = (&options(value), &Sources::default());
            let graces: Vec<Grace> = graces
                .iter()
                .map(|(of, seconds)| Grace {
                    of: (*of).into(),
                    seconds: *seconds,
                })
                .collect();
            grace(site, &graces, of, &on(1)).map(String::from)
        };
        let usual = site("enabled = true");
        assert_eq!(
            said(&usual, "10m", &[("partition none", 0)]).unwrap(),
            "gpuos: --gpuos-checkpoint=10m: jobs of partition none may be preempted without notice (GraceTime=0), and what such a \
             job did since its last regular checkpoint is lost then"
        );
        assert_eq!(
            said(&usual, "10m", &[("QOS long", 15), ("QOS short", 14)]).unwrap(),
            "gpuos: --gpuos-checkpoint=10m: jobs of QOS short have 14 s when they are preempted (GraceTime), and a checkpoint \
             may take 15 s or more: what such a job did since its last regular checkpoint may be lost then"
        );
        assert_eq!(said(&usual, "10m", &[("partition long", 15)]), None);
        assert_eq!(said(&usual, "10m", &[]), None);
        assert_eq!(said(&usual, "off", &[("partition none", 0)]), None);
        let slow = site("enabled = true\ndisk-rate-mib = 1024");
        let why = said(&slow, "10m,l0=16G", &[("partition long", 15)]).unwrap();
        assert!(why.contains("a checkpoint may take 31 s or more"), "{why}");
    }
}
