//! Never weaker than stock: forms of request, by states of the cluster, by generated gres.conf and topologies, on stock Slurm and beside it
//! with gpuos. What starts on stock starts with gpuos, with as many GPUs, an srun in it runs, and `sbatch --test-only` says no later start.
//!
//! A few pairs of one generated cluster on each release. `GPUOS_WEAKER=3000` (`make weaker`) tries that many, `GPUOS_WEAKER_SEED` names the
//! cluster to begin with: each that shows a difference prints its own seed.

use std::fmt::Write as _;

use gpuos_lab::Suite;
use gpuos_model::rng::Rng;
use gpuos_tests::{Cluster, Setup, ledger, per_suite};

#[path = "weaker/ask.rs"]
mod ask;
#[path = "weaker/side.rs"]
mod side;
#[path = "weaker/site.rs"]
mod site;

use ask::{Request, State};
use side::{Outcome, Seen};
use site::Site;

per_suite!(known, links, generated);

/// Requests in a state.
const REQUESTS: usize = 10;
/// States of a cluster in a long run.
const STATES: usize = 6;

/// Stock Slurm and gpuos with the same configuration.
struct Pair {
    stock: Cluster,
    gpuos: Cluster,
    suite: Suite,
}

impl Pair {
    /// `None` where this machine cannot have them.
    fn up(site: &Site, suite: &Suite) -> Option<Pair> {
        let setup = |name: &str| {
            let mut setup = Setup::new(name, suite);
            site.put(&mut setup);
            setup
        };
        let mut own = setup("weaker");
        own.spec.job_submit = true;
        std::thread::scope(|scope| {
            let stock = scope.spawn(|| setup("weaker-stock").stock().up());
            let gpuos = own.steered();
            Some(Pair {
                stock: stock.join().expect("stock Slurm starts")?,
                gpuos: gpuos?,
                suite: suite.clone(),
            })
        })
    }

    /// The same on both.
    fn run(&self, states: &[State]) -> (Vec<Seen>, Vec<Seen>) {
        std::thread::scope(|scope| {
            let stock = scope.spawn(|| side::run(&self.stock, states, &[]));
            let gpuos = side::run(&self.gpuos, states, &["--gpuos=off"]);
            (stock.join().expect("runs on stock"), gpuos)
        })
    }
}

/// How gpuos was weaker.
fn weaker(stock: &Outcome, gpuos: &Outcome) -> Option<&'static str> {
    let (Outcome::Started { step, .. }, own) = (stock, gpuos) else {
        return None;
    };
    match own {
        Outcome::Refused(_) => Some("does not start"),
        Outcome::Started { .. } if own.gpus() < stock.gpus() => Some("has fewer GPUs"),
        Outcome::Started {
            step: Some(false), ..
        } if *step != Some(false) => Some("starts, and its srun fails"),
        Outcome::Started { .. } => None,
    }
}

/// A start is put off by more than that, in seconds.
const SOON: i64 = 60;

/// Whether stock Slurm would start a request now, and gpuos later or never, as `sbatch --test-only` says.
fn is_later(stock: Option<i64>, gpuos: Option<i64>) -> bool {
    stock.is_some_and(|stock| stock < SOON) && gpuos.is_none_or(|gpuos| gpuos >= SOON)
}

/// What came of a run.
#[derive(Default)]
struct Tally {
    pairs: usize,
    started: usize,
    steps: usize,
    /// Requests for which stock Slurm says when they would start.
    forecasts: usize,
    other_states: usize,
    /// Starts that gpuos took back, as cons_tres would have given too little.
    taken_back: usize,
    /// Sruns that fail alone where gpuos has placed the job, and on stock Slurm too where it is given those nodes.
    on_stock_too: usize,
    /// Requests at which slurmctld ends on stock Slurm.
    ends_on_stock: usize,
    differences: Vec<String>,
}

/// Whether the srun of a request fails on stock Slurm too, on the nodes that it has with gpuos.
fn fails_on_stock_too(pair: &Pair, state: &State, gpuos: &Outcome) -> bool {
    let Outcome::Started {
        gpus,
        step: Some(false),
        ..
    } = gpuos
    else {
        return false;
    };
    let nodes: Vec<&str> = gpus.keys().map(String::as_str).collect();
    let mut request = state.requests[0].clone();
    request.options.push(format!("-w{}", nodes.join(",")));
    request.options.push(format!("-N{}", nodes.len()));
    request.step = true;
    let there = State {
        holds: state.holds.clone(),
        requests: vec![request],
    };
    let (stock, _) = pair.run(&[there]);
    matches!(
        &stock[0].outcomes[0],
        Outcome::Started { gpus: on, step: Some(false), .. } if on == gpus
    )
}

/// Where slurmctld ended, as a place among the states and one among the requests.
fn end_of(seen: &[Seen]) -> Option<(usize, usize)> {
    let state = seen.iter().position(|state| state.slurmctld_ended)?;
    Some((state, seen[state].outcomes.len().saturating_sub(1)))
}

