//! `--gpuos-spares` at submission: the job gets so many nodes more, and lives on when Slurm finds one of its nodes down.

use std::ffi::c_void;

use gpuos_config::options::{JobOptions, OptionError, Sources};
use gpuos_model::messages::Message;
use slurm_ffi::handles::NO_VAL;
use slurm_ffi::layout::Fields;
use slurm_ffi::mem::read;

use crate::messages::{notes, refused};
use crate::refusal::Refusal;
use crate::shape::Shape;

/// Where a job's description has what spares change.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    min_nodes: usize,
    max_nodes: usize,
    tasks: usize,
    min_cpus: usize,
    max_cpus: usize,
    kill_on_node_fail: usize,
    het_job_offset: usize,
}

impl Offsets {
    /// Those of a release; `None`: the table does not say.
    pub fn of(fields: &Fields) -> Option<Offsets> {
        let at = |field| fields.offset("job_descriptor", field).ok();
        Some(Offsets {
            min_nodes: at("min_nodes")?,
            max_nodes: at("max_nodes")?,
            tasks: at("num_tasks")?,
            min_cpus: at("min_cpus")?,
            max_cpus: at("max_cpus")?,
            kill_on_node_fail: at("kill_on_node_fail")?,
            het_job_offset: at("het_job_offset")?,
        })
    }
}

/// A number of a description, and what it becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// 32 bits, at this offset.
    Wide(usize, u32),
    /// 16 bits.
    Narrow(usize, u16),
    /// 64 bits.
    Long(usize, u64),
}

/// What a job with spares becomes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Raised {
    /// What it asks for then.
    pub shape: Shape,
    /// Nodes of its program, the fewest.
    nodes: u32,
    spares: u32,
}

/// Checks a new job with spares. `None`: it wants none.
///
/// # Errors
/// A sentence: it has no checkpoints, or does not say what its program needs of each node.
pub fn raise(
    options: &JobOptions,
    sources: &Sources,
    shape: &Shape,
) -> Result<Option<Raised>, Refusal> {
    let Some(spares) = options.spares else {
        return Ok(None);
    };
    if options.checkpoint.is_none() {
        return Err(refused::spares_without_checkpoints(spares).into());
    }
    if let Some(groups) = &options.shape {
        let other = sources.named("--gpuos-shape", &groups.to_string());
        return Err(refused::spares_with_shape(spares, other).into());
    }
    if shape.min_nodes == 0 {
        return Err(refused::spares_without_nodes(spares).into());
    }
    if let Some(gpus) = &shape.per_job {
        return Err(refused::spares_of_job_gpus(spares, gpus).into());
    }
    if !shape.tasks.is_multiple_of(shape.min_nodes) {
        return Err(refused::spares_of_tasks(spares, shape.tasks, shape.min_nodes).into());
    }
    let (nodes, spares) = (shape.min_nodes, u32::from(spares));
    let more = |nodes: u32| match nodes {
        0 => 0,
        nodes => nodes.saturating_add(spares),
    };
    Ok(Some(Raised {
        shape: Shape {
            min_nodes: more(nodes),
            max_nodes: more(shape.max_nodes),
            tasks: scaled(shape.tasks, nodes, spares),
            ..shape.clone()
        },
        nodes,
        spares,
    }))
}

/// The same a node for so many nodes more.
fn scaled(number: u32, nodes: u32, spares: u32) -> u32 {
    let more = u64::from(number) * u64::from(spares);
    let more = more.div_ceil(u64::from(nodes.max(1)));
    number.saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
}

impl Raised {
    /// Checks whether a cluster with so many nodes can have as many.
    ///
    /// # Errors
    /// A sentence: the job could never start.
    pub fn fits(&self, have: usize) -> Result<(), Refusal> {
        let all = self.shape.min_nodes;
        match all as usize > have {
            true => Err(Refusal::impossible(refused::spares_beyond_cluster(
                self.spares,
                all,
                self.nodes,
                have,
            ))),
            false => Ok(()),
        }
    }

