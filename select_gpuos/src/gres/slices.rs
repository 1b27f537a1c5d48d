//! Jobs that ask for memory slices of GPUs (GRES `gpuos`).
//!
//! cons_tres counts slices; which of them together make an instance is known here. So it is offered, on
//! each node, exactly the slices of the placements that the job's instances get, all other free ones
//! count as taken for the length of the call. A job for which no placements are free waits: slices that make
//! no placement could never be carved.

use gpuos_config::options::JobOptions;
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_placement::mig::offer::{self, Candidates, Released};
use gpuos_placement::mig::{Ask, Pool};
use slurm_ffi::api::Api;
use slurm_ffi::check::{self, Gres, Misfit};
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::log;

use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::gres::registration;
use crate::messages;
use crate::read::ledger::Holding;
use crate::read::request;
use crate::read::service::Service;
use crate::read::settings::Settings;
use crate::read::site::Site;
use crate::read::trust::{self, LayoutTrust, Trust};

/// A node that is in no pool.
const NO_POOL: u32 = u32::MAX;

/// What is kept of slices from call to call.
pub struct Slices {
    /// Whether gpuos.toml names GPUs that are divided. The one test that other jobs pay for.
    pub on: bool,
    gres: Gres,
    trust: Trust,
    /// `None` until it is needed, and where it cannot be made.
    pub pool: Option<Pool>,
    /// Whether it was tried to make it.
    tried: bool,
    /// By node index: the node's number in the pool.
    nodes: Vec<u32>,
    /// Nodes of which the log says that their slices cannot be given.
    logged: Vec<usize>,
    /// The nodes that the job of this call may be offered.
    pub candidates: Candidates,
    /// How many of the nodes that the job of this call names have room.
    pub named: u32,
    /// What cons_tres is offered: nodes, and the slices of each.
    pub chosen: Vec<(usize, u64)>,
    /// What running jobs give back.
    pub ends: Ends,
}

/// What running jobs give back.
#[derive(Default)]
pub struct Ends {
    /// In order.
    pub all: Vec<Released>,
    /// For which second, and which state of the ledger, they were read.
    pub read: (i64, u64),
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
            logged: Vec::new(),
            candidates: Candidates::default(),
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

    /// The number of a node in the pool.
    pub fn number(&self, node: usize) -> u32 {
        self.nodes[node]
    }

