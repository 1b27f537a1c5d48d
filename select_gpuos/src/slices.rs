//! Jobs that ask for memory slices of GPUs (GRES `gpuos`).
//!
//! cons_tres counts slices; which of them together make an instance is known here. So it is offered, on
//! each node, exactly the slices of the windows that the job's instances get, all other free ones
//! count as taken for the length of the call. A job for which no windows are free waits: slices that make
//! no window could never be carved.

use std::ffi::{c_int, c_void};

use gpuos_core::explain::{self, Note};
use gpuos_core::mig::{Ask, Effort, Pick, Pool};
use gpuos_core::options::JobOptions;
use slurm_ffi::api::Api;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::check::{self, Gres, Misfit};
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::{Job, Node};
use slurm_ffi::log;

use crate::call::{Call, Counts, Mode, NOT_NOW};
use crate::clock;
use crate::decide::said;
use crate::engine::Engine;
use crate::ledger::Held;
use crate::note::Decision;
use crate::reasons;
use crate::registration;
use crate::request;
use crate::settings::Settings;
use crate::trust::Trust;

/// A node that is in no pool.
const NO_POOL: u32 = u32::MAX;

/// What is kept of slices from call to call.
pub struct Slices {
    /// Whether gpuos.toml names GPUs that are divided. The one test that other jobs pay for.
    pub on: bool,
    gres: Gres,
    trust: Trust,
    /// `None` until it is needed, and where it cannot be made.
    pool: Option<Pool>,
    /// Whether it was tried to make it.
    tried: bool,
    /// By node index: the node's number in the pool.
    nodes: Vec<u32>,
    /// Nodes of which the log says that their slices cannot be given.
    said: Vec<usize>,
    rooms: Vec<Room>,
    /// How many of the nodes that the job of this call names have room.
    named: u32,
    chosen: Vec<(usize, usize, u64)>,
    ends: Ends,
}

/// A node on which a job's instances have windows.
#[derive(Clone, Copy)]
struct Room {
    node: usize,
    /// Address of the node's GRES state. Valid for this call only.
    gres: usize,
    /// Whether the job does not name the node: those that it names come first.
    unnamed: bool,
    /// When the windows are free; 0 = now.
    at: i64,
    weight: u64,
    pick: Pick,
}

/// What running jobs give back.
#[derive(Default)]
struct Ends {
    /// Node index, time, slices.
    all: Vec<(usize, i64, u64)>,
    /// For which second, and which state of the ledger, they were read.
    read: (i64, u64),
}

impl Slices {
    /// Nothing is known yet but whether there will be something to know.
    pub fn new(api: &Api, settings: &Settings) -> Slices {
        Slices {
            on: !settings.config.mig.pools.is_empty(),
            gres: Gres::slices(api),
            trust: Trust::None,
            pool: None,
            tried: false,
            nodes: Vec::new(),
            said: Vec::new(),
            rooms: Vec::new(),
            named: 0,
            chosen: Vec::new(),
            ends: Ends::default(),
        }
    }

    /// Slurm's number of the GRES.
    pub fn id(&self) -> u32 {
        self.gres.id
    }

    /// The layout table is in doubt: what was trusted of slices is looked at again.
    pub fn doubt(&mut self) {
        self.trust = Trust::None;
    }

    /// Whether what jobs have of slices may be read.
    pub fn reads_held(&self) -> bool {
        self.trust == Trust::Selection
    }

    /// Forgets the nodes: their table is made anew.
    pub fn clear(&mut self) {
        self.pool = None;
        self.tried = false;
        self.nodes.clear();
        self.said.clear();
        self.ends = Ends::default();
    }

    /// gpuos.toml was read again.
    pub fn reload(&mut self, settings: &Settings) {
        self.on = !settings.config.mig.pools.is_empty();
        self.clear();
    }

    /// A job has ended.
    pub fn ends(&mut self, job: u32) {
        if let Some(pool) = &mut self.pool {
            pool.ends(job);
        }
    }
}

