//! Where a job with slices goes: the phase that decides a call about one.

use std::ffi::c_int;

use gpuos_placement::explain;
use gpuos_placement::mig::offer::{self, Candidate, Needs, Released};
use gpuos_placement::mig::{Ask, Effort, Pool};
use slurm_ffi::bits::Bitmap;
use slurm_ffi::check::Misfit;
use slurm_ffi::gres::JobGres;
use slurm_ffi::log;

use crate::abi::call::NOT_NOW;
use crate::abi::frame::Frame;
use crate::gres::slices::{Ends, Slices};
use crate::gres::steer::Steering;
use crate::messages;
use crate::read::ledger::Ledger;
use crate::read::request;
use crate::read::service::Service;
use crate::read::site::Site;
use crate::tell::reasons;

/// A call about a job with slices, whose request fits the layout table, once there is a pool.
pub struct SlicePlacing<'e, 'a> {
    /// The call.
    pub frame: &'e Frame<'a>,
    /// This slurmctld.
    pub site: &'e Site,
    /// GPUs that are divided.
    pub slices: &'e mut Slices,
    /// What is out of service.
    pub service: &'e Service,
    /// What running jobs hold.
    pub ledger: &'e Ledger,
    /// How cons_tres is asked.
    pub steering: &'e mut Steering,
    /// What the job asks for.
    pub asked: JobGres<'a>,
    /// The instances that it has got, where it starts.
    pub instances: Option<String>,
    /// What cons_tres selected and is not understood.
    pub doubt: Option<Misfit>,
}

/// What came of the search for placements that are free now.
#[derive(Clone, Copy)]
struct Search {
    /// Nodes with room.
    found: u32,
    needs: Needs,
}