impl Tally {
    /// Counts where slurmctld ended, and says whether it did in one of them; that it does so with gpuos alone is a difference.
    fn compare_ends(
        &mut self,
        stock: &[Seen],
        gpuos: &[Seen],
        states: &[State],
        seed: &str,
    ) -> bool {
        let (stock, gpuos) = (end_of(stock), end_of(gpuos));
        let request = |(state, at): (usize, usize)| {
            let words = states[state]
                .requests
                .get(at)
                .map(|it| it.options.join(" "));
            words.unwrap_or_default()
        };
        if let Some(at) = stock {
            eprintln!("{seed}: slurmctld of stock ends at {}", request(at));
            self.ends_on_stock += 1;
        }
        if let Some(at) = gpuos.filter(|at| stock.is_none_or(|of_stock| *at < of_stock)) {
            let text = format!("{seed}: slurmctld ends with gpuos at {}\n", request(at));
            eprintln!("{text}");
            self.differences.push(text);
        }
        stock.is_some() || gpuos.is_some()
    }

    /// Compares all requests of all states of a cluster; those that differ are tried once more, in both.
    fn compare(&mut self, pair: &Pair, site: &Site, states: &[State], seed: &str) {
        let (stock, gpuos) = pair.run(states);
        let ended = self.compare_ends(&stock, &gpuos, states, seed);
        let log = pair.gpuos.lab.slurmctld_log();
        self.taken_back += log.matches("; taken back, and the job is placed").count();
        let mut again = Vec::new();
        for (state, (stock, gpuos)) in states.iter().zip(stock.iter().zip(&gpuos)) {
            for side in [stock, gpuos] {
                let all = side.outcomes.len() == state.requests.len();
                assert!(all || side.slurmctld_ended, "{side:?}");
            }
            if stock.used != gpuos.used {
                eprintln!(
                    "other states: {:?}: {:?}, {:?}",
                    state.holds, stock.used, gpuos.used
                );
                self.other_states += 1;
                continue;
            }
            let all = stock.outcomes.iter().zip(&gpuos.outcomes);
            let forecasts = stock.forecasts.iter().zip(&gpuos.forecasts);
            for ((request, (stock, gpuos)), (now, later)) in
                state.requests.iter().zip(all).zip(forecasts)
            {
                self.forecasts += usize::from(now.is_some());
                self.pairs += 1;
                if let Outcome::Started { step, .. } = stock {
                    self.started += 1;
                    self.steps += usize::from(step.is_some());
                }
                if weaker(stock, gpuos).is_some() || is_later(*now, *later) {
                    again.push(State {
                        holds: state.holds.clone(),
                        requests: vec![request.clone()],
                    });
                }
            }
        }
        if again.is_empty() {
            return;
        }
        let fresh;
        let pair = if ended {
            fresh = Pair::up(site, &pair.suite).expect("the same clusters start once more");
            &fresh
        } else {
            pair
        };
        let (stock, gpuos) = pair.run(&again);
        for (state, (stock, gpuos)) in again.iter().zip(stock.iter().zip(&gpuos)) {
            let (stock_is, gpuos_is) = (&stock.outcomes[0], &gpuos.outcomes[0]);
            let later = is_later(stock.forecasts[0], gpuos.forecasts[0]);
            let later = later.then_some("would start later by sbatch --test-only");
            let Some(how) = weaker(stock_is, gpuos_is).or(later) else {
                continue;
            };
            if fails_on_stock_too(pair, state, gpuos_is) {
                eprintln!(
                    "{seed}: {}: its srun fails on stock too, on {gpuos_is:?}",
                    state.requests[0].options.join(" ")
                );
                self.on_stock_too += 1;
                continue;
            }
            let request = state.requests[0].options.join(" ");
            let mut text = format!("{seed}: {request} {how} with gpuos\n");
            let _ = writeln!(text, "stock: {stock_is:?}\ngpuos: {gpuos_is:?}");
            let _ = writeln!(text, "beside: {:?}", state.holds);
            let _ = writeln!(text, "in use: {:?}", stock.used);
            let _ = writeln!(text, "{}", site.describe());
            eprintln!("{text}");
            self.differences.push(text);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Random rows of `Links=`, symmetric or not, with every oddity that Slurm takes.
fn links(suite: &Suite) {
    try_sites("links", suite, Site::of_links, State::of_links);
}

/// Everything else with them.
fn generated(suite: &Suite) {
    try_sites("generated", suite, Site::of, State::of);
}

type MakeSite = fn(&mut Rng) -> Site;
type MakeState = fn(&mut Rng, &Site, usize) -> State;

fn try_sites(name: &str, suite: &Suite, site: MakeSite, state: MakeState) {
    let wanted = number("GPUOS_WEAKER");
    // The short run of every day is always the same one; longer ones look for news.
    let fresh = || wanted.map_or(1, |_| ledger::now() as u64 / 1_000_000_000);
    let mut seed = number("GPUOS_WEAKER_SEED").unwrap_or_else(fresh);
    let pairs = wanted.unwrap_or(20) as usize;
    let states = if wanted.is_some() { STATES } else { 2 };
    let with_sruns = std::env::var("GPUOS_WEAKER_SRUNS").as_deref() != Ok("none");
    let mut tally = Tally::default();
    let mut version = String::new();
    let first = seed;
    while tally.pairs < pairs {
        let mut rng = Rng::new(seed);
        let site = site(&mut rng);
        let mut states: Vec<State> = (0..states)
            .map(|_| state(&mut rng, &site, REQUESTS))
            .collect();
        if !with_sruns {
            let requests = states.iter_mut().flat_map(|state| &mut state.requests);
            requests.for_each(|request| request.step = false);
        }
        let Some(pair) = Pair::up(&site, suite) else {
            return;
        };
        tally.compare(
            &pair,
            &site,
            &states,
            &format!("GPUOS_WEAKER_SEED={seed} weaker::{suite}::{name}"),
        );
        version = pair.gpuos.lab.version().to_owned();
        assert_eq!(pair.gpuos.passes_through(), None);
        seed += 1;
        eprintln!(
            "never weaker ({name}), Slurm {version}: {} pairs so far, {} differences",
            tally.pairs,
            tally.differences.len()
        );
    }
    eprintln!(
        "never weaker ({name}), Slurm {version}: {} pairs of seeds {first} to {}, {} started on stock, {} sruns, {} forecasts, {} states differed, {} starts taken back, {} sruns that fail on stock too, {} ends of slurmctld on stock, {} differences",
        tally.pairs,
        seed - 1,
        tally.started,
        tally.steps,
        tally.forecasts,
        tally.other_states,
        tally.taken_back,
        tally.on_stock_too,
        tally.ends_on_stock,
        tally.differences.len()
    );
    assert!(
        tally.differences.is_empty(),
        "{}",
        tally.differences.join("\n")
    );
}

/// Cases that were found elsewhere: rows of `Links=` whose -1 is not at the line's own place, and GPUs for each of several sockets.
fn known(suite: &Suite) {
    let mut site = Site::of(&mut Rng::new(1));
    for group in &mut site.groups {
        (group.sockets, group.cores, group.gpus) = (2, 8, 8);
        group.types = vec!["a"];
    }
    (site.parameters, site.topology) = ("CR_Core_Memory", None);
    site.gres_conf = "AutoDetect=off\n".into();
    for gpu in 0..8_usize {
        let cores = if gpu < 4 { "0-7" } else { "8-15" };
        let row = |own: usize| {
            let place = |at: usize| match at {
                at if at == own => -1,
                at if at / 2 == own / 2 => 4,
                _ => 0,
            };
            (0..8).map(|at| place(at).to_string()).collect::<Vec<_>>()
        };
        for (nodes, own) in [("n1,n2", gpu), ("n3,n4", gpu ^ 1)] {
            let row = row(own).join(",");
            let _ = writeln!(
                site.gres_conf,
                "NodeName={nodes} Name=gpu Type=a File=DEVICES/nvidia{gpu} Cores={cores} Links={row}"
            );
        }
    }
    let Some(pair) = Pair::up(&site, suite) else {
        return;
    };
    let ask = |options: &[&str]| Request {
        options: options.iter().map(|word| word.to_string()).collect(),
        step: true,
    };
    let odd: Vec<Request> = (2..=8)
        .step_by(2)
        .map(|count| ask(&[&format!("--gres=gpu:{count}"), "-xn1,n2"]))
        .chain([
            ask(&["--gpus=2", "-N1", "-xn1,n2"]),
            ask(&["--gpus=4", "-N2", "-xn1,n2"]),
            ask(&["-n2", "-N1", "--gpus-per-task=1", "-xn1,n2"]),
            ask(&["--gres=gpu:2", "-N2", "-xn1,n2"]),
        ])
        .collect();
    let sockets = |nodes: &str| ask(&[nodes, "--gpus-per-socket=4", "--sockets-per-node=2"]);
    let states = [
        State {
            holds: Vec::new(),
            requests: odd,
        },
        State {
            holds: vec![vec!["-wn2".into(), "--gres=gpu:1".into()]],
            requests: vec![sockets("-N1"), sockets("-N2"), sockets("-N3")],
        },
        // More tasks than a socket has cores, and nodes left open: cons_tres takes a second node for those that are far from GPUs.
        State {
            holds: vec![
                vec!["-wn1".into(), "-N1".into(), "--gres=gpu:2".into()],
                vec!["-wn3".into(), "-N1".into(), "--gres=gpu:7".into()],
            ],
            requests: vec![
                ask(&["--gres=gpu:4", "-n9"]),
                ask(&["--gres=gpu:4", "-n12"]),
                ask(&["--gres=gpu:2", "-n9"]),
                ask(&["--gres=gpu:4", "-n15"]),
            ],
        },
    ];
    let mut tally = Tally::default();
    tally.compare(&pair, &site, &states, "known");
    assert!(
        tally.differences.is_empty(),
        "{}",
        tally.differences.join("\n")
    );
    assert_eq!(tally.other_states, 0);
}