impl Engine {
    /// What a job asks for of slices, where it names one type of them or none.
    pub(crate) fn slices_asked<'a>(&self, job: Job<'a>) -> Option<JobGres<'a>> {
        self.asked_once(job, self.slices.gres.id)
    }

    /// Whether the job of a call asks for slices. While gpuos.toml is broken nobody knows which make an instance, nor
    /// which belong to GPUs that others may have whole.
    #[cold]
    pub(crate) fn asks_for_slices(&self, call: &Call) -> bool {
        // SAFETY: the job record of this call, locked by slurmctld for its length.
        let job = unsafe { Job::new(call.job, self.layout) };
        job.is_some_and(|job| self.asked(job, self.slices.gres.id).next().is_some())
    }

    /// Decides a call about a job with slices; `None` hands it on as it came.
    #[inline(never)]
    pub(crate) fn place_slices(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        asked: JobGres<'_>,
    ) -> Option<c_int> {
        self.pending = None;
        self.decided(call, Decision::Stock);
        if !self.settings.config.slurm.steer || !self.trusts_slices(job) || !self.has_pool() {
            return None;
        }
        if call.mode() == Mode::RunNow {
            self.withdraw_all(job);
        }
        // SAFETY: called from job_test, under slurmctld's job lock.
        unsafe { reasons::begin(self.api, self.layout, job.id()) };
        // Such a job gets all slices of its nodes. Backfill's first question of two only looks like one.
        let first = call.mode() == Mode::WillRun && job.beside_nobody();
        if job.whole_nodes() && !first {
            return None;
        }
        let ask = self.ask(job, asked)?;
        let counts = request::counts(call.counts, job);
        if self.is_new(job.id())
            && let Some(pool) = &mut self.slices.pool
        {
            pool.arrives(&ask, counts.wanted);
        }
        let mut effort = Effort::default();
        self.find_rooms(nodes, job, asked, &ask, &mut effort);
        self.steering.begin(nodes, None);
        let found = self.slices.rooms.len() as u32;
        let named_all = self.has_named_nodes(job);
        // The rooms that come later are none now.
        let named = self.slices.rooms.iter().filter(|room| !room.unnamed);
        self.slices.named = named.count() as u32;
        if found >= counts.min && named_all {
            let code = self.offer_rooms(call, job, nodes, asked, &ask, counts);
            if code == 0 || call.mode() == Mode::RunNow {
                return Some(code);
            }
        }
        if call.mode() == Mode::RunNow {
            self.say_no_slices(call, job, &ask, (found, counts));
            return Some(NOT_NOW);
        }
        let code = self.slices_later(call, job, nodes, (&ask, &mut effort), counts);
        self.say_no_slices(call, job, &ask, (found, counts));
        Some(code)
    }

    /// Whether requests for slices, and what nodes have of them, fit the layout table.
    fn trusts_slices(&mut self, job: Job<'_>) -> bool {
        match self.slices.trust {
            Trust::None | Trust::Refused => self.comes_to_trust_slices(job),
            Trust::Records | Trust::Selection => true,
        }
    }

    #[cold]
    #[inline(never)]
    fn comes_to_trust_slices(&mut self, job: Job<'_>) -> bool {
        if !self.may_look_at(job) {
            return false;
        }
        let gres = self.slices.gres;
        let (api, layout, strings) = (self.api, self.layout, &self.strings);
        let checked = check::job(api, layout, strings, job.raw(), gres)
            // SAFETY: called from job_test, under slurmctld's node write lock.
            .and_then(|()| unsafe { check::nodes(api, layout, strings, self.table, gres) });
        self.settle_slices(job, checked, Trust::Records)
    }

    /// The same for what cons_tres has selected for the job, before it is read.
    fn trusts_selected_slices(&mut self, job: Job<'_>) -> bool {
        if self.slices.trust != Trust::Records {
            return self.slices.trust == Trust::Selection;
        }
        let gres = self.slices.gres;
        let checked = check::job(self.api, self.layout, &self.strings, job.raw(), gres)
            .and_then(|()| check::held(self.layout, job.raw()).map(drop));
        self.settle_slices(job, checked, Trust::Selection)
    }

    fn settle_slices(&mut self, job: Job<'_>, checked: Result<(), Misfit>, next: Trust) -> bool {
        match checked {
            Ok(()) => self.slices.trust = next,
            Err(_) => self.settle(job.raw(), checked, Trust::Refused),
        }
        self.slices.trust == next
    }

    /// Makes the pool where there is none.
    fn has_pool(&mut self) -> bool {
        if self.slices.pool.is_none() && !std::mem::replace(&mut self.slices.tried, true) {
            self.make_pool();
        }
        self.slices.pool.is_some()
    }

    #[cold]
    #[inline(never)]
    fn make_pool(&mut self) {
        let mig = &self.settings.config.mig;
        let kinds = mig.boards.iter().map(|board| board.geometry.clone());
        let mut pool = match Pool::new(kinds.collect()) {
            Ok(pool) => pool,
            Err(why) => {
                log::error(&format!(
                    "[mig] in gpuos.toml: {why}; jobs with slices get what cons_tres gives them"
                ));
                return;
            }
        };
        let mut numbers = vec![NO_POOL; self.table.len()];
        for (index, number) in numbers.iter_mut().enumerate() {
            // SAFETY: called from job_test, under slurmctld's node write lock.
            let Some(node) = (unsafe { Node::new(self.table.raw(index), self.layout) }) else {
                continue;
            };
            let Some((own, board)) = mig.pool_of(node.name()) else {
                continue;
            };
            match pool.add_node(own.board, own.gpus.len()) {
                Some(added) => *number = added,
                None => log::error(&format!(
                    "{}: {} GPUs {} in one [[mig.pool]] have more than the {} slices that gpuos steers on a node; no \
                     job gets slices there until the pool has fewer GPUs",
                    node.name(),
                    own.gpus.len(),
                    board.name,
                    gpuos_core::mig::pool::MOST_BITS,
                )),
            }
        }
        self.slices.nodes = numbers;
        self.slices.pool = Some(pool);
        self.count_running();
    }

    /// What a job asks for on each kind of GPU. `None`: it is left to cons_tres, which gives any slices.
    fn ask(&self, job: Job<'_>, asked: JobGres<'_>) -> Option<Ask> {
        let slices = asked.per_node();
        if slices == 0 || asked.per_job() | asked.per_task() | asked.per_socket() != 0 {
            return None;
        }
        let pool = self.slices.pool.as_ref()?;
        let options = match job.has_spank_env() {
            true => said(job),
            false => JobOptions::default(),
        };
        if let Some(request) = &options.mig
            && let Some(ask) = Ask::of_request(request, pool, slices)
        {
            return Some(ask);
        }
        // Its instances need windows; a job that only counts slices may do without gpuos.
        (!options.off)
            .then(|| Ask::of_slices(pool, slices))
            .flatten()
    }

    /// Finds the candidates with windows for the job's instances, the best first.
    fn find_rooms(
        &mut self,
        nodes: Bitmap<'_>,
        job: Job<'_>,
        asked: JobGres<'_>,
        ask: &Ask,
        effort: &mut Effort,
    ) {
        self.slices.rooms.clear();
        let Some(prices) = self.slices.pool.as_ref().map(Pool::prices) else {
            return;
        };
        let named = job.required_nodes();
        let count = self.table.len();
        for index in nodes.iter().take_while(|index| *index < count) {
            let Some((number, gres, weight)) = self.look_at_slices(index, asked) else {
                continue;
            };
            let Some(pool) = &mut self.slices.pool else {
                return;
            };
            if let Some(pick) = pool.pick(effort, &prices, number, ask) {
                self.slices.rooms.push(Room {
                    node: index,
                    gres,
                    unnamed: !named.is_some_and(|named| named.test(index)),
                    at: 0,
                    weight,
                    pick,
                });
            }
        }
        sort(&mut self.slices.rooms);
    }

    /// Reads which slices of a node are free into the pool: the node's number there, the address of its GRES
    /// state, and Slurm's weight. `None`: its slices are not for this job.
    fn look_at_slices(&mut self, index: usize, asked: JobGres<'_>) -> Option<(u32, usize, u64)> {
        let number = *self.slices.nodes.get(index)?;
        if number == NO_POOL {
            return None;
        }
        let source = self.source();
        // SAFETY: called from job_test, under slurmctld's node write lock; the slot holds null or a live record.
        let node = unsafe { Node::new(source.table.raw(index), source.layout)? };
        // SAFETY: as above.
        let slices = unsafe { source.gres(node, self.slices.gres.id)? };
        let pool = self.slices.pool.as_mut()?;
        let own = self.settings.config.mig.pool_of(node.name());
        let (own, board) = own?;
        if asked
            .type_name()
            .is_some_and(|name| !name.eq_ignore_ascii_case(&board.name))
        {
            return None;
        }
        // Until it has registered, some releases do not know which of its slices are whose.
        if registration::loses(self.release, slices) && !node.power_saved() {
            return None;
        }
        let has = slices.bits().map_or(0, |bits| bits.len());
        if has != pool.slices_of(number) || slices.topologies() == 0 {
            if !self.slices.said.contains(&index) {
                self.slices.said.push(index);
                log::error(&format!(
                    "{}: GRES gpuos has {has} slices with File= and Type= in gres.conf, and [[mig.pool]] in gpuos.toml \
                     makes it {}; no job gets slices there until both say the same (gpuos discover prints them)",
                    node.name(),
                    pool.slices_of(number),
                ));
            }
            return None;
        }
        let taken = slices.bits().map_or(0, |bits| bits.chunk(0));
        let out = self.service.pool_out(index);
        // One that moves is known by its number in GRES gpu.
        let (whole_out, _) = self.service.of(index);
        let is_out = |nvml: usize| {
            let whole = own.whole(nvml);
            out.contains(nvml) || whole.is_some_and(|number| whole_out.contains(number))
        };
        let each = own.gpus.iter().enumerate();
        let out = each.filter(|(_, nvml)| is_out(*nvml));
        let out = out.fold(0, |all, (nth, _)| all | 1 << nth);
        pool.see(number, taken, out);
        Some((number, slices.raw() as usize, node.weight()))
    }

    /// Whether all nodes that the job names have room.
    fn has_named_nodes(&self, job: Job<'_>) -> bool {
        let named = job.required_nodes().map_or(0, |named| named.count());
        let found = self.slices.rooms.iter().filter(|room| !room.unnamed);
        named == 0 || found.count() == named
    }

    /// Offers nodes to cons_tres, the best first, and at last all that have room.
    fn offer_rooms(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        asked: JobGres<'_>,
        ask: &Ask,
        counts: Counts,
    ) -> c_int {
        let all = self.slices.rooms.len();
        let wanted = (counts.wanted as usize).min(all);
        let named = self
            .slices
            .rooms
            .iter()
            .filter(|room| !room.unnamed)
            .count();
        let most = usize::from(self.settings.config.slurm.attempts);
        let mut code = NOT_NOW;
        for tried in 0..=most {
            // Those that are named, and the next best of the others.
            let others = wanted.saturating_sub(named);
            let from = named + tried;
            let last = tried == most || from + others > all || others == 0;
            let (slices, steering) = (&mut self.slices, &mut self.steering);
            let rooms = &slices.rooms;
            let picked = match last {
                true => [&rooms[..], &[]],
                false => [&rooms[..named], &rooms[from..from + others]],
            };
            slices.chosen.clear();
            let each = picked.into_iter().flatten();
            slices
                .chosen
                .extend(each.map(|room| (room.node, room.gres, room.pick.bits)));
            code = steering.attempt_slices(call, nodes, self.layout, &slices.chosen);
            if code == 0 || last {
                break;
            }
        }
        if code == 0 && call.mode() == Mode::RunNow && self.took_chosen(job, nodes, asked) {
            self.decided(call, Decision::Slices(self.names(nodes, ask)));
        }
        code
    }

    /// Whether cons_tres took the slices that were chosen, on all nodes that it took.
    fn took_chosen(&mut self, job: Job<'_>, nodes: Bitmap<'_>, asked: JobGres<'_>) -> bool {
        if !self.trusts_selected_slices(job) {
            return false;
        }
        let taken = self.slices.chosen.iter().filter(|one| nodes.test(one.0));
        for (node, _, bits) in taken {
            let selected = asked.selected(*node).map(|bits| bits.chunk(0));
            if selected != Some(*bits) {
                log::error(&format!(
                    "job {}: cons_tres took slices {selected:x?} and not {bits:x} of node {node}; its instances cannot \
                     be made there. Report this line with the exact Slurm package",
                    job.id()
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
        let mut kinds = chosen.map(|one| pool.kind_of(self.slices.nodes[one.0]));
        match kinds.next() {
            Some(first) if kinds.all(|kind| kind == first) => ask.names(pool, first),
            _ => String::new(),
        }
    }

    /// A forecast for a job that has no room now: on the nodes where windows are free first, as running jobs end.
    /// cons_tres says when: until then too few of the slices that it may take are free.
    #[inline(never)]
    fn slices_later(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        (ask, effort): (&Ask, &mut Effort),
        counts: Counts,
    ) -> c_int {
        if self.slices.trust != Trust::Selection {
            return NOT_NOW;
        }
        self.read_slice_ends(clock::now());
        let Some(asked) = self.slices_asked(job) else {
            return NOT_NOW;
        };
        let Some(prices) = self.slices.pool.as_ref().map(Pool::prices) else {
            return NOT_NOW;
        };
        let named = job.required_nodes();
        let mut given_back = Vec::new();
        let count = self.table.len();
        // Those that have room now.
        let now = self.slices.rooms.len();
        self.slices.rooms.sort_unstable_by_key(|room| room.node);
        for index in nodes.iter().take_while(|index| *index < count) {
            let rooms = &self.slices.rooms[..now];
            if rooms.binary_search_by_key(&index, |room| room.node).is_ok() {
                continue;
            }
            let Some((number, gres, weight)) = self.look_at_slices(index, asked) else {
                continue;
            };
            let all = &self.slices.ends.all;
            let from = all.partition_point(|one| one.0 < index);
            given_back.clear();
            let own = all[from..].iter().take_while(|one| one.0 == index);
            given_back.extend(own.map(|(_, at, bits)| (*at, *bits)));
            let Some(pool) = &mut self.slices.pool else {
                return NOT_NOW;
            };
            if let Some((at, pick)) = pool.pick_later(effort, &prices, number, ask, &given_back) {
                self.slices.rooms.push(Room {
                    node: index,
                    gres,
                    unnamed: !named.is_some_and(|named| named.test(index)),
                    at: at.max(1),
                    weight,
                    pick,
                });
            }
        }
        sort(&mut self.slices.rooms);
        let all = self.slices.rooms.len();
        if all < counts.min as usize || !self.has_named_nodes(job) {
            return NOT_NOW;
        }
        let mut code = NOT_NOW;
        for count in [(counts.min as usize).min(all), all] {
            let named = self
                .slices
                .rooms
                .iter()
                .filter(|room| !room.unnamed)
                .count();
            let (slices, steering) = (&mut self.slices, &mut self.steering);
            slices.chosen.clear();
            let each = slices.rooms.iter().take(count.max(named));
            slices
                .chosen
                .extend(each.map(|room| (room.node, room.gres, room.pick.bits)));
            code = steering.attempt_slices(call, nodes, self.layout, &slices.chosen);
            if code == 0 {
                break;
            }
        }
        code
    }

    /// Has at hand which slices running jobs give back, and when, by node and time.
    fn read_slice_ends(&mut self, now: i64) {
        let read = (now, self.ledger.changes());
        if self.slices.ends.read == read {
            return;
        }
        let layout = self.layout;
        let mut all = std::mem::take(&mut self.slices.ends.all);
        all.clear();
        self.ledger.for_each_job(|id, held| {
            // SAFETY: job_test runs under slurmctld's job write lock.
            let Some(job) = (unsafe { Job::find(id, layout) }) else {
                return;
            };
            let Some(asked) = self.slices_asked(job) else {
                return;
            };
            let at = job.soonest_end(now);
            let each = held.iter().enumerate();
            all.extend(each.filter_map(|(place, one)| {
                Some((one.node as usize, at, asked.held(place)?.chunk(0)))
            }));
        });
        all.sort_unstable();
        self.slices.ends = Ends { all, read };
    }

    /// A job has slices: remembers what of them a GPU has only one of.
    pub(crate) fn note_slices(&mut self, job: Job<'_>, held: &[Held]) {
        let Some(asked) = self.slices_asked(job) else {
            return;
        };
        let gres = self.slices.gres;
        if self.slices.trust == Trust::Records
            // What a job that runs shows is as good as what one shows that has just been given its slices.
            && check::job(self.api, self.layout, &self.strings, job.raw(), gres).is_ok()
        {
            self.slices.trust = Trust::Selection;
        }
        if self.slices.trust != Trust::Selection {
            return;
        }
        let Some(ask) = self.ask(job, asked) else {
            return;
        };
        let slices = &mut self.slices;
        let on = held.iter().enumerate().filter_map(|(place, one)| {
            let number = slices.nodes.get(one.node as usize);
            let number = number.filter(|number| **number != NO_POOL)?;
            Some((*number, asked.held(place)?.chunk(0)))
        });
        if let Some(pool) = &mut slices.pool {
            pool.holds(job.id(), &ask, on);
        }
    }

    /// A job with slices starts: writes down its instances.
    pub(crate) fn note_slices_start(&mut self, record: *mut c_void, names: String) {
        // SAFETY: the record that slurmctld is starting, under its job write lock; it was trusted when it was decided.
        let Some(job) = (unsafe { Job::new(record, self.layout) }) else {
            return;
        };
        let Some(nodes) = job.given_nodes().filter(|_| !names.is_empty()) else {
            return;
        };
        let name = |index: usize| {
            // SAFETY: called while slurmctld starts a job, under its node write lock.
            let node = unsafe { Node::new(self.table.raw(index), self.layout) };
            node.map(|node| node.name().to_string())
        };
        let note = Note::of_slices(names, nodes.iter().filter_map(name));
        self.write_note(job, &note);
    }

    /// Says why a job with slices waits.
    fn say_no_slices(&self, call: &Call, job: Job<'_>, ask: &Ask, (found, counts): (u32, Counts)) {
        let Some(pool) = &self.slices.pool else {
            return;
        };
        let kinds = 0..pool.kinds();
        let Some(kind) = kinds.clone().find(|kind| ask.fits_kind(*kind)) else {
            return;
        };
        let all = job.required_nodes().map_or(0, |named| named.count());
        let why = explain::no_slices(
            &ask.names(pool, kind),
            found,
            counts.min,
            (self.slices.named, all as u32),
        );
        let sentence = format!("gpuos: {why}");
        reasons::tell(self.api, call.mode(), job, sentence);
    }
}

/// The best first: named ones, then those that are free first, then by Slurm's weight and what others lose.
fn sort(rooms: &mut [Room]) {
    rooms.sort_unstable_by_key(|room| {
        let named = !room.unnamed;
        room.pick.order(named, room.at, room.weight, room.node)
    });
}