impl<'a> SlicePlacing<'_, 'a> {
    /// Decides the call; `None` hands it on as it came. `is_new`: whether the job comes for the first time.
    #[inline(never)]
    pub fn place(&mut self, is_new: impl FnOnce() -> bool) -> Option<c_int> {
        let (frame, job) = (self.frame, self.frame.job);
        // Such a job gets all slices of its nodes. Backfill's first question of two only looks like one.
        let first = frame.is_forecast() && job.beside_nobody();
        if job.whole_nodes() && !first {
            return None;
        }
        let ask = self.slices.ask(job, self.asked)?;
        let counts = request::counts(frame.call.counts, job);
        if is_new()
            && let Some(pool) = &mut self.slices.pool
        {
            pool.arrives(&ask, counts.wanted);
        }
        let mut effort = Effort::default();
        self.find(&ask, &mut effort);
        self.steering.begin(frame, None);
        let named = job.required_nodes().map_or(0, |named| named.count());
        let search = Search {
            found: self.slices.candidates.len() as u32,
            needs: Needs {
                min: counts.min as usize,
                wanted: counts.wanted as usize,
                named,
            },
        };
        // Those that have room later have none now.
        self.slices.named = self.slices.candidates.named() as u32;
        if self.slices.candidates.serve(search.needs) {
            let code = self.offer(&ask, search.needs);
            if code == 0 || frame.is_start() {
                return Some(code);
            }
        }
        let code = match frame.is_start() {
            true => NOT_NOW,
            false => self.later(&ask, &mut effort, search.needs),
        };
        self.publish_wait(&ask, search);
        Some(code)
    }

    /// Finds the candidates with placements for the job's instances, the best first.
    fn find(&mut self, ask: &Ask, effort: &mut Effort) {
        let frame = self.frame;
        self.slices.candidates.clear();
        let Some(prices) = self.slices.pool.as_ref().map(Pool::prices) else {
            return;
        };
        let named = frame.job.required_nodes();
        for index in frame.indices() {
            let Some((number, weight)) = self.node_offer(index) else {
                continue;
            };
            let Some(pool) = &mut self.slices.pool else {
                return;
            };
            if let Some(pick) = pool.pick(effort, &prices, number, ask) {
                self.slices.candidates.push(Candidate {
                    node: index,
                    named: named.is_some_and(|named| named.test(index)),
                    at: 0,
                    weight,
                    pick,
                });
            }
        }
        self.slices.candidates.rank();
    }

    fn node_offer(&mut self, index: usize) -> Option<(u32, u64)> {
        let (site, source) = (self.site, &self.frame.source);
        let number = (self.slices).node_state(site, self.service, source, index, self.asked)?;
        Some((number, self.frame.weight(source.node(index)?)))
    }

    /// Offers nodes to cons_tres, the best first, and at last all that have room.
    fn offer(&mut self, ask: &Ask, needs: Needs) -> c_int {
        let frame = self.frame;
        let most = usize::from(self.site.settings.config.slurm.attempts);
        let mut code = NOT_NOW;
        for tried in 0..=most {
            let (slices, steering) = (&mut *self.slices, &mut *self.steering);
            let (offered, last) = slices.candidates.offered(needs, tried, most);
            slices.chosen.clear();
            let each = offered.map(|one| (one.node, one.pick.bits));
            slices.chosen.extend(each);
            code = steering.attempt_slices(frame, slices.id(), &slices.chosen);
            if last || code == 0 && !steering.takes_back_later(frame, self.site.release) {
                break;
            }
        }
        if code == 0 && frame.is_start() && self.took_chosen() {
            self.instances = Some(self.names(frame.candidates, ask));
        }
        code
    }

    /// Whether cons_tres took the slices that were chosen, on all nodes that it took.
    fn took_chosen(&mut self) -> bool {
        let (job, nodes) = (self.frame.job, self.frame.candidates);
        match self.slices.trusts_selected(self.site, job) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(misfit) => {
                self.doubt = Some(misfit);
                return false;
            }
        }
        let taken = self.slices.chosen.iter().filter(|one| nodes.test(one.0));
        for (node, bits) in taken {
            let selected = self.asked.selected(*node).map(|bits| bits.chunk(0));
            if selected != Some(*bits) {
                log::error(&messages::other_slices_taken(
                    job.id(),
                    format_args!("{selected:x?}"),
                    format_args!("{bits:x}"),
                    node,
                ));
                return false;
            }
        }
        true
    }

    /// The instances on each of the nodes that cons_tres took; empty where they are not the same on all.
    fn names(&self, nodes: Bitmap<'_>, ask: &Ask) -> String {
        let Some(pool) = &self.slices.pool else {
            return String::new();
        };
        let chosen = self.slices.chosen.iter().filter(|one| nodes.test(one.0));
        let mut kinds = chosen.map(|one| pool.kind_of(self.slices.number(one.0)));
        match kinds.next() {
            Some(first) if kinds.all(|kind| kind == first) => ask.names(pool, first),
            _ => String::new(),
        }
    }

    /// A forecast for a job that has no room now: on the nodes where placements are free first, as running jobs end.
    /// cons_tres says when: until then too few of the slices that it may take are free.
    #[inline(never)]
    fn later(&mut self, ask: &Ask, effort: &mut Effort, needs: Needs) -> c_int {
        let (frame, job) = (self.frame, self.frame.job);
        if !self.slices.reads_held() {
            return NOT_NOW;
        }
        self.read_ends();
        let Some(prices) = self.slices.pool.as_ref().map(Pool::prices) else {
            return NOT_NOW;
        };
        let named = job.required_nodes();
        let mut given_back = Vec::new();
        self.slices.candidates.begin_later();
        for index in frame.indices() {
            if self.slices.candidates.fits_now(index) {
                continue;
            }
            let Some((number, weight)) = self.node_offer(index) else {
                continue;
            };
            given_back.clear();
            given_back.extend(offer::releases_of(&self.slices.ends.all, index));
            let Some(pool) = &mut self.slices.pool else {
                return NOT_NOW;
            };
            if let Some((at, pick)) = pool.pick_later(effort, &prices, number, ask, &given_back) {
                self.slices.candidates.push(Candidate {
                    node: index,
                    named: named.is_some_and(|named| named.test(index)),
                    at: at.max(1),
                    weight,
                    pick,
                });
            }
        }
        self.slices.candidates.rank();
        if !self.slices.candidates.serve(needs) {
            return NOT_NOW;
        }
        let mut code = NOT_NOW;
        let (slices, steering) = (&mut *self.slices, &mut *self.steering);
        let gres = slices.id();
        for offered in slices.candidates.offered_later(needs) {
            slices.chosen.clear();
            let each = offered.iter().map(|one| (one.node, one.pick.bits));
            slices.chosen.extend(each);
            code = steering.attempt_slices(frame, gres, &slices.chosen);
            if code == 0 {
                break;
            }
        }
        code
    }

    /// Has at hand which slices running jobs give back, and when, by node and time.
    fn read_ends(&mut self) {
        let (source, now) = (&self.frame.source, self.frame.now);
        let read = (now, self.ledger.changes());
        if self.slices.ends.read == read {
            return;
        }
        let mut all = std::mem::take(&mut self.slices.ends.all);
        all.clear();
        self.ledger.for_each_job(|id, held| {
            let Some(job) = source.job(id) else {
                return;
            };
            let Some(asked) = self.slices.asked(source, job) else {
                return;
            };
            let at = job.soonest_end(now);
            let each = held.iter().enumerate();
            all.extend(each.filter_map(|(place, one)| {
                Some(Released {
                    node: one.node as usize,
                    at,
                    bits: asked.held(place)?.chunk(0),
                })
            }));
        });
        all.sort_unstable();
        self.slices.ends = Ends { all, read };
    }

    /// Says why a job with slices waits.
    fn publish_wait(&self, ask: &Ask, search: Search) {
        let frame = self.frame;
        let Some(pool) = &self.slices.pool else {
            return;
        };
        let kinds = 0..pool.kinds();
        let Some(kind) = kinds.clone().find(|kind| ask.fits_kind(*kind)) else {
            return;
        };
        let why = explain::no_slices(
            &ask.names(pool, kind),
            search.found,
            search.needs.min as u32,
            (self.slices.named, search.needs.named as u32),
        );
        let sentence = format!("gpuos: {why}");
        reasons::publish(frame, sentence);
    }
}