    /// The GRES, where what jobs have of it may be read.
    pub fn readable(&self) -> Option<u32> {
        self.reads_held().then_some(self.gres.id)
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
        self.logged.clear();
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

impl Slices {
    /// What a job asks for of slices, where it names one type of them or none.
    pub fn asked<'a>(&self, source: &Source<'a>, job: Job<'a>) -> Option<JobGres<'a>> {
        source.asked_once(job, self.gres.id)
    }

    /// Whether the job of a call asks for slices, of whatever types.
    #[cold]
    pub fn are_asked(&self, frame: &Frame<'_>) -> bool {
        let mut asked = frame.source.asked(frame.job, self.gres.id);
        asked.next().is_some()
    }

    /// Whether requests for slices, and what nodes have of them, fit the layout table.
    pub fn trusts(
        &mut self,
        site: &Site,
        trust: &LayoutTrust,
        source: &Source<'_>,
        job: Job<'_>,
    ) -> Result<bool, Misfit> {
        match self.trust {
            Trust::None | Trust::Refused if trust.may_recheck_job(job) => {
                self.comes_to_trust(site, source, job)?;
                Ok(true)
            }
            Trust::None | Trust::Refused => Ok(false),
            Trust::Records | Trust::Selection => Ok(true),
        }
    }

    #[cold]
    #[inline(never)]
    fn comes_to_trust(
        &mut self,
        site: &Site,
        source: &Source<'_>,
        job: Job<'_>,
    ) -> Result<(), Misfit> {
        trust::check_gres(site, job, self.gres)?;
        source.check_nodes(&site.strings, self.gres)?;
        self.trust = Trust::Records;
        Ok(())
    }

    /// The same for what cons_tres has selected for the job, before it is read.
    pub fn trusts_selected(&mut self, site: &Site, job: Job<'_>) -> Result<bool, Misfit> {
        if self.trust == Trust::Records {
            trust::check_gres(site, job, self.gres)?;
            check::held(site.layout, job.raw())?;
            self.trust = Trust::Selection;
        }
        Ok(self.trust == Trust::Selection)
    }

    /// Makes the pool where there is none; whether it did. Then it is to be told what running jobs hold.
    pub fn makes_pool(&mut self, site: &Site, source: &Source<'_>) -> bool {
        let makes = self.pool.is_none() && !std::mem::replace(&mut self.tried, true);
        if makes {
            self.make_pool(site, source);
        }
        makes && self.pool.is_some()
    }

    #[cold]
    #[inline(never)]
    fn make_pool(&mut self, site: &Site, source: &Source<'_>) {
        let mig = &site.settings.config.mig;
        let kinds = mig.boards.iter().map(|board| board.geometry.clone());
        let mut pool = match Pool::new(kinds.collect()) {
            Ok(pool) => pool,
            Err(why) => {
                log::error(&messages::no_pool(why));
                return;
            }
        };
        let mut numbers = vec![NO_POOL; source.nodes()];
        for (index, number) in numbers.iter_mut().enumerate() {
            let Some(node) = source.node(index) else {
                continue;
            };
            let Some((own, board)) = mig.pool_of(node.name()) else {
                continue;
            };
            match pool.add_node(own.board, own.gpus.len()) {
                Some(added) => *number = added,
                None => log::error(&messages::pool_is_too_large(
                    node.name(),
                    own.gpus.len(),
                    &board.name,
                    gpuos_placement::mig::pool::MOST_BITS,
                )),
            }
        }
        self.nodes = numbers;
        self.pool = Some(pool);
    }

    /// What a job asks for on each kind of GPU. `None`: it is left to cons_tres, which gives any slices.
    pub fn ask(&self, job: Job<'_>, asked: JobGres<'_>) -> Option<Ask> {
        let slices = asked.per_node();
        if slices == 0 || asked.per_job() | asked.per_task() | asked.per_socket() != 0 {
            return None;
        }
        let pool = self.pool.as_ref()?;
        let options = match job.has_spank_env() {
            true => request::options_of(job),
            false => JobOptions::default(),
        };
        if let Some(request) = &options.mig
            && let Some(ask) = Ask::of_request(request, pool, slices)
        {
            return Some(ask);
        }
        // Its instances need placements; a job that only counts slices may do without gpuos.
        (!options.off)
            .then(|| Ask::of_slices(pool, slices))
            .flatten()
    }

    /// Reads which slices of a node are free into the pool: the node's number there. `None`: its
    /// slices are not for this job.
    pub fn node_state(
        &mut self,
        site: &Site,
        service: &Service,
        source: &Source<'_>,
        index: usize,
        asked: JobGres<'_>,
    ) -> Option<u32> {
        let number = *self.nodes.get(index)?;
        if number == NO_POOL {
            return None;
        }
        let node = source.node(index)?;
        let slices = source.gres(node, self.gres.id)?;
        let pool = self.pool.as_mut()?;
        let own = site.settings.config.mig.pool_of(node.name());
        let (own, board) = own?;
        if asked
            .type_name()
            .is_some_and(|name| !name.eq_ignore_ascii_case(&board.name))
        {
            return None;
        }
        // Until it has registered, some releases do not know which of its slices are whose.
        if registration::loses(site.release, node, slices) {
            return None;
        }
        let has = slices.devices();
        if has != pool.slices_of(number) || slices.topologies() == 0 {
            if !self.logged.contains(&index) {
                self.logged.push(index);
                log::error(&messages::slices_differ(
                    node.name(),
                    has,
                    pool.slices_of(number),
                ));
            }
            return None;
        }
        let taken = slices.allocated_devices();
        // A MIG-switchable one is known by its number in GRES gpu.
        let (gres_out, _) = service.of(index);
        let gres_of = |nvml: NvmlIndex| own.whole(nvml);
        let out = offer::out_of_service(own.gpus, service.pool_out(index), gres_out, gres_of);
        pool.see(number, taken, out);
        Some(number)
    }

    /// A job has slices: remembers what of them a GPU has only one of.
    pub fn note<'a>(&mut self, site: &Site, source: &Source<'a>, job: Job<'a>, held: &[Holding]) {
        let Some(asked) = self.asked(source, job) else {
            return;
        };
        let gres = self.gres;
        if self.trust == Trust::Records
            // What a job that runs shows is as good as what one shows that has just been given its slices.
            && trust::check_gres(site, job, gres).is_ok()
        {
            self.trust = Trust::Selection;
        }
        if self.trust != Trust::Selection {
            return;
        }
        let Some(ask) = self.ask(job, asked) else {
            return;
        };
        let slices = self;
        let on = held.iter().enumerate().filter_map(|(place, one)| {
            let number = slices.nodes.get(one.node as usize);
            let number = number.filter(|number| **number != NO_POOL)?;
            Some((*number, asked.held(place)?.chunk(0)))
        });
        if let Some(pool) = &mut slices.pool {
            pool.holds(job.id(), &ask, on);
        }
    }
}
