//! The movers of a job find each other: seat 0 asks all for what they have of the job, draws the roster, and tells it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::sets::{NodeDomains, Scheme};
use gpuos_config::options::Restart;
use gpuos_mover::roster::{Claim, Roster, draw};

use super::elastic::{self, Claims};
use super::{Phase, Worker, choice, fetching, left_open, other};
use crate::carried::{Body, JobRoster};
use crate::domains::satisfiable;

/// How long the movers of a job that has no checkpoints are waited for. Its programs wait meanwhile.
const FIRST: Duration = Duration::from_secs(60);
/// And of one that was started again: without them it would begin from its start.
const AGAIN: Duration = Duration::from_secs(300);
/// Others wait longer than seat 0, which can say why.
const OTHERS: Duration = Duration::from_secs(30);

/// What seat 0 knows of the others.
pub struct Gather {
    begun: Instant,
    claims: BTreeMap<u16, (Vec<Claim>, Vec<Claim>)>,
    chosen: Vec<(u32, u32)>,
    /// What was there before this run is looked for, also in a first run.
    is_long: bool,
}

impl Gather {
    /// Nothing is known yet.
    pub fn new() -> Gather {
        Gather {
            begun: Instant::now(),
            claims: BTreeMap::new(),
            chosen: Vec::new(),
            is_long: false,
        }
    }

    /// A seat has this of its own, hosts that, and knows of this choice for a run.
    pub fn claim(
        &mut self,
        seat: u16,
        (own, hosted): (Vec<Claim>, Vec<Claim>),
        chosen: Option<(u32, u32)>,
    ) {
        self.chosen.extend(chosen);
        self.claims.entry(seat).or_insert((own, hosted));
    }

    /// Whether a seat has to be asked still.
    pub fn lacks_claim(&self, seat: u16) -> bool {
        !self.claims.contains_key(&seat)
    }

    /// Whether all seats have answered, of so many.
    pub fn is_full(&self, seats: usize) -> bool {
        self.claims.len() >= seats
    }

    /// What was chosen for a run, as seats know, or `others`.
    pub fn chosen(&self, run: u32, others: &[(u32, u32)]) -> Option<u32> {
        let mut all = self.chosen.iter().chain(others);
        all.find(|chosen| chosen.0 == run).map(|chosen| chosen.1)
    }

    /// What the seats that have answered have, in their order.
    pub fn claims(&self) -> Claims {
        Claims {
            own: self.claims.values().map(|all| all.0.clone()).collect(),
            hosted: self.claims.values().map(|all| all.1.clone()).collect(),
        }
    }

    /// Whether the nodes themselves can make whole what the newest of them has, all being heard: of each set no more are missing than it can
    /// lose. Then nobody outside has to be asked, and a node that is dead is not waited for. Another number of nodes may have made it.
    pub fn covers(&self) -> bool {
        let all = self.claims();
        let layouts = all.layouts(&[]);
        let Some((nodes, newest)) = layouts.other(0, &BTreeSet::new(), None) else {
            return false;
        };
        let claims = all.own.iter().chain(&all.hosted).flatten();
        let claims: Vec<&Claim> = claims.filter(|claim| claim.nodes == nodes).collect();
        let is_there = |index: &NodeIndex| claims.iter().any(|claim| claim.index == *index);
        let is_covered = |index: NodeIndex| {
            let set = claims.iter().find(|claim| claim.set.contains(&index));
            set.is_some_and(|claim| {
                let missing = claim.set.iter().filter(|member| !is_there(member));
                missing.count() <= usize::from(claim.parity)
            })
        };
        claims.iter().all(|claim| claim.newest == newest)
            && (0..nodes).map(NodeIndex).all(is_covered)
    }

    /// The checkpoints of another job are gathered, which nodes outside may have to be asked for.
    pub fn take_longer(&mut self) {
        self.is_long = true;
    }

