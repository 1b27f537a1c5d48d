//! Never weaker than stock on PBS: generated requests, states and sites, on a PBS and beside it on one with gpuos. What starts there starts with
//! gpuos, with as many GPUs, within one more cycle; what stays waiting or is refused does so here; and nothing is left of gpuos when it is removed.
//!
//! A few pairs of one generated site by default, wherever `$GPUOS_TEST_PBS` names an installation. `GPUOS_PBS_PAIRS=3000` (`make pbs-pairs`)
//! tries that many, `GPUOS_PBS_PAIRS_SEED` names the site to begin with: each that shows a difference prints its own.
//! `GPUOS_PBS_PAIRS_STOCK=1` has stock on both sides, so that what differs is the test's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use gpuos_model::rng::Rng;
use gpuos_tests::{Needs, costs, ledger, pbs_with};

#[path = "pbs_pairs/ask.rs"]
mod ask;
#[path = "pbs_pairs/compare.rs"]
mod compare;
#[path = "pbs_pairs/host.rs"]
mod host;
#[path = "pbs_pairs/known.rs"]
mod known;
#[path = "pbs_pairs/labs.rs"]
mod labs;
#[path = "pbs_pairs/look.rs"]
mod look;
#[path = "pbs_pairs/own.rs"]
mod own;
#[path = "pbs_pairs/release.rs"]
mod release;
#[path = "pbs_pairs/server.rs"]
mod server;
#[path = "pbs_pairs/shell.rs"]
mod shell;
#[path = "pbs_pairs/side.rs"]
mod side;
#[path = "pbs_pairs/site.rs"]
mod site;
#[path = "pbs_pairs/stories.rs"]
mod stories;

use ask::State;
use compare::Difference;
use side::{Seen, Side};
use site::Site;

/// Requests in a state.
const REQUESTS: usize = 12;
/// States of a site in a long run.
const STATES: usize = 10;
/// Pairs of every day.
const FEW: usize = 12;
/// Differences of a kind that are shown once more at the end.
const SHOWN: usize = 3;

/// A PBS and the same PBS with gpuos.
struct Pair {
    stock: Side,
    gpuos: Side,
    /// What the one with gpuos was before; `None` where it is a stock one too.
    before: Option<String>,
}

/// Two of the same at a time.
fn both<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B) -> (A, B) {
    std::thread::scope(|scope| {
        let a = scope.spawn(a);
        let b = b();
        (a.join().expect("it goes on"), b)
    })
}

impl Pair {
    /// Both with the site, and with gpuos in one, and what the latter counts that the site does not.
    fn up(prefix: &Path, site: &Site, first: &State, tally: &mut Tally, seed: &str) -> Pair {
        let with_gpuos = std::env::var_os("GPUOS_PBS_PAIRS_STOCK").is_none();
        let (mut stock, mut gpuos) = both(
            || Side::new(labs::up(prefix, site, "pairs-stock", false), site),
            || Side::new(labs::up(prefix, site, "pairs", with_gpuos), site),
        );
        let before = with_gpuos.then(|| labs::snapshot(gpuos.lab()));
        if site.running_at_install {
            both(|| stock.prepare(first), || gpuos.prepare(first));
        }
        if with_gpuos && let Some(counted) = labs::install(gpuos.lab(), site) {
            tally.add(
                "leaves hosts out or counts other GPUs",
                seed,
                &counted,
                site,
            );
        }
        if site.labels_after_install {
            for side in [&stock, &gpuos] {
                labs::qmgr(side.lab(), &site.labels());
            }
        }
        Pair {
            stock,
            gpuos,
            before,
        }
    }

    /// The same on both.
    fn run(&mut self, state: &State) -> (Seen, Seen) {
        let (stock, gpuos) = (&mut self.stock, &mut self.gpuos);
        both(|| stock.run(state), || gpuos.run(state))
    }
}

/// What came of a run.
#[derive(Default)]
struct Tally {
    pairs: usize,
    /// Requests of which something started on stock.
    started: usize,
    /// Requests that stock refused.
    refused: usize,
    /// Requests whose jobs are on other hosts, which is no difference.
    other_hosts: usize,
    /// Requests that gpuos refused by its rule: their GPUs would be given twice.
    by_rule: usize,
    /// Requests in states that already differ.
    other_states: usize,
    /// Requests that differed once and not again.
    passing: usize,
    by_kind: BTreeMap<String, usize>,
    differences: Vec<String>,
}

impl Tally {
    fn add(&mut self, kind: &str, seed: &str, what: &str, site: &Site) {
        let count = self.by_kind.entry(kind.to_owned()).or_default();
        *count += 1;
        let mut text = format!("{seed}: {kind}\n{what}\n");
        if *count == 1 {
            let _ = writeln!(text, "{}", site.describe());
        }
        eprintln!("{text}");
        if *count <= SHOWN {
            self.differences.push(text);
        }
    }