    /// What is to be changed in the description for it. `None`: memory does not look like a description.
    ///
    /// # Errors
    /// A sentence: it is a component of a heterogeneous job.
    pub fn changes(
        &self,
        description: *mut c_void,
        offsets: &Offsets,
    ) -> Result<Option<Vec<Change>>, Refusal> {
        let number = |offset: usize| read::<u32>((description as usize).checked_add(offset)?);
        let read = || {
            Some([
                number(offsets.het_job_offset)?,
                number(offsets.tasks)?,
                number(offsets.max_nodes)?,
                number(offsets.min_cpus)?,
                number(offsets.max_cpus)?,
            ])
        };
        let Some([component, tasks, max_nodes, min_cpus, max_cpus]) = read() else {
            return Ok(None);
        };
        if component < NO_VAL {
            return Err(refused::spares_of_component(self.spares).into());
        }
        let mut changes = vec![
            Change::Wide(offsets.min_nodes, self.shape.min_nodes),
            Change::Narrow(offsets.kill_on_node_fail, 0),
        ];
        let set = |number: u32| number != 0 && number < NO_VAL;
        if set(max_nodes) {
            changes.push(Change::Wide(offsets.max_nodes, self.shape.max_nodes));
        }
        for (offset, number) in [
            (offsets.tasks, tasks),
            (offsets.min_cpus, min_cpus),
            (offsets.max_cpus, max_cpus),
        ] {
            if set(number) {
                let scaled = scaled(number, self.nodes, self.spares);
                changes.push(Change::Wide(offset, scaled));
            }
        }
        Ok(Some(changes))
    }

    /// Why the job is refused where the layout table does not say where its numbers are.
    pub fn unknown(&self) -> OptionError {
        refused::spares_unknown(self.spares)
    }

    /// What the job's user is told.
    pub fn note(&self, sources: &Sources) -> Message {
        let option = sources.named("--gpuos-spares", &self.spares.to_string());
        notes::spares(option, self.nodes, self.shape.min_nodes)
    }
}

/// What a change of a job leaves to its program.
pub fn without(mut shape: Shape, options: &JobOptions) -> Shape {
    let spares = options.spares.map_or(0, u32::from);
    if shape.min_nodes > spares {
        shape.min_nodes -= spares;
    }
    shape
}

#[cfg(test)]
mod tests {
    use slurm_ffi::release::Release;

    use super::*;

    #[test]
    fn spares_beyond_the_cluster_are_refused() {
        let raised = |nodes, spares| {
            let shape = on(nodes, 0, 0);
            let raised = raise(&options(spares), &Sources::default(), &shape);
            raised.unwrap().unwrap()
        };
        assert_eq!(raised(3, "1").fits(4), Ok(()));
        assert_eq!(
            raised(2, "9").fits(4).unwrap_err().sentence,
            "--gpuos-spares=9: with the 2 nodes of the program the job needs 11, and this cluster has 4; write fewer of both: 4 together"
        );
    }

    fn options(spares: &str) -> JobOptions {
        let mut options = JobOptions::default();
        options.set("gpuos-checkpoint", "10m").unwrap();
        options.set("gpuos-spares", spares).unwrap();
        options
    }

    fn on(min_nodes: u32, max_nodes: u32, tasks: u32) -> Shape {
        Shape {
            min_nodes,
            max_nodes,
            tasks,
            ..Shape::default()
        }
    }

    fn raised(shape: &Shape) -> Result<Option<Raised>, Refusal> {
        raise(&options("2"), &Sources::default(), shape)
    }

