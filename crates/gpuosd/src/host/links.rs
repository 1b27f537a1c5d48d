//! What a round means for the health rules.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::health::{Event, HostFault};
use gpuos_host::hardware::discover::{Adapter, PciPlace, served};
use gpuos_host::hardware::file_systems::Answered;
use gpuos_model::node_gpu::NodeGpu;

use super::Round;

/// A file system that takes longer than this to answer is told of.
const SLOW_MS: u64 = 1000;

/// What was told of the host.
#[derive(Debug, Default)]
pub struct Links {
    /// Adapters beside GPUs whose link has been up since the daemon started, with the GPUs they serve. A port that
    /// never had a cable is no fault.
    known: BTreeMap<String, Vec<NodeGpu>>,
    down: BTreeSet<String>,
    silent: BTreeSet<String>,
}

impl Links {
    /// Events of a round. `gpus`: the places of the GPUs, by GRES index.
    pub fn events(&mut self, round: &Round, gpus: &[(NodeGpu, &PciPlace)]) -> Vec<Event> {
        let mut faults = Vec::new();
        self.adapters(&round.adapters, gpus, &mut faults);
        faults.extend(round.memory.iter().map(|one| HostFault::MemoryErrors {
            controller: one.controller,
            corrected: one.corrected,
            uncorrected: one.uncorrected,
        }));
        self.file_systems(&round.file_systems, &mut faults);
        faults.into_iter().map(Event::Host).collect()
    }

    fn adapters(
        &mut self,
        adapters: &[Adapter],
        gpus: &[(NodeGpu, &PciPlace)],
        faults: &mut Vec<HostFault>,
    ) {
        for adapter in adapters.iter().filter(|adapter| adapter.up) {
            let serves = served(adapter, adapters, gpus);
            if serves.is_empty() {
                continue;
            }
            let new = !self.known.contains_key(&adapter.name);
            // Told when it is seen first too: it may have been down when the state was saved.
            if self.down.remove(&adapter.name) || new {
                faults.push(link(&adapter.name, true, &serves));
            }
            self.known.insert(adapter.name.clone(), serves);
        }
        for (name, serves) in &self.known {
            // One that is not there any more has fallen off the bus.
            let up = adapters.iter().any(|one| one.name == *name && one.up);
            if !up && self.down.insert(name.clone()) {
                faults.push(link(name, false, serves));
            }
        }
    }

    fn file_systems(&mut self, told: &[Answered], faults: &mut Vec<HostFault>) {
        let path = |one: &Answered| one.path.display().to_string();
        let ms = |one: &Answered| u64::try_from(one.silent.as_millis()).unwrap_or(u64::MAX);
        let silent: BTreeMap<String, u64> = told
            .iter()
            .filter(|one| ms(one) >= SLOW_MS)
            .map(|one| (path(one), ms(one)))
            .collect();
        let over = self
            .silent
            .iter()
            .filter(|path| !silent.contains_key(*path));
        let stall = |path: &String, stalled_ms| HostFault::FileSystem {
            path: path.clone(),
            stalled_ms,
        };
        faults.extend(over.map(|path| stall(path, 0)));
        faults.extend(silent.iter().map(|(path, ms)| stall(path, *ms)));
        self.silent = silent.into_keys().collect();
    }
}

fn link(nic: &str, up: bool, gpus: &[NodeGpu]) -> HostFault {
    HostFault::NicLink {
        nic: nic.into(),
        up,
        gpus: gpus.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn place(bus: &str) -> PciPlace {
        PciPlace {
            path: vec![
                "pci0000:00".into(),
                format!("0000:00:{bus}"),
                format!("0000:{bus}:00.0"),
            ],
            numa: Some(0),
            ..PciPlace::default()
        }
    }

    fn adapter(name: &str, up: bool) -> Adapter {
        Adapter {
            name: name.into(),
            place: place("02"),
            gbits: 400,
            up,
        }
    }

    fn told(links: &mut Links, adapters: &[Adapter]) -> Vec<(String, bool)> {
        let gpu = place("01");
        let round = Round {
            adapters: adapters.to_vec(),
            ..Round::default()
        };
        let events = links
            .events(&round, &[(3u8.try_into().unwrap(), &gpu)])
            .into_iter();
        events
            .map(|event| match event {
                Event::Host(HostFault::NicLink { nic, up, gpus }) => {
                    assert_eq!(gpus, [3u8.try_into().unwrap()]);
                    (nic, up)
                }
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_link_that_was_up_and_goes_is_told_once_and_its_return_too() {
        let mut links = Links::default();
        let both = [adapter("mlx5_0", true), adapter("mlx5_1", false)];
        let up = vec![("mlx5_0".to_owned(), true)];
        let down = vec![("mlx5_0".to_owned(), false)];
        assert_eq!(told(&mut links, &both), up);
        assert_eq!(told(&mut links, &both), []);
        assert_eq!(told(&mut links, &[adapter("mlx5_0", false)]), down);
        assert_eq!(told(&mut links, &[]), []);
        assert_eq!(told(&mut links, &both), up);
        assert_eq!(told(&mut links, &[]), down);
        // Without a GPU beside it, it is nobody's.
        let round = Round {
            adapters: both.to_vec(),
            ..Round::default()
        };
        assert_eq!(Links::default().events(&round, &[]), []);
    }

    #[test]
    fn a_file_system_is_told_while_it_is_silent_and_once_when_it_answers() {
        let mut links = Links::default();
        let mut look = |seconds: Option<u64>| {
            let one = |seconds| Answered {
                path: "/scratch".into(),
                silent: Duration::from_secs(seconds),
                error: None,
            };
            let round = Round {
                file_systems: seconds.map(one).into_iter().collect(),
                ..Round::default()
            };
            let events = links.events(&round, &[]).into_iter();
            events
                .map(|event| match event {
                    Event::Host(HostFault::FileSystem { stalled_ms, .. }) => stalled_ms,
                    other => panic!("{other:?}"),
                })
                .collect::<Vec<u64>>()
        };
        assert!(look(Some(0)).is_empty());
        assert_eq!(look(Some(31)), [31_000]);
        assert_eq!(look(Some(36)), [36_000]);
        assert_eq!(look(Some(0)), [0]);
        assert!(look(Some(0)).is_empty());
        // One that is not asked any more while it hangs is over too.
        assert_eq!(look(Some(40)), [40_000]);
        assert_eq!(look(None), [0]);
    }
}
