//! The phase that decides: from the job of a call to the answer for Slurm.

pub mod cluster_state;
pub mod forecast;
pub mod held;
pub mod mix;
pub mod neighbours;
pub mod no_choice;
pub mod note;
pub mod offer;
pub mod policy;
pub mod refusals;
pub mod running;
pub mod short;
pub mod shortage;
pub mod slices;
pub mod views;

use std::ffi::c_int;

use gpuos_config::options::JobOptions;
use gpuos_placement::plan::{Choice, GpuShape, Placement};
use gpuos_placement::record::{self, Tally};
use slurm_ffi::check::Misfit;
use slurm_ffi::gres::JobGres;

use crate::abi::call::{Mode, NOT_NOW};
use crate::abi::frame::Frame;
use crate::decide::cluster_state::ClusterState;
use crate::decide::forecast::{Forecasting, Forecasts};
use crate::decide::held::Holders;
use crate::decide::no_choice::NoChoice;
use crate::decide::note::{Decision, Pending};
use crate::decide::refusals::{Candidates, Refusals};
use crate::decide::short::Short;
use crate::decide::slices::SlicePlacing;
use crate::gres::steer::Steering;
use crate::read::demand::{Demand, Fitting};
use crate::read::request::{self, Wanted};
use crate::read::site::Site;
use crate::read::snapshot::Place;
use crate::read::trust::LayoutTrust;
use crate::tell::reasons;
use crate::tell::refused::Refused;

/// The options of a job that has none.
static NOTHING_SAID: JobOptions = JobOptions {
    off: false,
    topology: None,
    placement: None,
    shape: None,
    profile: None,
    class: None,
    exclusive: None,
    power: None,
    clocks: None,
    watch_s: None,
    mps: None,
    mig: None,
    share: None,
    checkpoint: None,
    restart: None,
    spares: None,
    memory: None,
};

/// What is kept of decisions from call to call.
#[derive(Default)]
pub struct Placing {
    /// How cons_tres is asked.
    pub steering: Steering,
    /// What came of forecasts.
    pub forecasts: Forecasts,
    /// What cons_tres has refused, and for which jobs.
    pub refusals: Refusals,
    /// Whether idle cores that a job has no use for are hidden from cons_tres.
    pub hides_cores: bool,
    /// Why the call that is being decided would be refused.
    pub refused: Refused,
    /// The job of which the log has last that it was given too little.
    pub short_logged: Option<u32>,
    /// The candidates of a call in which some GPUs count as given.
    pub offered: Vec<u64>,
    /// What the job at hand needs of its nodes beside GPUs.
    pub demand: Demand,
    /// The choice that the last successful attempt followed.
    pub chosen: Choice,
    /// Which attempt that was, counted from 0.
    pub attempt: u32,
    /// Which candidates hold checkpoints of the job that was looked at last.
    pub holders: Holders,
    /// Which are short of host memory, where it may need some.
    pub short: Short,
    /// What is to be noted when the job that was decided last starts.
    pub pending: Option<Pending>,
}

/// A call that cons_tres decides, by what gpuos had to do with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HandedOn {
    /// Nothing, or there was nothing to choose.
    #[default]
    Elsewhere,
    /// gpuos has no plan for jobs of this form, or is not to have one.
    Unplanned,
    /// gpuos knew of no place, or cons_tres refused those that it was offered.
    Refused,
}

/// What gpuos made of a call.
#[derive(Default)]
pub struct Answer {
    /// The answer to Slurm; `None`: cons_tres decides.
    pub code: Option<c_int>,
    /// What it means if cons_tres starts the job by itself.
    pub left: HandedOn,
    /// Whether a choice was followed whose GPUs may have to be named.
    pub planned: bool,
    /// What the job shows and is not understood.
    pub doubt: Option<Misfit>,
}

