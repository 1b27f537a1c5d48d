//! The driver, as the daemon has it called for processes that cannot be moved by themselves.

use gpuos_memory::lease::{At, ClientId, Input, Refuge};

use super::GIB;
use super::world::{Event, Moment, Mutant, World};

impl World {
    /// A process was told to park and cannot. It works on until the driver stops it.
    pub fn cannot(&mut self, client: ClientId, to: Refuge) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        process.held = true;
        let beyond = match self.mutant {
            Mutant::BeyondUntold => 0,
            _ => process.pinned.unwrap_or(0),
        };
        // What it was promised and has not been told that it may have is not there.
        let there = self.truth.bytes.entry(client).or_default().in_hbm();
        let bytes = there + beyond;
        if to == Refuge::Host {
            self.say(client, Input::Pinned { client, bytes });
        }
    }

    /// The driver is called for a process. It may be where it is to be already, and what was begun before counts no more.
    pub fn drive(&mut self, client: ClientId, parks: bool) {
        self.pauses(client);
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        let bytes = self.truth.bytes.entry(client).or_default();
        let moves = (process.at == At::Gpu) == parks;
        if moves && parks {
            bytes.host = process.host() + bytes.in_hbm() + process.pinned.unwrap_or(0);
        } else if moves {
            for (gpu, (hbm, _)) in &process.has {
                bytes.hbm.insert(*gpu, *hbm);
            }
        }
        let moved = if moves { process.hbm() } else { 0 };
        process.driven = Some((parks, self.now));
        process.drives += 1;
        process.called = Some(self.generation);
        let drive = process.drives;
        let took = 1 + moved * self.ms_per_gib / GIB + self.rng.below(5);
        let generation = self.generation;
        self.at(self.now + took, Event::Driven(client, drive, generation));
        let moment = match parks {
            true => Moment::Checkpointing,
            false => Moment::Restoring,
        };
        self.moment(client, moment);
    }

    /// Somebody calls the driver for a process already.
    pub fn calls(&self, client: ClientId) -> bool {
        let process = self.processes.get(&client);
        process.is_some_and(|it| it.called == Some(self.generation))
    }

    /// The driver is done, if whoever called it has not died with the daemon before. Then nobody is told.
    pub fn driven(&mut self, client: ClientId, drive: u64, generation: u64) {
        let untold = generation != self.generation;
        let dies = untold && self.rng.below(2) == 0;
        let fails = !untold && self.pins < 1000 && self.rng.below(40) == 0;
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        let Some((parks, since)) = process.driven else {
            return;
        };
        if process.drives != drive || dies {
            return;
        }
        process.called = None;
        let bytes = self.truth.bytes.entry(client).or_default();
        let took_ms = self.now - since;
        // It is called again.
        if !parks && process.at != At::Gpu && fails {
            process.driven = None;
            return;
        }
        if parks && process.at == At::Gpu && fails {
            process.driven = None;
            bytes.host = process.host();
            self.input(Input::NotCheckpointed {
                client,
                refused: true,
                runs_on: true,
            });
            self.goes_on(client);
            return;
        }
        let said = match parks {
            true => {
                if self.mutant != Mutant::NotTakenOut {
                    bytes.hbm.clear();
                    self.truth.told.retain(|(it, _), _| *it != client);
                }
                (process.at, process.driven) = (At::Parked(Refuge::Host), None);
                Input::Checkpointed { client, took_ms }
            }
            false => {
                process.at = At::Gpu;
                (process.held, process.driven) = (false, None);
                bytes.host = process.host();
                Input::BroughtBack { client, took_ms }
            }
        };
        if !untold {
            self.input(said);
        }
        self.goes_on(client);
        self.work_off(client);
    }
}
