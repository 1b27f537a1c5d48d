//! What cons_tres has refused, remembered so that it does not come back for each job.
//!
//! A refusal says that a node did not serve a job of some form, for a reason that could not be read. The next job of
//! that form is not offered the node again while the node is as it was, nor others of the same kind that have no more
//! free than it had. This can only make an offer be left out: what gpuos has no offer for is decided by cons_tres,
//! and what that takes all the same is forgotten here.

use gpuos_placement::fits::SOCKETS;
use gpuos_placement::plan::NodeChoice;

use crate::abi::source::Source;
use crate::read::ledger::Ledger;
use crate::read::snapshot::{Place, Snapshot};

/// So many forms of request are remembered, the last ones used.
const FORMS: usize = 32;
/// So many nodes are remembered for each.
const NODES: usize = 16;
/// A refusal is forgotten after so many seconds: what it was for may have gone without a trace here.
const SECONDS: i64 = 60;

/// What is known of a node when it is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Its hardware, and which kinds of jobs run there, condensed.
    pub kind: u64,
    /// GPUs that are free.
    pub gpus: u32,
    /// Cores that are free, and those of the socket that has most of them.
    pub cores: u32,
    /// See there.
    pub best_socket: u16,
    /// Memory that is free, in MiB.
    pub memory_mib: u64,
}

impl Facts {
    /// Whether a node like this has no more to give than another one.
    fn within(&self, other: &Facts) -> bool {
        self.kind == other.kind
            && self.gpus <= other.gpus
            && self.cores <= other.cores
            && self.best_socket <= other.best_socket
            && self.memory_mib <= other.memory_mib
    }
}

#[derive(Clone, Copy, Default)]
struct Form {
    form: u64,
    refused: [Facts; NODES],
    count: usize,
    /// When the newest refusal was, in seconds since 1970, and where the next one goes when all places are taken.
    at: i64,
    next: usize,
    used: u64,
}

impl Form {
    fn known(&self) -> &[Facts] {
        &self.refused[..self.count]
    }

    fn learn(&mut self, facts: Facts) {
        if self.known().iter().any(|known| facts.within(known)) {
            return;
        }
        self.drop_where(|known| known.within(&facts));
        let place = match self.count < NODES {
            true => {
                self.count += 1;
                self.count - 1
            }
            false => {
                self.next = (self.next + 1) % NODES;
                self.next
            }
        };
        self.refused[place] = facts;
    }

    fn drop_where(&mut self, drop: impl Fn(&Facts) -> bool) {
        let mut kept = 0;
        for at in 0..self.count {
            if !drop(&self.refused[at]) {
                self.refused[kept] = self.refused[at];
                kept += 1;
            }
        }
        self.count = kept;
    }
}

/// The table of refusals, of fixed size.
pub struct Refusals {
    forms: Box<[Form; FORMS]>,
    count: usize,
    clock: u64,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals {
            forms: Box::new([Form::default(); FORMS]),
            count: 0,
            clock: 0,
        }
    }
}

impl Refusals {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    fn find(&mut self, form: u64) -> Option<&mut Form> {
        let known = &mut self.forms[..self.count];
        known.iter_mut().find(|known| known.form == form)
    }

    /// What was refused to jobs of a form, as far as it still counts at this time.
    fn of(&mut self, form: u64, now: i64) -> Option<&Form> {
        self.clock += 1;
        let clock = self.clock;
        let known = self.find(form).filter(|known| known.count > 0)?;
        known.used = clock;
        if now - known.at > SECONDS {
            known.count = 0;
        }
        (known.count > 0).then_some(&*known)
    }

    /// A node with these facts was refused to a job of this form.
    fn learn(&mut self, form: u64, facts: Facts, now: i64) {
        self.clock += 1;
        let clock = self.clock;
        if self.find(form).is_none() {
            let place = match self.count < FORMS {
                true => {
                    self.count += 1;
                    self.count - 1
                }
                false => {
                    let oldest = (0..FORMS).min_by_key(|at| self.forms[*at].used);
                    oldest.unwrap_or(0)
                }
            };
            self.forms[place] = Form {
                form,
                ..Form::default()
            };
        }
        if let Some(known) = self.find(form) {
            (known.used, known.at) = (clock, now);
            known.learn(facts);
        }
    }

    /// A node with these facts does serve a job of this form.
    fn unlearn(&mut self, form: u64, facts: Facts) {
        if let Some(known) = self.find(form) {
            known.drop_where(|known| facts.within(known));
        }
    }
}

/// The candidates of a call, as far as they speak for or against a node.
pub struct Candidates<'e, 'a> {
    /// Where nodes are read.
    pub source: &'e Source<'a>,
    /// What running jobs hold.
    pub ledger: &'e Ledger,
    /// The candidates.
    pub snapshot: &'e mut Snapshot,
}

impl Candidates<'_, '_> {
    /// What cons_tres may have gone by when it refused a node, or took it.
    fn facts(&self, index: usize) -> Option<Facts> {
        let places = &self.snapshot.places;
        let place: &Place = places.get(index).filter(|place| place.has_gpus())?;
        let node = self.source.node(index)?;
        let sum = self.ledger.sum(index);
        let cores = node.cores_per_socket();
        let free = sum.cores[..usize::from(node.sockets()).min(SOCKETS)]
            .iter()
            .map(|used| cores.saturating_sub(*used));
        let (mut all, mut best) = (0, 0);
        for free in free {
            all += u32::from(free);
            best = best.max(free);
        }
        let kinds = sum.jobs.map(|jobs| u64::from(jobs > 0));
        Some(Facts {
            kind: place.weight & !0xff
                ^ self.snapshot.signatures.get(index).copied().unwrap_or(0)
                ^ node.memory_for_jobs().rotate_left(40)
                ^ kinds[0] << 1
                ^ kinds[1] << 2
                ^ kinds[2] << 3
                ^ u64::from(node.threads()) << 8,
            gpus: self.snapshot.states[index].free.len() as u32,
            cores: all,
            best_socket: best,
            memory_mib: node.memory_for_jobs().saturating_sub(sum.memory_mib),
        })
    }

