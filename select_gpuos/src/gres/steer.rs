//! One attempt: narrow the candidates to a choice, hide the other free GPUs of its nodes, ask
//! cons_tres, and undo.

use std::ffi::c_int;

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::Choice;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::cores::CoreMaps;
use slurm_ffi::handles::{Job, Standing};
use slurm_ffi::release::Release;

use crate::abi::frame::Frame;
use crate::abi::masks::Masks;
use crate::read::snapshot::Snapshot;

/// The candidates as Slurm gave them, put back when an attempt did not succeed.
struct Narrowed<'a> {
    nodes: Bitmap<'a>,
    saved: &'a [u64],
    job: Job<'a>,
    /// cons_tres holds a job that it finds no way to lay out: on these nodes, and not on others.
    standing: Standing,
    keep: bool,
}

impl<'a> Narrowed<'a> {
    fn new(frame: &Frame<'a>, saved: &'a [u64]) -> Narrowed<'a> {
        Narrowed {
            nodes: frame.candidates,
            saved,
            job: frame.job,
            standing: frame.job.standing(),
            keep: false,
        }
    }
}

impl Drop for Narrowed<'_> {
    fn drop(&mut self) {
        if !self.keep {
            self.nodes.restore(self.saved);
            self.job.set_standing(self.standing);
        }
    }
}

/// Cores that the job of a call has no use for.
#[derive(Default)]
struct Cores {
    hidden: Masks,
    maps: CoreMaps,
    /// How many cores of each socket are enough, where that is known.
    enough: Option<u32>,
}

/// Buffers for attempts, kept from call to call.
#[derive(Default)]
pub struct Steering {
    /// The candidates of this call.
    saved: Vec<u64>,
    /// GPUs and slices that an attempt is not to be given.
    masks: Masks,
    cores: Cores,
}

/// How the answer to an attempt is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It is the answer to Slurm: on success the choice stays in the bitmap.
    Answer,
    /// The same, and nobody is preempted: among all candidates some could serve as they are.
    Offer,
    /// It is only compared with others: the bitmap is put back, nothing is preempted.
    Question,
}

impl Cores {
    /// Runs `ask` with the idle cores hidden that the job has no use for, and once more with all in sight
    /// if the answer is no: that must never be for a lack of cores. `ask` sets the node bitmap first.
    fn with_fewer(
        &mut self,
        frame: &Frame<'_>,
        snapshot: &Snapshot,
        nodes: impl Iterator<Item = usize>,
        mut ask: impl FnMut() -> c_int,
    ) -> c_int {
        let Some(enough) = self.enough else {
            return ask();
        };
        let (source, standing) = (&frame.source, frame.job.standing());
        let hidden = self.hidden.scope();
        let idle = |index: &usize| snapshot.places.get(*index).is_some_and(|place| place.idle);
        for node in nodes.filter(idle).filter_map(|index| source.node(index)) {
            let maps = &mut self.maps;
            self.hidden.hide_cores(source.layout, node, maps, enough);
        }
        if self.hidden.is_empty() {
            return ask();
        }
        slurm_ffi::guard::inject("job_test.cores");
        let code = ask();
        drop(hidden);
        if code == 0 {
            return code;
        }
        self.enough = None;
        frame.job.set_standing(standing);
        ask()
    }
}

impl Steering {
    /// Remembers the candidates of this call, and how many cores of each socket are enough for its job.
    pub fn begin(&mut self, frame: &Frame<'_>, enough: Option<u32>) {
        frame.candidates.save(&mut self.saved);
        self.cores.enough = enough;
        self.cores.maps.free_cached();
    }

    /// Gives the candidates back as they came, after an answer that does not count.
    pub fn restore_candidates(&self, frame: &Frame<'_>) {
        frame.candidates.restore(&self.saved);
    }

    /// Takes back a yes that a forecast gives for later than it is asked for; whether it was one. The nodes of the choice have the GPUs and lack
    /// something else, and others may have both.
    pub fn takes_back_later(&self, frame: &Frame<'_>, release: Release) -> bool {
        let later = frame.starts_later_than_asked(release);
        if later {
            self.restore_candidates(frame);
            frame.call.unanswered();
        }
        later
    }

    /// Asks cons_tres for all candidates.
    pub fn all(&mut self, frame: &Frame<'_>, snapshot: &Snapshot) -> c_int {
        let (all, saved) = (0..snapshot.places.len(), &self.saved);
        (self.cores).with_fewer(frame, snapshot, all, || {
            frame.candidates.restore(saved);
            frame.call.forward()
        })
    }

    /// Asks cons_tres for exactly these nodes, and on each for no others of the devices of a GRES than these: the
    /// node's index, and the devices. Nobody is preempted: what somebody gives up then is not what was chosen.
    pub fn attempt_slices(
        &mut self,
        frame: &Frame<'_>,
        gres: u32,
        chosen: &[(usize, u64)],
    ) -> c_int {
        // Undone from below: what is masked, then the candidates.
        let nodes = frame.candidates;
        let mut narrowed = Narrowed::new(frame, &self.saved);
        let _masked = self.masks.scope();
        nodes.clear();
        let source = &frame.source;
        for (node, bits) in chosen {
            nodes.set_bit(*node, true);
            if let Some(state) = source.gres_of(*node, gres) {
                self.masks.allocate(source.layout, state, !bits);
            }
        }
        slurm_ffi::guard::inject("job_test.slices");
        let code = frame.call.without_preemption(|| frame.call.forward());
        narrowed.keep = code == 0;
        code
    }

    /// Asks cons_tres for exactly these nodes. Nobody is preempted.
    pub fn attempt_nodes(&mut self, frame: &Frame<'_>, chosen: &[u32]) -> c_int {
        let nodes = frame.candidates;
        let mut narrowed = Narrowed::new(frame, &self.saved);
        nodes.clear();
        for node in chosen {
            nodes.set_bit(*node as usize, true);
        }
        slurm_ffi::guard::inject("job_test.nodes");
        let code = frame.call.without_preemption(|| frame.call.forward());
        narrowed.keep = code == 0;
        code
    }

    /// Asks cons_tres for exactly the nodes of `choice`, and, where it names GPUs, for no others than these.
    pub fn attempt(
        &mut self,
        frame: &Frame<'_>,
        snapshot: &Snapshot,
        choice: &Choice,
        purpose: Purpose,
    ) -> c_int {
        // Undone from below: what is masked, then the candidates.
        let nodes = frame.candidates;
        let mut narrowed = Narrowed::new(frame, &self.saved);
        let _masked = self.masks.scope();
        let (call, source) = (frame.call, &frame.source);
        for one in &choice.nodes {
            if one.gpus == GpuSet::EMPTY {
                continue;
            }
            let unwanted = GpuSet(u64::MAX).minus(one.gpus);
            if let Some(gpus) = snapshot.gpus(source, one.node as usize) {
                self.masks.allocate(source.layout, gpus, unwanted.0);
            }
        }
        slurm_ffi::guard::inject("job_test.masked");
        let chosen = choice.nodes.iter().map(|one| one.node as usize);
        let code = (self.cores).with_fewer(frame, snapshot, chosen.clone(), || {
            nodes.clear();
            chosen.clone().for_each(|node| nodes.set_bit(node, true));
            match purpose {
                Purpose::Answer => call.forward(),
                Purpose::Offer => call.without_preemption(|| call.forward()),
                Purpose::Question => call.forward_without_preemption(),
            }
        });
        narrowed.keep = code == 0 && purpose != Purpose::Question;
        code
    }
}