    /// Whether it has taken too long, in run `run` of the job. `leads`: this is seat 0.
    pub fn is_late(&self, run: u32, leads: bool) -> bool {
        let limit = if run == 0 && !self.is_long {
            FIRST
        } else {
            AGAIN
        };
        let more = if leads { Duration::ZERO } else { OTHERS };
        self.begun.elapsed() > limit + more
    }

    /// The roster, once all claims are known. `levels` are those of the domains, in the order of their weight.
    ///
    /// # Errors
    /// A sentence: there can be none.
    pub fn draw(
        &self,
        seats: Vec<Option<Claim>>,
        scheme: Scheme,
        domains: &[NodeDomains],
        levels: &[String],
    ) -> Option<Result<Roster, String>> {
        if self.claims.len() < domains.len() {
            return None;
        }
        let (domains, notes) = satisfiable(domains, levels, scheme);
        let seats: Vec<(Option<Claim>, NodeDomains)> = seats.into_iter().zip(domains).collect();
        Some(draw(&seats, scheme).map(|mut roster| {
            roster.notes.extend(notes);
            roster
        }))
    }
}

/// Gives seats that have nothing the claims of nodes that are lost, in their order.
fn fill(seats: &mut [Option<Claim>], lost: Vec<Claim>) {
    let has = |index| seats.iter().flatten().any(|claim| claim.index == index);
    let mut open: Vec<Claim> = lost.into_iter().filter(|claim| !has(claim.index)).collect();
    open.reverse();
    let empty = seats.iter_mut().filter(|claim| claim.is_none());
    empty.for_each(|claim| *claim = open.pop());
}

/// Time went by, and not all have been heard.
pub(super) fn gather(worker: &mut Worker) {
    let own = claim_once(worker).map(|own| (own, choice::known(worker)));
    let Phase::Gathering(gather) = &mut worker.phase else {
        return;
    };
    if let Some((own, chosen)) = own {
        gather.claim(0, own, chosen);
    }
    if worker.other.is_some() {
        gather.take_longer();
    }
    let late = gather.is_late(worker.start.earlier(), worker.start.place.own.0 == 0);
    if worker.start.place.own.0 != 0 {
        worker.links.want(0);
        if late {
            let why = worker.links.why(0);
            worker.be_late(&why);
        }
        return;
    }
    let lacking: Vec<u16> = (1..worker.start.place.nodes)
        .filter(|seat| gather.lacks_claim(*seat))
        .collect();
    for seat in &lacking {
        worker.links.want(*seat);
        let of = worker.other.clone();
        worker
            .links
            .say(*seat, worker.session, Body::ClaimAsk { of });
    }
    // Where all have answered, nothing but what is drained is waited for, which has a limit of its own.
    if late && !(lacking.is_empty() && worker.wish.is_some()) {
        let whys: Vec<String> = lacking
            .iter()
            .take(3)
            .map(|seat| worker.links.why(*seat))
            .collect();
        let why = match worker.wish {
            Some(_) => whys.join("; "),
            None => "no step of the job has started on its first node".into(),
        };
        return worker.be_late(&why);
    }
    draw_up(worker);
}

/// Seat 0's own claim, if it is not known yet.
fn claim_once(worker: &Worker) -> Option<(Vec<Claim>, Vec<Claim>)> {
    match &worker.phase {
        Phase::Gathering(gather)
            if worker.is_first()
                && gather.lacks_claim(0)
                && !other::is_busy(worker, worker.other.as_ref()) =>
        {
            let of = worker.other.as_ref().map(|other| &other.job);
            Some(worker.claim(of))
        }
        _ => None,
    }
}

