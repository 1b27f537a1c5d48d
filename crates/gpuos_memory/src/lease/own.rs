//! What is done when one job is short of its own memory: its processes are told, and give what they can. The limit is Slurm's, and whom
//! the kernel ends at it nobody here decides: so no other job gives anything, and nothing is parked or requeued for it.

use std::collections::BTreeMap;

use super::config::Config;
use super::ids::{ClientId, JobId, Refuge};
use super::input::{Demote, Effect};
use super::ladder::{ask, marks, tell};
use super::ledger::{Client, Ledger};
use super::reason::Notice;
use super::record::Place;

/// What was done for a job that is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Done {
    /// Nothing yet.
    Nothing,
    /// Its processes were told.
    Told,
    /// They were asked to drop what is elsewhere.
    Clean,
    /// What of it is parked was sent to NVMe, as far as there is room.
    Dirty,
    /// It is short no more, and its processes do not know yet.
    Over,
}

/// Jobs that are short, what was done for each, and when the next step is due.
#[derive(Default)]
pub(super) struct Own(BTreeMap<JobId, (Done, u64)>);

impl Own {
    /// Jobs that are short now.
    pub fn short(&self) -> impl Iterator<Item = JobId> {
        let short = self.0.iter().filter(|(_, (done, _))| *done != Done::Over);
        short.map(|(job, _)| *job)
    }

    /// How a job's memory is doing: free, limit, and time lost, of 1000. Between the marks all stays as it is.
    pub fn measure(
        &mut self,
        config: &Config,
        job: JobId,
        (free, total, stalled): (u64, u64, u32),
    ) {
        let (high, low) = marks(config, free, total, stalled);
        let known = self.0.get(&job).map(|it| it.0);
        if high && known.is_none_or(|done| done == Done::Over) {
            self.0.insert(job, (Done::Nothing, 0));
        } else if low && known.is_some() {
            self.0.insert(job, (Done::Over, 0));
        }
    }

    /// The next step of each job for which one is due.
    pub fn step(&mut self, config: &Config, ledger: &mut Ledger, now: u64, out: &mut Vec<Effect>) {
        self.0.retain(|job, _| ledger.jobs.contains_key(job));
        for (job, (done, due)) in &mut self.0 {
            let mut own = ledger.clients.iter().filter(|(_, it)| it.job == *job);
            let waits = |it: &Client| it.is_waited_for() && it.stopped.is_none();
            if now < *due || own.clone().any(|(_, it)| waits(it)) {
                continue;
            }
            (*done, *due) = match *done {
                Done::Nothing => {
                    tell(own, Notice::JobPressure, out);
                    (Done::Told, now + config.notice_ms)
                }
                Done::Told => {
                    let works = own.filter(|(_, it)| it.place == Place::Resident);
                    let works: Vec<ClientId> = works.map(|(id, _)| *id).collect();
                    demote(config, ledger, now, &works, Demote::Clean, out);
                    (Done::Clean, now + config.cool_ms)
                }
                Done::Clean => {
                    let room = ledger.nvme_room(*job);
                    let parked = own.find(|(_, it)| {
                        let parked = it.place == Place::Parked(Refuge::Host);
                        let free = it.hears() && it.asked.is_none() && it.by_driver.is_none();
                        parked && free && (1..=room).contains(&it.refuge_host())
                    });
                    let parked: Vec<ClientId> = parked.map(|(id, _)| *id).into_iter().collect();
                    demote(config, ledger, now, &parked, Demote::Dirty, out);
                    match parked.is_empty() {
                        true => (Done::Dirty, now),
                        // There may be another one.
                        false => (Done::Clean, now + config.cool_ms),
                    }
                }
                Done::Dirty => (Done::Dirty, now + config.away_ms),
                Done::Over => {
                    tell(own, Notice::Calm, out);
                    (Done::Over, u64::MAX)
                }
            };
        }
        self.0.retain(|_, it| *it != (Done::Over, u64::MAX));
    }
}

fn demote(
    config: &Config,
    ledger: &mut Ledger,
    now: u64,
    clients: &[ClientId],
    what: Demote,
    out: &mut Vec<Effect>,
) {
    for id in clients {
        if let Some(client) = ledger.clients.get_mut(id)
            && client.hears()
        {
            if what == Demote::Dirty {
                client.leaving = client.refuge_host();
            }
            ask(config, now, (*id, client), what, true, out);
        }
    }
}
