//! Every sentence that `gpuos why` says of jobs in generated clusters, read as a user reads it and held against the
//! facts. A sentence of a form that the reader does not know fails.

mod detail;
mod forms;
mod oracle;
mod print;
mod read;
mod world;

use serde_json::Value;

use crate::cli::WhyArgs;
use gpuos_model::messages::Row;
use world::World;

/// Generated clusters; each is asked about all of its jobs. More with `GPUOS_STATES`.
const STATES: u64 = 500;

#[test]
fn every_sentence_on_a_job_is_true_of_the_cluster() {
    let states = std::env::var("GPUOS_STATES").ok();
    let states = states.map_or(STATES, |count| count.parse().expect("a number"));
    let only: Option<u64> = std::env::var("GPUOS_STATE")
        .ok()
        .map(|seed| seed.parse().expect("a number"));
    // How often each form of a sentence was judged: none is there for nothing.
    let mut judged = forms::Judged::new();
    let mut wrong = Vec::new();
    for seed in only.map_or(0..states, |seed| seed..seed + 1) {
        let world = World::generate(seed);
        let machine = world.machine();
        if only.is_some() {
            // For whoever looks into one state.
            machine
                .commands
                .values()
                .for_each(|output| eprintln!("{}", output.stdout));
        }
        let ask = |label: &str| {
            let args = WhyArgs {
                job: label.into(),
                pbs: false,
                runtime_dir: "/nonexistent".into(),
            };
            let reply =
                super::run(&machine, None, &args).unwrap_or_else(|e| panic!("{seed}: {e:#}"));
            let schema: &Value = &reply.json["jobs"][0]["sentence"];
            assert!(schema.is_string(), "{seed}: {label}: {}", reply.text);
            reply.text
        };
        for job in &world.waiting {
            let text = ask(&job.label);
            if let Err(why) = read::waiting(&world, job, &text, &mut judged) {
                wrong.push(format!("state {seed}, job {}: {why}\n{text}", job.label));
            }
        }
        for job in world.running.iter().filter(|job| !job.hidden) {
            let text = ask(&job.label);
            if let Err(why) = detail::running(&world, job, &text, &mut judged) {
                wrong.push(format!("state {seed}, job {}: {why}\n{text}", job.label));
            }
        }
    }
    let count = wrong.len();
    wrong.truncate(12);
    assert!(
        wrong.is_empty(),
        "{count} wrong sentences, the first:\n{}",
        wrong.join("\n")
    );
    if only.is_none() {
        let forms = forms::FORMS.iter();
        let missing = forms.filter(|(form, ..)| !judged.contains_key(form));
        let missing: Vec<_> = missing.collect();
        assert!(
            missing.is_empty(),
            "no state has a sentence of these forms: {missing:?}\n{judged:#?}"
        );
        on_the_page(&judged);
    }
}

/// docs/reference/messages.md has each form with its first example, whose state is the same with more of them.
fn on_the_page(judged: &forms::Judged) {
    let row = |(form, means, action): &(&str, &'static str, &'static str)| Row {
        name: "",
        text: judged[form].1.clone().leak(),
        means,
        action,
    };
    let rows: Vec<Row> = forms::FORMS.iter().map(row).collect();
    crate::messages_page::hold(&[("gpuos why", &rows)], &[]);
}
