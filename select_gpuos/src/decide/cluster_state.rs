//! What is known of the cluster from call to call: its nodes as they were read last, the model that the planner plans for,
//! and what running jobs hold.

use gpuos_config::options::JobOptions;
use gpuos_placement::plan::Planner;
use gpuos_placement::rules::Target;
use gpuos_placement::traffic::Traffic;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::log;

use crate::abi::call::Counts;
use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::decide::mix::{Mix, Spare};
use crate::decide::neighbours::Neighbours;
use crate::decide::policy::{Among, Standing};
use crate::decide::views::Views;
use crate::gres::registration::Registration;
use crate::gres::shards::Shards;
use crate::gres::slices::Slices;
use crate::gres::switching::{Switchable, Switching};
use crate::gres::withhold::Withholding;
use crate::read::cluster;
use crate::read::ledger::Ledger;
use crate::read::links::NegativeLinks;
use crate::read::prefetch::Prefetch;
use crate::read::request::Wanted;
use crate::read::service::Service;
use crate::read::site::Site;
use crate::read::snapshot::Snapshot;
use crate::read::trust::{LayoutTrust, Selections};
use crate::tell::records::Records;

/// See the module.
pub struct ClusterState {
    /// The candidates of the call at hand.
    pub snapshot: Snapshot,
    /// Where the records of nodes stood.
    pub prefetch: Prefetch,
    /// The model of the cluster, and who plans for it; none until one is needed.
    pub planner: Option<Planner>,
    /// Planners for the topologies of other partitions.
    pub views: Views,
    /// The gangs on the network, where gpuos.toml describes one.
    pub traffic: Option<Traffic>,
    /// Links for which cons_tres leaves a GPU out, read with the model.
    pub negative_links: NegativeLinks,
    /// Whether some node has cores with several threads.
    pub has_threads: bool,
    /// What jobs hold.
    pub ledger: Ledger,
    /// The jobs that come.
    pub mix: Mix,
    /// What places are worth.
    pub standing: Standing,
    /// Who may run beside whom.
    pub neighbours: Neighbours,
    /// GPUs that are out of service.
    pub service: Service,
    /// Nodes that have not registered.
    pub registration: Registration,
    /// GPUs that are divided.
    pub slices: Slices,
    /// GPUs of which jobs have parts.
    pub shards: Shards,
    /// GPUs that are whole for some jobs and divided for others.
    pub switchable: Switchable,
    /// The recording of decisions.
    pub records: Records,
}

impl ClusterState {
    /// Nothing is known yet but what gpuos.toml says.
    pub fn new(site: &Site) -> ClusterState {
        ClusterState {
            snapshot: Snapshot::default(),
            prefetch: Prefetch::default(),
            planner: None,
            views: Views::default(),
            traffic: None,
            negative_links: NegativeLinks::default(),
            has_threads: false,
            ledger: Ledger::default(),
            mix: Mix::default(),
            standing: Standing::default(),
            neighbours: Neighbours::default(),
            service: Service::default(),
            registration: Registration::default(),
            slices: Slices::new(site.api, &site.settings),
            shards: Shards::new(site.api),
            switchable: Switchable::new(site.api, &site.settings),
            records: Records::default(),
        }
    }

    /// Forgets what was read of nodes and of jobs.
    pub fn forget(&mut self) {
        self.drop_planners();
        self.traffic = None;
        self.neighbours = Neighbours::default();
        self.snapshot.signatures.clear();
        self.ledger.clear();
        self.registration.clear();
        self.service.clear();
        self.slices.clear();
        self.shards.clear();
        self.switchable.clear();
    }

    fn drop_planners(&mut self) {
        self.planner = None;
        self.views = Views::default();
    }

    /// gpuos.toml was read again.
    pub fn reload(&mut self, site: &Site) {
        self.drop_planners();
        self.traffic = None;
        self.neighbours.book = None;
        self.slices.reload(&site.settings);
        self.switchable.reload(&site.settings);
    }

    /// Makes the model, when there is none or a node has changed.
    pub fn model(&mut self, site: &Site, trust: &mut LayoutTrust, source: &Source<'_>) -> bool {
        self.planner.is_some() && !self.snapshot.changed || self.new_model(site, trust, source)
    }

