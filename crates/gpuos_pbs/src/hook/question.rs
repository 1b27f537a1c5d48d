//! An event of a mom about which daemons of its host are asked, or told.

use super::event::{Event, Kind};
use super::talk::{Daemon, Said, Talk};
use super::{end, launch, mom, prepare};

/// What daemons are told of an event, one after the other.
#[derive(Debug)]
pub struct Question {
    event: Event,
    /// The talks; a question has one at least.
    pub talks: Vec<Talk>,
}

impl Question {
    /// What is to be asked or told of an event; `None`: nobody has anything to do with it.
    pub(super) fn of(event: &Event) -> Option<Question> {
        let talks: Vec<Talk> = match event.kind {
            Kind::ExecjobLaunch => prepare::talks(event),
            Kind::ExechostPeriodic => mom::talks(event),
            Kind::ExecjobEnd => end::talks(event),
            _ => Vec::new(),
        };
        (!talks.is_empty()).then(|| Question {
            event: event.clone(),
            talks,
        })
    }

    /// What is to be done, as JSON, after what the daemons said, in the order of the talks.
    pub fn answer(&self, said: &[Said]) -> String {
        let all: Vec<(&Talk, &Said)> = self.talks.iter().zip(said).collect();
        let by = |daemon| {
            let mut all = all.iter();
            let said = all.find(|(talk, _)| talk.daemon == daemon && talk.answers > 0);
            said.map(|(_, said)| *said)
        };
        match self.event.kind {
            Kind::ExechostPeriodic => {
                mom::answer(&self.event, by(Daemon::Gpuosd), by(Daemon::Mover))
            }
            Kind::ExecjobEnd => end::answer(&self.event, by(Daemon::Gpuosd)),
            _ => launch::verdict(&self.event, &all).json(),
        }
    }
}
