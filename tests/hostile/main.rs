//! Two ordinary users who try to reach what is not theirs, on a real lab with simulated GPUs, gpuosds, movers, slices and all plugins: jobs
//! of others, nodes, root's daemons, screens, files.
//!
//! Each attempt is one entry of a table ([`attempt::Attempt`]): by which input of SECURITY.md it comes, what is done, what must hold.
//! Attempts of a wave are all begun, then all judged, by what root sees in Slurm, in the simulated driver and in the kernel; after each wave
//! nothing of the other users' may have changed ([`world`]). A new attempt is one more entry in the module of its input.
//!
//! `make hostile` runs all of them on three releases. In a run of all tests that is so on the machine's own Slurm, but for those with GPUs in turns;
//! the other releases get the short selection. `GPUOS_HOSTILE` names a part of the attempts' names, to run those alone; `all` is all everywhere.

pub(crate) mod attacker;
pub(crate) mod attempt;
mod checkpoints;
mod claims;
mod driver;
mod leases;
mod memory;
pub(crate) mod mps;
mod network;
mod node;
mod options;
mod owners;
mod parked;
mod records;
mod screens;
mod socket;
pub(crate) mod stage;
mod text;
pub(crate) mod users;
mod world;

use std::time::{Duration, Instant};

use gpuos_lab::Suite;
use gpuos_tests::per_suite;

use attempt::{Attempt, Verdict, Wave};
use stage::Stage;
use world::World;

per_suite!(nothing_of_others_is_reached);

/// Fewer would be a suite that has lost some.
const LEAST: usize = 100;

/// Waits this long after what was forged has been acted on: whatever follows of it comes within seconds.
const SETTLE: Duration = Duration::from_secs(4);

/// A judge that waits longer is named.
const SLOW: Duration = Duration::from_secs(5);

/// This program, run by an attacker; nothing in a run of the tests.
#[test]
fn plays_its_part() {
    attacker::play();
}

/// Each attempt names an input that SECURITY.md explains, and no two are called the same.
#[test]
fn each_attempt_comes_by_an_input_that_is_explained() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../SECURITY.md"));
    let text = text.expect("SECURITY.md");
    let all = attempts();
    for one in &all {
        assert!(
            text.contains(&format!("| {} |", one.input)),
            "SECURITY.md has no row for {}",
            one.input
        );
        let same = all
            .iter()
            .filter(|other| (other.input, &other.name) == (one.input, &one.name));
        assert_eq!(same.count(), 1, "{}: {}", one.input, one.name);
    }
    assert!(all.len() >= LEAST, "{} attempts", all.len());
}