    // Apart, so that calls that need none do not pay for its place on the stack.
    #[cold]
    #[inline(never)]
    fn new_model(&mut self, site: &Site, trust: &mut LayoutTrust, source: &Source<'_>) -> bool {
        let config = &site.settings.config;
        match cluster::build(source, &site.settings) {
            Ok(clusters) => {
                let mut clusters = clusters.into_iter();
                let cluster = clusters.next().unwrap_or_default();
                let net = config.recipe(&cluster);
                self.records.model(&cluster, net.as_ref());
                self.traffic = config.traffic(&cluster);
                self.standing.conditions = config.conditions(&cluster);
                self.neighbours.new_book(config, &cluster);
                self.planner = Some(Planner::new(cluster));
                self.negative_links = NegativeLinks::read(source, site.release);
                self.views = Views::new(clusters.map(Planner::new));
                self.mix.resend_learned();
                let mut nodes = (0..source.nodes()).filter_map(|index| source.node(index));
                self.has_threads = nodes.any(|node| node.threads() > 1);
                self.snapshot.changed = false;
                if self.traffic.is_some() || self.neighbours.book.is_some() {
                    self.count_running(site, trust, source);
                }
                true
            }
            Err(why) => {
                log::debug(&format!(
                    "no model of the cluster, this job is placed by cons_tres: {why}"
                ));
                false
            }
        }
    }

    /// Has the planner of a topology plan from now on; the model was made before.
    #[inline]
    pub fn use_view(&mut self, view: usize) {
        if self.views.current() != view {
            self.change_view(view);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_view(&mut self, view: usize) {
        self.views.change(view, &mut self.planner);
        if let Some(planner) = &self.planner {
            self.records.model(planner.cluster(), None);
            if let Some(expected) = planner.learned() {
                self.records.learned(expected);
            }
            self.mix.resend_learned();
        }
    }

    /// Reads candidates.
    pub fn take_snapshot(
        &mut self,
        is_forecast: bool,
        source: &Source<'_>,
        candidates: Bitmap<'_>,
        wanted_type: Option<&str>,
    ) {
        let known = (&self.ledger, &self.service);
        let prefetch = &mut self.prefetch;
        (self.snapshot).take(
            is_forecast,
            source,
            prefetch,
            candidates,
            wanted_type,
            known,
        );
    }

    /// What a job wants of the planner, and what the candidates are worth to it.
    pub fn wanted(
        &mut self,
        site: &Site,
        source: &Source<'_>,
        asked: Counts,
        job: (Job<'_>, JobGres<'_>),
        options: &JobOptions,
    ) -> Option<Wanted> {
        let config = &site.settings.config;
        let memory = options.grant(config.memory.reserve_mib);
        let among = Among {
            source,
            planner: self.planner.as_mut(),
            snapshot: &mut self.snapshot,
        };
        (self.standing).wanted((&config.policy, memory), among, asked, job, options)
    }

    /// Makes the book of who runs where, if there is none.
    pub fn open_book(&mut self, site: &Site, trust: &mut LayoutTrust, source: &Source<'_>) -> bool {
        self.neighbours.needed = true;
        if !self.model(site, trust, source) {
            return false;
        }
        if self.neighbours.book.is_none() {
            if let Some(planner) = &self.planner {
                let config = &site.settings.config;
                self.neighbours.new_book(config, planner.cluster());
            }
            self.count_running(site, trust, source);
        }
        true
    }

    /// Counts the classes and places that an affinity rule names; jobs and users were counted before.
    pub fn count_affinity(
        &mut self,
        site: &Site,
        trust: &mut LayoutTrust,
        source: &Source<'_>,
        names: &[String],
    ) {
        let targets = names.iter().map(|name| Target::of(name));
        for target in targets.filter(|target| !matches!(target, Target::Job(_))) {
            if !self.open_book(site, trust, source) {
                return;
            }
            let states = &mut self.snapshot.states;
            if let Some(book) = &self.neighbours.book {
                book.for_each_node(target, |node| {
                    if let Some(state) = states.get_mut(node as usize) {
                        state.affinity = state.affinity.saturating_add(1);
                    }
                });
            }
        }
    }

    /// After a call, or an event: learns a little, as far as there is time.
    pub fn mix_works(&mut self, source: &Source<'_>, spare: Spare) {
        let planner = self.planner.as_mut();
        self.mix.works(source, planner, &mut self.records, spare);
    }

    /// The phase that withholds what is out of service.
    pub fn withholding<'e, 'a>(
        &'e mut self,
        site: &'e Site,
        frame: &'e Frame<'a>,
        selections: Selections,
    ) -> Withholding<'e, 'a> {
        Withholding {
            frame,
            site,
            service: &mut self.service,
            prefetch: &mut self.prefetch,
            selections,
        }
    }

    /// The phase that sees to MIG-switchable GPUs.
    pub fn switching<'e, 'a>(
        &'e mut self,
        site: &'e Site,
        frame: &'e Frame<'a>,
        selections: Selections,
    ) -> Switching<'e, 'a> {
        Switching {
            frame,
            site,
            switchable: &mut self.switchable,
            service: &mut self.service,
            prefetch: &mut self.prefetch,
            ledger: &self.ledger,
            selections,
        }
    }
}