    /// Compares all requests of a state, and tries those that differ once more.
    fn compare(&mut self, pair: &mut Pair, site: &Site, state: &State, seed: &str) {
        let at_install = pair.gpuos.is_prepared();
        let (stock, gpuos) = pair.run(state);
        let with_gpuos = pair.before.is_some();
        let made = compare::answers(&stock.made, &gpuos.made, with_gpuos);
        let is_same = made.as_ref().is_none_or(|it| it.kind == compare::TOLD);
        let is_same = is_same && stock.used == gpuos.used;
        if made.is_some() || !is_same {
            let kind = made.as_ref().map_or("other use of hosts", |it| it.kind);
            let how = made.map_or_else(String::new, |it| it.text);
            let used = format!("stock: {:?}\ngpuos: {:?}", stock.used, gpuos.used);
            let words = state.made_by.words();
            self.add(kind, seed, &format!("  {words}\n{how}\n{used}"), site);
        }
        if !is_same {
            self.other_states += state.requests.len();
        } else {
            let both = stock.requests.iter().zip(&gpuos.requests);
            for (request, (stock, gpuos)) in state.requests.iter().zip(both) {
                self.pairs += 1;
                self.started += usize::from(compare::has_started(stock));
                self.refused += usize::from(compare::is_refused(stock));
                self.other_hosts += usize::from(compare::on_other_hosts(stock, gpuos));
                self.by_rule += usize::from(compare::by_rule(stock, gpuos));
                let Some(found) = compare::answers(stock, gpuos, with_gpuos) else {
                    continue;
                };
                let again = State {
                    made_by: state.made_by.clone(),
                    requests: vec![request.clone()],
                };
                // gpuos is installed but once beneath running jobs.
                let found = match at_install {
                    true => Some(found),
                    false => {
                        let (stock, gpuos) = pair.run(&again);
                        let (stock, gpuos) = (&stock.requests[0], &gpuos.requests[0]);
                        compare::answers(stock, gpuos, with_gpuos)
                    }
                };
                match found {
                    Some(Difference { kind, text }) => {
                        let beside = state.made_by.words();
                        let text = format!("  {}\n{text}\nbeside:\n  {beside}", request.words());
                        self.add(kind, seed, &text, site);
                    }
                    None => self.passing += 1,
                }
            }
        }
        // A stock PBS of which something stays assigned for a while is no fault of gpuos.
        if stock.left != gpuos.left && !side::is_idle(&gpuos.left) {
            let left = format!("stock: {:?}\ngpuos: {:?}", stock.left, gpuos.left);
            self.add("leaves something assigned", seed, &left, site);
        }
    }

    fn summary(&self) -> String {
        format!(
            "{} pairs, {} started on stock, {} refused by it, {} on other hosts, {} refused by rule, {} in other states, {} differed once, {} differences {:?}",
            self.pairs,
            self.started,
            self.refused,
            self.other_hosts,
            self.by_rule,
            self.other_states,
            self.passing,
            self.by_kind.values().sum::<usize>(),
            self.by_kind
        )
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

#[test]
fn known_cases() {
    let Some(prefix) = pbs_with("known requests on PBS beside stock", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_pairs::known_cases");
    let (site, states) = (known::site(), known::states());
    let mut tally = Tally::default();
    let mut pair = Pair::up(&prefix, &site, &states[0], &mut tally, "known");
    for state in &states {
        tally.compare(&mut pair, &site, state, "known");
    }
    eprintln!("pbs pairs, known: {}", tally.summary());
    assert_eq!(tally.other_states, 0);
    let all = tally.differences.join("\n");
    assert!(all.is_empty(), "{}\n{all}", tally.summary());
}

#[test]
fn generated() {
    let Some(prefix) = pbs_with("generated requests on PBS beside stock", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_pairs::generated");
    let wanted = number("GPUOS_PBS_PAIRS");
    // The short run of every day is always the same one; longer ones look for news.
    let fresh = || wanted.map_or(1, |_| ledger::now() as u64 / 1_000_000_000);
    let first = number("GPUOS_PBS_PAIRS_SEED").unwrap_or_else(fresh);
    let pairs = wanted.map_or(FEW, |pairs| pairs as usize);
    let began = std::time::Instant::now();
    let mut tally = Tally::default();
    let mut seed = first;
    let mut tried = 0;
    while tried < pairs {
        let mut rng = Rng::new(seed);
        let site = Site::of(&mut rng);
        let name = format!("GPUOS_PBS_PAIRS_SEED={seed}");
        let states: Vec<State> = (0..STATES.min((pairs - tried).div_ceil(REQUESTS)))
            .map(|_| State::of(&mut rng, &site, REQUESTS))
            .collect();
        let mut pair = Pair::up(&prefix, &site, &states[0], &mut tally, &name);
        for state in &states {
            tally.compare(&mut pair, &site, state, &name);
            tried += REQUESTS;
        }
        if let Some(before) = &pair.before
            && !site.labels_after_install
            && let Some(after) = labs::remove(pair.gpuos.lab(), before)
        {
            tally.add(
                "is not as before when gpuos is removed",
                &name,
                &after,
                &site,
            );
        }
        let minutes = began.elapsed().as_secs() / 60;
        eprintln!("pbs pairs, seed {seed}, {minutes} min: {}", tally.summary());
        seed += 1;
    }
    assert!(
        tally.differences.is_empty(),
        "seeds {first} to {}: {}\n{}",
        seed - 1,
        tally.summary(),
        tally.differences.join("\n")
    );
}
