//! A job submission verifier, as sge_qmaster talks to one: lines in, lines out.
//!
//! Arguments of a job stand in this protocol as they are, line breaks too, so that a user can write lines of it. What such a line
//! says of the job itself he could have said by an option. One that pretends that the job is complete would have an answer waiting
//! when the next job comes, which is another user's: whoever runs this looks whether more comes at once after [`Step::Complete`],
//! and then ends without an answer; and a line between two jobs ends it too. Grid Engine starts another one.

use gpuos_model::hostlist::shorten;

use crate::ask::{Ask, CHECKPOINT, TOPOLOGY};
use crate::gridengine::{ENVIRONMENT, GPU, NVLINK};
use crate::refused;

/// The most of one job that is kept.
const MOST_BYTES: usize = 1 << 20;

/// What a line leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing.
    Wait,
    /// These lines are written.
    Say(Vec<String>),
    /// The job is complete: if nothing more comes at once, these lines are written.
    Complete(Vec<String>),
    /// The verifier ends.
    End,
}

/// The verifier.
#[derive(Debug, Default)]
pub struct Jsv {
    /// The job that is being told; none between two.
    job: Option<Told>,
}

#[derive(Debug, Default)]
struct Told {
    hard: String,
    context: String,
    environment: String,
}

impl Jsv {
    /// Takes a line, without its end.
    pub fn line(&mut self, line: &str) -> Step {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let Some(job) = &mut self.job else {
            return match word {
                "START" => {
                    self.job = Some(Told::default());
                    Step::Say(vec!["STARTED".into()])
                }
                _ => Step::End,
            };
        };
        match (word, rest.split_once(' ')) {
            ("PARAM", Some((_, value))) if value.len() > MOST_BYTES => Step::End,
            ("PARAM", Some(("l_hard", value))) => {
                job.hard = value.into();
                Step::Wait
            }
            ("PARAM", Some(("ac", value))) => {
                job.context = value.into();
                Step::Wait
            }
            ("PARAM", Some(("ckpt", value))) => {
                job.environment = value.into();
                Step::Wait
            }
            ("BEGIN", None) if rest.is_empty() => {
                let said = job.answer();
                self.job = None;
                Step::Complete(said)
            }
            ("QUIT", None) => Step::End,
            _ => Step::Wait,
        }
    }
}

impl Told {
    fn answer(&self) -> Vec<String> {
        let (hard, context) = (list(&self.hard), list(&self.context));
        let about_us = |(name, _): &&(&str, &str)| name.starts_with("gpuos_");
        let ours = hard.iter().chain(&context).any(|pair| about_us(&pair));
        if !ours {
            return vec!["RESULT STATE ACCEPT".into()];
        }
        let gpus = hard.iter().rev().find(|(name, _)| *name == GPU);
        let gpus = gpus.map_or(Ok(0), |(_, value)| value.parse::<u32>());
        let Ok(gpus) = gpus else {
            // Grid Engine says what is wrong with it.
            return vec!["RESULT STATE ACCEPT".into()];
        };
        // What a user writes into the context himself is not what was checked before: it counts where he says nothing else.
        let reported = |name: &str| ["gpuos_topo", "gpuos_free", NVLINK].contains(&name);
        let named = hard.iter().any(|pair| about_us(&pair) && !reported(pair.0));
        let source = if named { &hard } else { &context };
        let options = source.iter().filter(about_us).copied();
        let ask = match Ask::read(gpus, options, "-l {}") {
            Ok(ask) => ask,
            Err(why) => return vec![format!("RESULT STATE REJECT {}", one_line(&why))],
        };
        if let Some(word) = ask
            .checkpoint_word()
            .filter(|_| self.environment != ENVIRONMENT)
        {
            let why = refused::no_environment(&word, format!("-l {CHECKPOINT}")).to_string();
            return vec![format!("RESULT STATE REJECT {}", one_line(&why))];
        }
        let mut new_hard: Vec<String> = hard
            .iter()
            .filter(|(name, _)| {
                ![TOPOLOGY, CHECKPOINT].contains(name) && (*name != NVLINK || ask.linked() == 0)
            })
            .map(pair)
            .collect();
        if ask.linked() > 0 {
            new_hard.push(format!("{NVLINK}={}", ask.linked()));
        }
        let others = context.iter().filter(|pair| !about_us(pair));
        let mut new_context: Vec<String> = others.map(pair).collect();
        if let Some(wish) = &ask.topology {
            new_context.push(format!("{TOPOLOGY}={wish}"));
        } else if context.iter().any(|pair| about_us(&pair)) {
            // A context that is not told again stays as it was.
            new_context.push(format!("{TOPOLOGY}=off"));
        }
        if let Some(word) = ask.checkpoint_word() {
            new_context.push(format!("{CHECKPOINT}={word}"));
        } else if source.iter().any(|(name, _)| *name == CHECKPOINT) {
            new_context.push(format!("{CHECKPOINT}=off"));
        }
        let hard = format!("PARAM l_hard {}", new_hard.join(","));
        let mut said = vec![hard.trim_end().to_owned()];
        if !new_context.is_empty() {
            said.push(format!("PARAM ac {}", new_context.join(",")));
        }
        said.push("RESULT STATE CORRECT".into());
        said
    }
}

/// A list of Grid Engine's: `name=value,name`.
fn list(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .collect()
}

fn pair((name, value): &(&str, &str)) -> String {
    match value.is_empty() {
        true => (*name).to_owned(),
        false => format!("{name}={value}"),
    }
}

/// A sentence as one line of the protocol.
fn one_line(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = text.chars().map(clean).collect();
    match line.len() > 1000 {
        true => shorten(&line),
        false => line,
    }
}
