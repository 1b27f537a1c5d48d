//! Events of PBS's hooks: one as JSON comes in, what PBS is to do about it as JSON goes out.
//!
//! - [`event`]: the two forms of JSON,
//! - [`select`], [`place`] and [`vnodes`]: the texts of PBS that have structure,
//! - [`resources`]: what gpuos adds to `-l` and to vnodes,
//! - `options`: what a job says to gpuos, by the functions that read Slurm's options,
//! - `slices`, `shares`, `memory` with what [`beyond`] says, and `tiers`: parts of GPUs and memory beyond them, counted in chunks and given to programs,
//! - `allocation`: what a job has on a host,
//! - [`install`]: what `qmgr` is told, and [`hosts`] what it is told of hosts,
//! - `confine`: programs that are kept to the GPUs of their jobs,
//! - `advise`: hosts on which another one gives GPUs,
//! - `submit`, `run` and `launch`: what is done about each event, with the sentences in `refused`; `stale_end`: about a run that would never be the last,
//! - [`question`]: what daemons of a mom's host are told of an event, as [`talk`]s: by `mom` what mom has, with what is done by the answer ([`room`]: to the host's own vnode), by
//!   `prepare` what a program needs that is about to be started, and by `end` which run of a job has left the host.
//!
//! A text of a user is a string of the JSON and stays one: nothing here is joined to a command, and what is written back into a job
//! are words of this module, names that were checked, and what PBS itself gave.

mod advise;
mod allocation;
pub mod beyond;
mod confine;
mod described;
mod end;
pub mod event;
pub mod hosts;
pub mod install;
mod launch;
mod memory;
mod mom;
mod options;
pub mod place;
mod prepare;
pub mod question;
mod refused;
pub mod resources;
pub mod room;
pub(crate) mod run;
pub mod select;
mod shares;
mod slices;
mod stale_end;
mod submit;
pub mod talk;
mod text;
mod tiers;
pub mod vnodes;

use event::{Event, Kind, Verdict};
use question::Question;

/// The longest event that is read, in bytes: one of a job with 30,000 GPUs is shorter.
pub const MOST_BYTES: usize = 8 << 20;

/// What is to be done about an event, as JSON: an accepted or refused event with its edits, or `"verdict":"error"` where the
/// text is no event. It never panics for what the text holds.
///
/// ```
/// let event = r#"{"schema":"gpuos.pbs/1","event":"queuejob","job":{"resources":{"select":"1:ncpus=1"}}}"#;
/// assert_eq!(gpuos_pbs::hook::answer(event), r#"{"schema":"gpuos.pbs/1","verdict":"accept","edits":[]}"#);
/// ```
pub fn answer(text: &str) -> String {
    match Event::read(text) {
        Ok(event) => decide(&event).json(),
        Err(why) => Verdict::error_json(&why),
    }
}

/// How an event of a mom is decided about.
#[derive(Debug)]
pub enum Step {
    /// By itself: what is to be done, as JSON.
    Done(String),
    /// By what daemons of the host say, or after they were told.
    Ask(Box<Question>),
}

/// The same as [`answer`] where daemons of the host can be asked.
pub fn begin(text: &str) -> Step {
    let event = match Event::read(text) {
        Ok(event) => event,
        Err(why) => return Step::Done(Verdict::error_json(&why)),
    };
    if let Some(said) = stale_end::answer(&event) {
        return Step::Done(said);
    }
    match Question::of(&event) {
        Some(question) => Step::Ask(Box::new(question)),
        None => Step::Done(decide(&event).json()),
    }
}

/// What is to be done about an event.
pub fn decide(event: &Event) -> Verdict {
    let edits = match event.kind {
        Kind::Queuejob => submit::queued(event),
        Kind::Modifyjob => submit::modified(event),
        Kind::Resvsub => submit::reserved(event),
        Kind::Modifyresv => submit::reservation_modified(event),
        Kind::Runjob => return run::started(event),
        // There is nobody to be asked.
        Kind::ExecjobLaunch => return launch::verdict(event, &[]),
        // Without gpuosd there is nothing to do.
        Kind::ExechostPeriodic | Kind::ExecjobEnd => Ok(Vec::new()),
    };
    match edits {
        Ok(edits) => Verdict::accept(edits),
        Err(sentence) => Verdict::reject(sentence),
    }
}