/// A call about a job whose record is trusted, among the candidates that are left to it.
pub struct Decide<'e, 'a> {
    /// The call.
    pub frame: &'e Frame<'a>,
    /// This slurmctld.
    pub site: &'e Site,
    /// How far the layout table is trusted.
    pub trust: &'e mut LayoutTrust,
    /// What is known of the cluster.
    pub cluster: &'e mut ClusterState,
    /// What is kept of decisions.
    pub placing: &'e mut Placing,
    /// What has come of it so far.
    pub answer: Answer,
    /// Whether cons_tres gave less than was asked for, so that it is to decide alone.
    pub fell_short: bool,
    /// GPUs that cons_tres gives the job by itself, where the request does not say how many they are; 0 = not asked.
    pub plain: u64,
}

impl<'a> Decide<'_, 'a> {
    /// Decides the call.
    pub fn run(mut self) -> Answer {
        self.answer.code = self.decide();
        self.answer
    }

    /// `None` hands the call on as it came.
    fn decide(&mut self) -> Option<c_int> {
        let frame = self.frame;
        let (source, job) = (&frame.source, frame.job);
        if job.id() == 0 {
            return None;
        }
        if self.cluster.slices.on
            && let Some(asked) = self.cluster.slices.asked(source, job)
        {
            return self.place_slices(asked);
        }
        if self.cluster.shards.has_any()
            && let Some(asked) = self.cluster.shards.asked(frame)
        {
            return self.place_shards(asked);
        }
        let Some(gpus) = source.one_type(job) else {
            if source.wants_gpus(job) {
                self.begin_call();
                return None;
            }
            return self.without_gpus();
        };
        // Unless something is decided below, cons_tres chooses by itself.
        self.placing.pending = None;
        self.keep(Decision::Stock);
        if frame.is_start() {
            self.trust.selections(None).withdraw(source, gpus);
        }
        if !self.site.steers() {
            return None;
        }
        self.begin_call();
        reasons::begin(frame);
        let knows = self.trust.selections(None).gpus;
        let release = self.site.release;
        let forecasts = (self.placing.forecasts).may_answer(frame, release, knows);
        match self.nothing_to_choose(gpus) {
            Some(NoChoice::TooFewNodes { .. }) if forecasts => {}
            Some(nothing) => {
                self.answer.left = HandedOn::Elsewhere;
                return self.delegate(nothing);
            }
            None => {}
        }
        let said = job.has_spank_env().then(|| request::options_of(job));
        let options = said.as_ref().unwrap_or(&NOTHING_SAID);
        // Who asks Slurm to spread a job, and gpuos for no place, wants what gpuos avoids.
        if options.off || job.is_spread() && !options.asks_for_place() {
            return None;
        }
        let kind = gpus.type_name();
        (self.cluster).take_snapshot(frame.is_forecast(), source, frame.candidates, kind);
        if self.cluster.snapshot.unlisted || !self.model() {
            return None;
        }
        match self.site.settings.view_of(job) {
            Some(view) => self.cluster.use_view(view),
            // A choice of nodes by another fabric could tear apart what Slurm would keep together.
            None if self.hands_on_unseen(options) => return None,
            None => self.cluster.use_view(0),
        }
        let counts = frame.call.counts;
        let mut wanted = (self.cluster).wanted(self.site, source, counts, (job, gpus), options)?;
        let (planner, states) = (&self.cluster.planner, &self.cluster.snapshot.states);
        let typed = kind.is_some();
        (self.cluster.mix).arrives(frame, planner.as_ref(), states, &wanted, typed);
        if let Placement::Affinity(names) | Placement::AntiAffinity(names) =
            &wanted.request.placement
        {
            self.count_named(names);
        }
        (self.cluster.neighbours).mark_avoided(job.id(), &mut self.cluster.snapshot);
        self.find_holders(options);
        self.placing.holders.mark(&mut self.cluster.snapshot);
        (self.placing.short).find(frame, &self.cluster.service, options);
        self.placing.short.mark(&mut self.cluster.snapshot);
        self.fit(gpus, &mut wanted);
        self.answer.left = HandedOn::Elsewhere;
        self.placing.refused.asks(&wanted.request);
        let purpose = match frame.mode {
            Mode::RunNow => record::Purpose::Start,
            _ => record::Purpose::Forecast,
        };
        self.cluster.records.begin(job.id(), purpose);
        let enough = self.cores_enough(gpus, &wanted);
        self.placing.steering.begin(frame, enough);
        if forecasts && let Some(code) = self.forecast(&wanted) {
            return Some(code);
        }
        if let Some(decided) = self.without_a_plan(&wanted) {
            return match decided {
                NoPlan::Answer(code) => {
                    if code == 0 {
                        self.count_only_way();
                        self.keep(Decision::OnlyWay(wanted.request));
                    }
                    Some(code)
                }
                NoPlan::Stock => None,
            };
        }
        let spread = match self.depends_on_nodes(&wanted) {
            true => self.ask_plainly(),
            false => 0,
        };
        let offered = if self.may_spread(&wanted) && spread > wanted.nodes {
            let call = self.frame.call;
            call.asking_for_nodes(spread, || self.offer_nodes(spread, gpus, &mut wanted))
        } else {
            match self.offer(&mut wanted) {
                None if self.fell_short => None,
                None => self.offer_more_nodes(gpus, &mut wanted),
                answer => answer,
            }
        };
        let Some(code) = offered else {
            self.cluster.records.ended(record::Outcome::Left);
            self.answer.left = HandedOn::Refused;
            return None;
        };
        self.cluster.records.ended(match code {
            0 => record::Outcome::Taken,
            _ => record::Outcome::Waits,
        });
        if code == 0 && frame.is_start() {
            self.count(|tally| tally.placed += 1);
            self.answer.planned = true;
            self.keep(Decision::Planned(wanted.request));
        }
        Some(code)
    }

    fn place_slices(&mut self, asked: JobGres<'a>) -> Option<c_int> {
        let (frame, site) = (self.frame, self.site);
        let (source, job) = (&frame.source, frame.job);
        self.placing.pending = None;
        self.keep(Decision::Stock);
        if !site.steers() {
            return None;
        }
        let fits = (self.cluster.slices).trusts(site, self.trust, source, job);
        if !self.fits(fits) {
            return None;
        }
        if self.cluster.slices.makes_pool(site, source) {
            self.cluster.count_running(site, self.trust, source);
        }
        self.cluster.slices.pool.as_ref()?;
        if frame.is_start() {
            let slices = self.cluster.slices.readable();
            self.trust.selections(slices).withdraw_all(frame);
        }
        reasons::begin(frame);
        let ClusterState {
            slices,
            service,
            ledger,
            mix,
            ..
        } = &mut *self.cluster;
        let mut placing = SlicePlacing {
            frame,
            site,
            slices,
            service,
            ledger,
            steering: &mut self.placing.steering,
            asked,
            instances: None,
            doubt: None,
        };
        let code = placing.place(|| mix.is_new(source, job.id()));
        let (instances, doubt) = (placing.instances, placing.doubt);
        if let Some(instances) = instances {
            self.keep(Decision::Slices(instances));
        }
        self.answer.doubt = doubt;
        code
    }

    fn place_shards(&mut self, asked: JobGres<'a>) -> Option<c_int> {
        let (frame, site) = (self.frame, self.site);
        self.placing.pending = None;
        self.keep(Decision::Stock);
        if !site.steers() || frame.job.whole_nodes() {
            return None;
        }
        let fits = (self.cluster.shards).trusts(site, self.trust, frame.job);
        if !self.fits(fits) {
            return None;
        }
        let (shards, service) = (&mut self.cluster.shards, &self.cluster.service);
        shards.place(frame, site, service, &mut self.placing.steering, asked)
    }

    /// Whether a request fits the layout table; remembers what is not understood.
    fn fits(&mut self, fits: Result<bool, Misfit>) -> bool {
        fits.unwrap_or_else(|misfit| {
            self.answer.doubt = Some(misfit);
            false
        })
    }

    /// Keeps a decision until the job starts.
    fn keep(&mut self, decision: Decision) {
        Pending::keep(&mut self.placing.pending, self.frame, decision);
    }

    fn count(&mut self, count: impl FnOnce(&mut Tally)) {
        self.cluster.records.count(count);
    }

    /// Whether a job is left to cons_tres where it is not known which nodes are near each other in its partition.
    fn hands_on_unseen(&self, options: &JobOptions) -> bool {
        let required = options.topology.as_ref().is_some_and(|wish| wish.required);
        self.frame.call.counts.max > 1 && !required
    }

    fn model(&mut self) -> bool {
        (self.cluster).model(self.site, self.trust, &self.frame.source)
    }

    /// Counts a call, for which gpuos has no plan as far as is known yet.
    fn begin_call(&mut self) {
        self.answer.left = HandedOn::Unplanned;
        self.count(|tally| tally.calls += 1);
    }

    fn count_only_way(&mut self) {
        if self.frame.is_start() {
            self.count(|tally| tally.only_way += 1);
        }
    }

    /// Tells the calls apart in which there is nothing to choose, once the model is made. The same calls are told
    /// apart by [`Decide::without_a_plan`] where this look is not enough.
    fn nothing_to_choose(&mut self, gpus: JobGres<'_>) -> Option<NoChoice> {
        let config = &self.site.settings.config;
        if self.cluster.planner.is_none()
            || !config.leaves_all_nodes()
            // A rule may go by the QOS, whose name is not to be looked up at the start of a job.
            || !config.policy.rules.is_empty()
        {
            return None;
        }
        let hides = self.placing.hides_cores;
        let found = no_choice::check(self.frame, gpus, &mut self.cluster.prefetch, hides);
        if let Some(NoChoice::TooFewNodes {
            wanted,
            needed,
            fitting: room,
        }) = found
        {
            self.placing.refused.counted(wanted, needed, room);
        }
        found
    }

    /// Ends a call in which there is nothing to choose; `None` hands it on as it came.
    fn delegate(&mut self, nothing: NoChoice) -> Option<c_int> {
        let call = self.frame.call;
        match nothing {
            NoChoice::TooFewNodes { .. } if call.refuses_for_lack_of_gpus() => Some(NOT_NOW),
            NoChoice::TooFewNodes { .. } => None,
            NoChoice::AllWhole => {
                let code = call.forward();
                if code == 0 {
                    self.count_only_way();
                    self.keep(Decision::Unread(call.counts));
                }
                Some(code)
            }
        }
    }

    /// Answers a forecast for the nodes that are rather kept; `None`: cons_tres is to be asked for all.
    fn forecast(&mut self, wanted: &Wanted) -> Option<c_int> {
        let mut forecasting = Forecasting {
            frame: self.frame,
            release: self.site.release,
            forecasts: &mut self.placing.forecasts,
            steering: &mut self.placing.steering,
            snapshot: &self.cluster.snapshot,
            planner: self.cluster.planner.as_ref(),
            ledger: &self.cluster.ledger,
        };
        forecasting.answer(wanted)
    }

    /// Reads what the job of this call needs, and has the candidates that cannot give it, or were refused to such jobs,
    /// have nothing free for it.
    pub fn fit(&mut self, gpus: JobGres<'_>, wanted: &mut Wanted) {
        let demand = Demand::of(self.frame, self.site.parameters, gpus, wanted);
        demand.ask_for(wanted);
        self.placing.demand = demand;
        let mut fitting = Fitting {
            source: &self.frame.source,
            ledger: &self.cluster.ledger,
            snapshot: &mut self.cluster.snapshot,
            demand: &self.placing.demand,
            has_threads: self.cluster.has_threads,
        };
        fitting.fit(wanted);
        let mut candidates = Candidates {
            source: &self.frame.source,
            ledger: &self.cluster.ledger,
            snapshot: &mut self.cluster.snapshot,
        };
        let refusals = &mut self.placing.refusals;
        if refusals.leave_out(demand.form, self.frame.now, &mut candidates) {
            self.count(|tally| tally.spared += 1);
        }
    }

    /// cons_tres has given the job its nodes by itself.
    pub fn delegated_to_slurm(&mut self, left: HandedOn) {
        let frame = self.frame;
        // What it takes later it has not taken now.
        if left == HandedOn::Refused && !frame.starts_later_than_asked(self.site.release) {
            let candidates = Candidates {
                source: &frame.source,
                ledger: &self.cluster.ledger,
                snapshot: &mut self.cluster.snapshot,
            };
            let (refusals, form) = (&mut self.placing.refusals, self.placing.demand.form);
            for index in frame.candidates.iter() {
                refusals.took(form, index, &candidates);
            }
        }
        // Who makes way for a job is for cons_tres to say, and a forecast starts nothing.
        if frame.is_start() && frame.call.preemptable().is_null() {
            self.count(|tally| match left {
                HandedOn::Refused => tally.left += 1,
                HandedOn::Unplanned => tally.unplanned += 1,
                HandedOn::Elsewhere => {}
            });
        }
    }

    /// Counts, on each candidate, what an affinity rule names.
    #[inline(never)]
    fn count_named(&mut self, names: &[String]) {
        let source = &self.frame.source;
        let states = &mut self.cluster.snapshot.states;
        self.cluster.ledger.for_each_node(
            |id| source.job(id).is_some_and(|job| job.is_named(names)),
            |node| {
                if let Some(state) = states.get_mut(node as usize) {
                    state.affinity = state.affinity.saturating_add(1);
                }
            },
        );
        (self.cluster).count_affinity(self.site, self.trust, source, names);
    }

    /// The calls in which there is nothing to choose: too few nodes have enough free GPUs, or all of
    /// them have to be taken whole.
    fn without_a_plan(&mut self, wanted: &Wanted) -> Option<NoPlan> {
        let frame = self.frame;
        let request = &wanted.request;
        let GpuShape::PerNode(gpus) = request.gpus else {
            return None;
        };
        if wanted.required() || request.whole_nodes {
            return None;
        }
        let room = self.cluster.snapshot.with_free(gpus);
        if room < request.min_nodes {
            return Some(match frame.call.refuses_for_lack_of_gpus() {
                true => NoPlan::Answer(NOT_NOW),
                false => NoPlan::Stock,
            });
        }
        let all = room == wanted.nodes && frame.candidates.count() == room as usize;
        let whole =
            |place: &Place| !place.has_gpus() || (!place.flat && place.devices == gpus as usize);
        if !all || !self.cluster.snapshot.places.iter().all(whole) {
            return None;
        }
        let code = (self.placing.steering).all(frame, &self.cluster.snapshot);
        Some(match code == 0 && self.takes_back() {
            true => NoPlan::Stock,
            false => NoPlan::Answer(code),
        })
    }

    /// How many cores of each socket are enough for a job, where cons_tres wastes its time on more of them
    /// and the job has no use for them.
    fn cores_enough(&self, gpus: JobGres<'_>, wanted: &Wanted) -> Option<u32> {
        let frame = self.frame;
        let request = &wanted.request;
        let known = self.placing.hides_cores
            && frame.call.is_plain(self.site.release)
            && !request.whole_nodes
            && matches!(request.gpus, GpuShape::PerNode(_))
            && !gpus.binds_cpus();
        known
            .then(|| frame.job.cpus_of_each_node(request.min_nodes))
            .flatten()
    }
}

/// A call that needs no plan.
enum NoPlan {
    /// The answer to Slurm.
    Answer(c_int),
    /// cons_tres decides.
    Stock,
}