/// Seat 0: draws the roster when all is known that it needs.
fn draw_up(worker: &mut Worker) {
    let scheme = worker.scheme();
    // The store is looked at once all have said what they have.
    let is_full = matches!(&worker.phase, Phase::Gathering(gather) if gather.is_full(worker.start.place.nodes.into()));
    let is_committed = is_full && left_open::is_committed(worker);
    let (Phase::Gathering(gather), Some(wish)) = (&mut worker.phase, &worker.wish) else {
        return;
    };
    let nodes = worker.start.place.nodes;
    // Another job has run before.
    let run = worker
        .start
        .earlier()
        .max(u32::from(worker.other.is_some()));
    if !worker.back.is_known(run) || !gather.is_full(nodes.into()) {
        return;
    }
    // A first run has nothing anywhere. Nodes on which `gpuos run` starts the program again have been at it until now; those of a
    // requeued job may have something older than others.
    let again = worker.start.launch.start > 1 && worker.other.is_none();
    let is_enough = run == 0 || (again && gather.covers());
    if !is_enough && !worker.donors.is_known(&worker.start.nodes) {
        return;
    }
    if let Some(why) = worker.donors.refused() {
        return worker.fail(why);
    }
    match worker
        .donors
        .lose(&gather.claims().of(nodes), super::draw())
    {
        Ok(told) => worker.came.extend(told),
        Err(why) => return worker.fail(why),
    }
    // What was made in this run goes before what was chosen for its begin, also if programs have not heard of it yet.
    let has_saved = worker
        .folder
        .as_ref()
        .is_some_and(|folder| folder.has_committed() || is_committed);
    let only = match &worker.other {
        Some(other) => other.number,
        None if has_saved => None,
        None => gather.chosen(worker.start.run, &worker.donors.chosen()),
    };
    worker.back.want(only);
    let claims = gather.claims();
    let layouts = claims.layouts(&elastic::outside(worker));
    // Who begins anew leaves all that there is.
    let anew = wish.option.restart == Restart::No && !has_saved && only.is_none();
    let looks = !anew || worker.other.is_some();
    if looks && let Some(told) = elastic::roster(worker, &claims, &layouts, only) {
        return fetching::begin(worker, told);
    }
    draw_own(worker, &claims, (scheme, looks), (run, only));
}

/// Seat 0: draws the roster of what as many nodes as the job has have made.
fn draw_own(
    worker: &mut Worker,
    claims: &Claims,
    (scheme, looks): (Scheme, bool),
    (run, only): (u32, Option<u32>),
) {
    let nodes = worker.start.place.nodes;
    let layouts = claims.layouts(&elastic::outside(worker));
    let open = elastic::open(worker, claims, &layouts).filter(|_| looks);
    let mut seats = claims.of(nodes);
    let drained = worker.back.claims(nodes);
    let (donors, lost) = elastic::from_donors(worker, nodes, &seats, only);
    fill(&mut seats, lost);
    fill(&mut seats, drained);
    if let Some(other) = &worker.other
        && seats.iter().all(Option::is_none)
    {
        let made = donors.made.as_ref().map(|made| made.sentence.clone());
        let mut more = [&donors.silent[..], &worker.elastic.whys].concat();
        more.splice(0..0, made);
        more.extend(donors.answers.iter().cloned());
        let why = other::none_of(other, &more);
        return worker.fail(why);
    }
    let levels = &worker.shared.config.domains;
    let (Phase::Gathering(gather), Some(wish)) = (&worker.phase, &worker.wish) else {
        return;
    };
    match gather.draw(seats, scheme, &worker.start.domains, levels) {
        Some(Ok(roster)) => {
            let told = JobRoster {
                gid: wish.gid,
                asked: wish.asked.clone(),
                drained: worker.back.parts(nodes, run),
                donors,
                only,
                of: worker.other.clone(),
                base: worker.base.clone(),
                hosts: None,
                other_nodes: open,
                beyond: layouts.highest(),
                unhosted: match looks {
                    true => worker.elastic.whys.clone(),
                    false => Vec::new(),
                },
                roster,
            };
            let notes = &told.roster.notes;
            notes.iter().for_each(|note| worker.note(note));
            fetching::begin(worker, told);
        }
        Some(Err(why)) => worker.fail(why),
        None => {}
    }
}