    /// Has the nodes that are meant have nothing free for the job of this call; whether there were any.
    fn leave_out_where(&mut self, refused: impl Fn(&Facts) -> bool) -> bool {
        let mut any = false;
        for index in 0..self.snapshot.places.len() {
            if self.facts(index).is_some_and(|facts| refused(&facts)) {
                let state = &mut self.snapshot.states[index];
                (state.free_cpus, state.free_memory_mib) = (0, 0);
                any = true;
            }
        }
        any
    }
}

/// What came of a refusal: whether the next question should be asked anew, and whether nodes were left out for that.
pub struct Lesson {
    /// The choices are to be counted anew.
    pub recount: bool,
    /// Nodes were left out.
    pub left_out: bool,
}

impl Refusals {
    /// Leaves out the candidates that an earlier refusal to a job of this form speaks against; whether there were any.
    pub fn leave_out(&mut self, form: u64, now: i64, candidates: &mut Candidates<'_, '_>) -> bool {
        let Some(known) = self.of(form, now) else {
            return false;
        };
        let known = known.known();
        candidates.leave_out_where(|facts| known.iter().any(|known| facts.within(known)))
    }

    /// cons_tres has refused these nodes to a job of this form: the next question should be asked without those that it
    /// may have been for, a single node, or the one of several that has least.
    pub fn refused(
        &mut self,
        (form, now): (u64, i64),
        nodes: &[NodeChoice],
        candidates: &mut Candidates<'_, '_>,
        suspect: &mut Option<Facts>,
    ) -> Lesson {
        let (anew, left_out) = (false, false);
        let facts = nodes.iter();
        let facts = facts.filter_map(|one| candidates.facts(one.node as usize));
        let Some(least) = facts.min_by_key(|facts| (facts.cores, facts.memory_mib, facts.gpus))
        else {
            return Lesson {
                recount: anew,
                left_out,
            };
        };
        match nodes.len() {
            1 => self.learn(form, least, now),
            // Believed once the others are taken.
            _ if suspect.is_none() => *suspect = Some(least),
            _ => {
                return Lesson {
                    recount: anew,
                    left_out,
                };
            }
        }
        let left_out = candidates.leave_out_where(|facts| facts.within(&least));
        Lesson {
            recount: true,
            left_out,
        }
    }

    /// cons_tres has taken what it was offered, after these nodes had been left out on suspicion.
    pub fn confirmed(&mut self, form: u64, now: i64, suspect: Option<Facts>) {
        if let Some(facts) = suspect {
            self.learn(form, facts, now);
        }
    }

    /// cons_tres has taken a node by itself.
    pub fn took(&mut self, form: u64, index: usize, candidates: &Candidates<'_, '_>) {
        if let Some(facts) = candidates.facts(index) {
            self.unlearn(form, facts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(cores: u32, memory_mib: u64) -> Facts {
        Facts {
            kind: 1,
            gpus: 8,
            cores,
            best_socket: cores as u16,
            memory_mib,
        }
    }

    #[test]
    fn a_refusal_counts_for_nodes_with_no_more_for_a_while() {
        let mut table = Refusals::default();
        table.learn(7, facts(4, 100), 1000);
        let refuses = |table: &mut Refusals, form, facts: Facts, now| {
            let known = table.of(form, now);
            known.is_some_and(|known| known.known().iter().any(|known| facts.within(known)))
        };
        assert!(refuses(&mut table, 7, facts(4, 100), 1001));
        assert!(refuses(&mut table, 7, facts(3, 100), 1001));
        assert!(!refuses(&mut table, 7, facts(5, 100), 1001));
        assert!(!refuses(&mut table, 7, facts(4, 101), 1001));
        assert!(!refuses(&mut table, 8, facts(4, 100), 1001));
        assert!(!refuses(&mut table, 7, facts(4, 100), 1000 + SECONDS + 1));
        // What serves all the same is forgotten, with what says more.
        table.learn(7, facts(4, 100), 2000);
        table.learn(7, facts(9, 50), 2000);
        table.unlearn(7, facts(3, 80));
        assert!(!refuses(&mut table, 7, facts(3, 80), 2000));
        assert!(refuses(&mut table, 7, facts(9, 50), 2000));
    }

    #[test]
    fn the_table_does_not_grow() {
        let mut table = Refusals::default();
        for form in 0..1000 {
            for n in 0..100 {
                table.learn(form, facts(n, u64::from(200 - n)), 1000);
            }
        }
        assert_eq!(table.count, FORMS);
        assert!(table.forms.iter().all(|form| form.count <= NODES));
        // The last form is there, the first ones are not.
        assert!(table.of(999, 1000).is_some() && table.of(3, 1000).is_none());
        // A node that is worth more takes the place of those that are worth less.
        table.learn(999, facts(1000, 1000), 1000);
        assert_eq!(table.of(999, 1000).map(|form| form.count), Some(1));
    }
}