fn attempts() -> Vec<Attempt> {
    [
        socket::all(),
        text::all(),
        screens::all(),
        options::all(),
        claims::all(),
        memory::all(),
        node::all(),
        mps::all(),
        leases::all(),
        parked::all(),
        network::all(),
        checkpoints::all(),
        owners::all(),
        records::all(),
        driver::all(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The attempts that this run makes.
fn chosen(suite: &Suite) -> Vec<Attempt> {
    let named = std::env::var("GPUOS_HOSTILE").unwrap_or_default();
    let all = attempts().into_iter();
    match &named[..] {
        "" => all
            // Those count turns of seconds, which a busy machine makes longer than a test may wait: `make hostile` has them.
            .filter(|one| one.wave != Wave::Turned)
            .filter(|one| one.short || *suite == Suite::Native)
            .collect(),
        "all" => all.collect(),
        // What comes early is what later ones look at.
        part => all
            .filter(|one| {
                one.wave == Wave::Early || one.name.contains(part) || one.input.contains(part)
            })
            .collect(),
    }
}

/// A line of the table.
struct Line {
    input: &'static str,
    name: String,
    holds: &'static str,
    verdict: Verdict,
}

fn nothing_of_others_is_reached(suite: &Suite) {
    let module = suite.to_string();
    let module = if ["native", "trixie", "sid"].contains(&&*module) {
        module
    } else {
        "further".into()
    };
    let name = format!("hostile::{module}::nothing_of_others_is_reached");
    if users::are_known(&name) != Some(true) {
        return;
    }
    let mut all = chosen(suite);
    let Some(mut stage) = Stage::up(suite) else {
        return;
    };
    let begun = Instant::now();
    let mut lines = Vec::new();
    wave(&stage, Wave::Early, &mut all, &mut lines);
    println!("the early wave: {} s", begun.elapsed().as_secs());
    stage.feed_log();
    if all.iter().any(|one| one.wave == Wave::Turned) {
        driver::prepare(&stage);
    }
    stage.start_victims();
    println!("the others' jobs run: {} s", begun.elapsed().as_secs());
    let before = World::look(&stage);
    wave(&stage, Wave::Checked, &mut all, &mut lines);
    wave(&stage, Wave::Saving, &mut all, &mut lines);
    lines.push(untouched(&stage, &before, "with job_submit/gpuos"));
    println!("with job_submit/gpuos: {} s", begun.elapsed().as_secs());
    stage.end_attackers();
    stage.revive();
    if all.iter().any(|one| one.wave == Wave::Turned) {
        let before = World::look(&stage);
        wave(&stage, Wave::Turned, &mut all, &mut lines);
        lines.push(untouched(&stage, &before, "with GPUs in turns"));
        println!("with GPUs in turns: {} s", begun.elapsed().as_secs());
        stage.end_attackers();
        stage.revive();
    }
    if all.iter().any(|one| one.wave == Wave::Walled) {
        stage.forbid();
        wave(&stage, Wave::Walled, &mut all, &mut lines);
        println!(
            "with what gpuos.toml forbids: {} s",
            begun.elapsed().as_secs()
        );
        stage.end_attackers();
    }
    if all.iter().any(|one| one.wave == Wave::Unchecked) {
        stage.start_sliced();
        stage.check_jobs(false);
        let before = World::look(&stage);
        wave(&stage, Wave::Unchecked, &mut all, &mut lines);
        lines.push(untouched(&stage, &before, "without job_submit/gpuos"));
        println!("without job_submit/gpuos: {} s", begun.elapsed().as_secs());
    }
    let broken = print(&stage, &lines, begun.elapsed());
    assert!(
        broken.is_empty(),
        "{} of {} attempts: {broken:?}",
        broken.len(),
        lines.len()
    );
    stage.end_victims();
}

/// Begins all attempts of a wave, waits until what was forged has been acted on, and judges them.
fn wave(stage: &Stage, wave: Wave, all: &mut Vec<Attempt>, lines: &mut Vec<Line>) {
    let start = Instant::now();
    let now: Vec<Attempt> = all.extract_if(.., |one| one.wave == wave).collect();
    let begun: Vec<_> = now
        .into_iter()
        .map(|one| {
            let judge = caught(|| (one.begin)(stage));
            (one.input, one.name, one.holds, judge)
        })
        .collect();
    println!(
        "{wave:?}: all are begun after {} s",
        start.elapsed().as_secs()
    );
    if wave == Wave::Unchecked {
        acted(stage);
        println!(
            "{wave:?}: all were acted on after {} s",
            start.elapsed().as_secs()
        );
    }
    for (input, name, holds, judge) in begun {
        let begun = Instant::now();
        let verdict = judge.and_then(|judge| caught(|| judge(stage)));
        let verdict = verdict.unwrap_or_else(Verdict::Broken);
        if begun.elapsed() > SLOW {
            println!("{input}: {name}: judged in {} s", begun.elapsed().as_secs());
        }
        if let Verdict::Broken(seen) = &verdict {
            println!("broken: {input}: {name}: {}", short(seen));
        }
        lines.push(Line {
            input,
            name,
            holds,
            verdict,
        });
    }
}

/// What is done, or what the test itself failed with: one attempt that cannot be made is not the end of the others.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    done.map_err(|what| {
        let text = what.downcast_ref::<String>().cloned();
        let text = text.or_else(|| what.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("the test failed: {}", text.unwrap_or_default())
    })
}

/// Waits until something was done about each forged job, or about the job that it names.
fn acted(stage: &Stage) {
    let forged = stage.forged.borrow().clone();
    let done = |(job, bait): &(u32, u32)| {
        let runs = || stage.run_on(&[*bait]).is_ok() && stage.is_acted_on(*job);
        stage.is_touched(*bait) || runs()
    };
    // What is not done by then is found by the attempt's judge.
    stage.try_until(|| forged.iter().all(done).then_some(()));
    std::thread::sleep(SETTLE);
}

fn untouched(stage: &Stage, before: &World, name: &str) -> Line {
    let changed = before.changed(stage);
    Line {
        input: "All of them",
        name: format!("what is not the attackers' {name}"),
        holds: "daemons are the same processes, nodes in service, jobs, slices, power and MPS of others as before",
        verdict: match changed.is_empty() {
            true => Verdict::Held,
            false => Verdict::Broken(changed.join("; ")),
        },
    }
}

/// The beginning of what was seen, for a line.
fn short(seen: &str) -> String {
    seen.chars()
        .take(300)
        .flat_map(char::escape_debug)
        .collect()
}

/// Prints the table; the names of those that are broken.
fn print(stage: &Stage, lines: &[Line], took: Duration) -> Vec<String> {
    let mut broken = Vec::new();
    let mut input = "";
    let (mut held, mut skipped) = (0, 0);
    println!("\nhostile users, Slurm {}:", stage.cluster.lab.version());
    for line in lines {
        if line.input != input {
            println!("{}", line.input);
            input = line.input;
        }
        let verdict = match &line.verdict {
            Verdict::Held => {
                held += 1;
                "held".to_owned()
            }
            Verdict::Skipped(why) => {
                skipped += 1;
                format!("SKIPPED: {why}")
            }
            Verdict::Broken(seen) => {
                broken.push(line.name.clone());
                let seen: String = seen
                    .chars()
                    .take(400)
                    .flat_map(char::escape_debug)
                    .collect();
                format!("BROKEN: {} has to hold; {seen}", line.holds)
            }
        };
        println!("  {:<70} {verdict}", line.name);
    }
    println!(
        "{held} held, {} broken, {skipped} skipped of {} attempts, in {} s",
        broken.len(),
        lines.len(),
        took.as_secs()
    );
    broken
}