    #[test]
    fn a_job_with_spares_has_so_many_nodes_more_and_their_tasks() {
        for (shape, wanted) in [
            (on(4, 4, 0), (6, 6, 0)),
            (on(4, 0, 8), (6, 0, 12)),
            (on(2, 4, 2), (4, 6, 4)),
            (on(1, 1, 1), (3, 3, 3)),
        ] {
            let shape = raised(&shape).unwrap().unwrap().shape;
            assert_eq!((shape.min_nodes, shape.max_nodes, shape.tasks), wanted);
        }
        let none = raise(&JobOptions::default(), &Sources::default(), &on(4, 4, 0));
        assert_eq!(none, Ok(None));
    }

    #[test]
    fn what_spares_cannot_be_given_to_is_refused_with_what_to_write() {
        let said = |shape: Shape| raised(&shape).unwrap_err().sentence;
        assert_eq!(
            said(on(0, 0, 8)),
            "--gpuos-spares=2: how many nodes the program needs is not said; write --nodes=N with it"
        );
        assert_eq!(
            said(on(4, 4, 7)),
            "--gpuos-spares=2: 7 tasks are not the same number on each of 4 nodes; write --ntasks-per-node=N in place of --ntasks"
        );
        let gpus = Shape {
            per_job: Some("gres/gpu:8".into()),
            ..on(4, 4, 0)
        };
        assert_eq!(
            said(gpus),
            "--gpuos-spares=2: gres/gpu:8 is for all nodes of the job together; write --gpus-per-node=N in place of --gpus"
        );
        let mut without = options("2");
        without.set("gpuos-checkpoint", "off").unwrap();
        let why = raise(&without, &Sources::default(), &on(4, 4, 0)).unwrap_err();
        assert_eq!(
            why.sentence,
            "--gpuos-spares=2: a program that loses a node goes on from a checkpoint, and the job makes none; write --gpuos-checkpoint \
             with it, such as --gpuos-checkpoint=10m"
        );
        let mut shaped = options("2");
        shaped.set("gpuos-shape", "tp2").unwrap();
        let why = raise(&shaped, &Sources::default(), &on(4, 4, 0)).unwrap_err();
        assert!(why.sentence.contains("--gpuos-shape=tp2"), "{why:?}");
    }

    /// A description with these numbers, as of a release.
    fn changed(release: Release, component: u32, numbers: [u32; 4]) -> Option<Vec<Change>> {
        let offsets = Offsets::of(&Fields::of(release, None).unwrap()).unwrap();
        let mut memory = vec![0u8; 2048];
        let mut put = |at: usize, number: u32| {
            memory[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        };
        let [max_nodes, tasks, min_cpus, max_cpus] = numbers;
        put(offsets.het_job_offset, component);
        put(offsets.max_nodes, max_nodes);
        put(offsets.tasks, tasks);
        put(offsets.min_cpus, min_cpus);
        put(offsets.max_cpus, max_cpus);
        let raised = raised(&on(4, 4, 8)).unwrap().unwrap();
        let changes = raised.changes(memory.as_mut_ptr().cast(), &offsets);
        changes.ok()?
    }

    #[test]
    fn what_is_not_said_stays_so_in_every_release() {
        for release in [
            Release::new(22, 5, 8),
            Release::new(23, 11, 0),
            Release::new(25, 5, 0),
            Release::new(26, 5, 5),
        ] {
            let all = changed(release, NO_VAL, [4, 8, 9, 16]).unwrap();
            let numbers: Vec<u32> = all
                .iter()
                .map(|change| match change {
                    Change::Wide(_, number) => *number,
                    Change::Narrow(_, number) => u32::from(*number),
                    Change::Long(_, number) => u32::try_from(*number).unwrap(),
                })
                .collect();
            assert_eq!(numbers, [6, 0, 6, 12, 14, 24], "{release}");
            let few = changed(release, NO_VAL, [NO_VAL; 4]).unwrap();
            assert_eq!(few.len(), 2, "{release}");
            assert_eq!(changed(release, 0, [4, 8, 8, 8]), None);
        }
    }
}
