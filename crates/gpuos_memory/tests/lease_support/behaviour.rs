//! What processes do with what they hear.

use gpuos_memory::lease::{At, ClientId, Demote, GpuId, Input, Refuge};

use super::GIB;
use super::process::{Doing, Said};
use super::world::{Event, Moment, Mutant, World};

impl World {
    // Processes.

    /// It dies at once.
    pub fn die(&mut self, client: ClientId) {
        self.waits.remove(&client);
        let Some(process) = self.processes.remove(&client) else {
            return;
        };
        self.truth.dead(client);
        let job = process.job;
        if self.mutant != Mutant::DeathUntold {
            let later = self.now.max(process.said_at) + self.rng.below(100);
            let generation = self.generation;
            self.at(later, Event::Deliver(generation, Input::Gone(client)));
        }
        if self.of_job(job).is_empty() {
            self.job_ends(job);
        }
    }

    pub fn heard(&mut self, client: ClientId, said: Said) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        if process.deaf {
            return;
        }
        process.inbox.push_back(said);
        self.work_off(client);
    }

    pub fn work_off(&mut self, client: ClientId) {
        loop {
            let Some(process) = self.processes.get_mut(&client) else {
                return;
            };
            if process.doing.is_some() || process.deaf {
                return;
            }
            let Some(said) = process.inbox.pop_front() else {
                return;
            };
            match said {
                Said::Answer(gpu, answer) => self.answered(client, gpu, answer),
                Said::Park(to, _) if process.pinned.is_some() && process.at == At::Gpu => {
                    self.cannot(client, to);
                }
                Said::Park(to, nvme) => self.begin(client, Doing::Park(to, nvme)),
                Said::Turn => self.begin(client, Doing::Back),
                Said::Demote(what) => self.begin(client, Doing::Demote(what)),
            }
        }
    }

    pub fn answered(&mut self, client: ClientId, gpu: GpuId, answer: Option<(u64, u64, bool)>) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        if process.asks.front().is_none_or(|it| it.0 != gpu) {
            return;
        }
        process.asks.pop_front();
        if let Some((hbm, host, turn)) = answer {
            let before = process.has.insert(gpu, (hbm, host)).unwrap_or_default();
            // Who has GPUs in turns, and nothing of this one, goes by the word for another one.
            let job = self.truth.of.get(&client);
            let spec = job.and_then(|job| self.truth.jobs.get(job));
            let in_turns = spec.is_some_and(|spec| spec.timeslice);
            if turn && (hbm + host > 0 || !in_turns) {
                process.at = At::Gpu;
            }
            let bytes = self.truth.bytes.entry(client).or_default();
            bytes.host = bytes.host + host - before.1;
            if turn {
                bytes.hbm.insert(gpu, hbm);
            }
        }
        if process.asks.is_empty() && process.hbm() + process.host() == 0 {
            // Nothing was given: it ends with an error.
            self.die(client);
            return;
        }
        self.ask_next(client);
    }

    /// Bytes are on both sides while they are moved.
    pub fn begin(&mut self, client: ClientId, doing: Doing) {
        self.pauses(client);
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        let at_gpu = process.at == At::Gpu;
        let bytes = self.truth.bytes.entry(client).or_default();
        let moved = match &doing {
            Doing::Park(..) if !at_gpu => 0,
            Doing::Park(Refuge::Host, nvme) => {
                let nvme = match self.mutant {
                    Mutant::ParksInHost => 0,
                    _ => (*nvme).min(process.hbm()),
                };
                bytes.nvme = nvme;
                bytes.host = process.host() + process.hbm() - nvme;
                process.on_nvme = nvme;
                process.hbm()
            }
            Doing::Park(Refuge::Nvme, _) => {
                bytes.nvme = process.hbm() + process.host();
                process.on_nvme = bytes.nvme;
                bytes.nvme
            }
            Doing::Back => {
                for (gpu, (hbm, _)) in &process.has {
                    bytes.hbm.insert(*gpu, *hbm);
                }
                bytes.host = bytes.host.max(process.host());
                if at_gpu { 0 } else { process.hbm() }
            }
            Doing::Demote(Demote::Clean) => 0,
            Doing::Demote(Demote::Dirty) => {
                // What lies in host memory beyond what always does.
                let moved = bytes.host.saturating_sub(process.host());
                bytes.nvme += moved;
                process.demoting = moved;
                moved
            }
        };
        let mut took = 1 + moved * self.ms_per_gib / GIB + self.rng.below(5);
        if moved > 0 && self.slow && matches!(doing, Doing::Demote(_)) {
            took += 2000 + self.rng.below(4000);
        }
        let moment = match &doing {
            Doing::Park(..) => Some(Moment::Parking),
            Doing::Back => Some(Moment::Returning),
            Doing::Demote(Demote::Dirty) => Some(Moment::Demoting),
            Doing::Demote(_) => None,
        };
        if self.mutant == Mutant::ParkedEarly && matches!(doing, Doing::Park(..)) {
            self.say(client, Input::Parked { client, took_ms: 0 });
        }
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        process.doing = Some((doing, self.now));
        process.phase += 1;
        let phase = process.phase;
        self.at(self.now + took, Event::Finished(client, phase));
        if let Some(moment) = moment {
            self.moment(client, moment);
        }
    }

    pub fn finished(&mut self, client: ClientId, phase: u64) {
        let mutant = self.mutant;
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        if process.phase != phase {
            return;
        }
        let Some((doing, since)) = process.doing.take() else {
            return;
        };
        // Now and then NVMe takes nothing.
        let goes_there = matches!(doing, Doing::Park(_, nvme) if nvme > 0);
        if goes_there && process.at == At::Gpu && self.rng.below(20) == 0 {
            process.on_nvme = 0;
            let host = process.host();
            let bytes = self.truth.bytes.entry(client).or_default();
            (bytes.nvme, bytes.host) = (0, host);
            self.say(client, Input::NotParked(client));
            self.goes_on(client);
            return self.work_off(client);
        }
        let took_ms = self.now - since;
        let bytes = self.truth.bytes.entry(client).or_default();
        let said = match doing {
            Doing::Park(to, _) => {
                if process.at == At::Gpu {
                    process.at = At::Parked(to);
                    bytes.hbm.clear();
                    if to == Refuge::Nvme {
                        bytes.host = 0;
                    }
                }
                self.truth.told.retain(|(it, _), _| *it != client);
                Input::Parked { client, took_ms }
            }
            Doing::Back => {
                process.at = At::Gpu;
                (process.on_nvme, process.demoted) = (0, 0);
                bytes.nvme = 0;
                bytes.host = process.host();
                Input::Back { client, took_ms }
            }
            Doing::Demote(Demote::Clean) => Input::Demoted { client, bytes: 0 },
            Doing::Demote(Demote::Dirty) => {
                let moved = std::mem::take(&mut process.demoting);
                bytes.host -= moved;
                process.on_nvme += moved;
                process.demoted += moved;
                self.seen.late += u64::from(self.now > process.due);
                // The broker may not have heard what was said before it died.
                Input::Demoted {
                    client,
                    bytes: process.demoted,
                }
            }
        };
        if !(mutant == Mutant::ParkedEarly && matches!(said, Input::Parked { .. })) {
            self.say(client, said);
        }
        self.goes_on(client);
        self.work_off(client);
    }

    /// It gives up what it was asked to demote, or is about to be: nothing of it goes to NVMe. Who says that he has demoted has to, since what
    /// he said is what counts, and what he brings to NVMe afterwards nobody has given him.
    pub fn gives_up(&mut self, client: ClientId) {
        let demotes = |it: &Event| matches!(it, Event::Hear(of, Said::Demote(_)) if *of == client);
        self.queue.retain(|_, event| !demotes(event));
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        process.inbox.retain(|it| !matches!(it, Said::Demote(_)));
        if !matches!(process.doing, Some((Doing::Demote(_), _))) {
            return;
        }
        process.doing = None;
        process.phase += 1;
        let moved = std::mem::take(&mut process.demoting);
        self.truth.bytes.entry(client).or_default().nvme -= moved;
        self.goes_on(client);
        self.work_off(client);
    }

    /// It works, if it may and has work.
    pub fn goes_on(&mut self, client: ClientId) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        let free = process.doing.is_none() && process.driven.is_none();
        let may = process.at == At::Gpu && free && process.asks.is_empty();
        if !(may && process.busy && process.since.is_none()) {
            return;
        }
        process.since = Some(self.now);
        process.phase += 1;
        let phase = process.phase;
        let most = 1 + process.left / 2;
        let some = 1 + self.rng.below(2 * most);
        let some = some.min(process.left.max(1));
        self.at(self.now + some, Event::Phase(client, phase));
    }

    pub fn pauses(&mut self, client: ClientId) {
        if let Some(process) = self.processes.get_mut(&client)
            && let Some(since) = process.since.take()
        {
            process.left = process.left.saturating_sub(self.now - since);
        }
    }

    /// A phase of work or of idleness is over.
    pub fn phase(&mut self, client: ClientId, phase: u64) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        if process.phase != phase && process.since.is_some() {
            return;
        }
        if process.since.is_some() {
            self.pauses(client);
            let idle = self.rng.below(4) == 0 && self.idles;
            let Some(process) = self.processes.get_mut(&client) else {
                return;
            };
            if process.left == 0 {
                self.seen.finished += 1;
                self.die(client);
                return;
            }
            if idle {
                process.busy = false;
                self.say(client, Input::Idle(client));
                let later = self.now + 1 + self.rng.below(5000);
                self.at(later, Event::Phase(client, u64::MAX));
            }
        } else if !process.busy && phase == u64::MAX {
            process.busy = true;
            self.say(client, Input::Busy(client));
        }
        self.goes_on(client);
    }
}
