//! What a host reports to its workload manager, over and over.

use std::collections::BTreeSet;

use crate::host::Host;

/// What a host has for jobs now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sensed {
    /// Node type.
    pub topo: String,
    /// GPUs that are free.
    pub free: u32,
    /// How many free GPUs at most are linked by NVLink with each other; 1 where a single one is free.
    pub nvlink: u32,
}

impl Sensed {
    /// What is seen of a host of whose GPUs these are held.
    pub fn of(host: &Host, held: &BTreeSet<u8>) -> Sensed {
        let (free, nvlink) = host.room(held);
        let clean = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name: String = host.kind.name.chars().filter(|c| clean(*c)).collect();
        Sensed {
            topo: if name.is_empty() {
                "unknown".into()
            } else {
                name
            },
            free,
            nvlink,
        }
    }

    /// A host whose GPUs cannot be seen.
    pub fn blind() -> Sensed {
        Sensed {
            topo: "unknown".into(),
            free: 0,
            nvlink: 0,
        }
    }

    /// Names and values.
    pub fn values(&self) -> [(&'static str, String); 3] {
        [
            ("gpuos_topo", self.topo.clone()),
            ("gpuos_free", self.free.to_string()),
            ("gpuos_nvlink", self.nvlink.to_string()),
        ]
    }

    /// As Grid Engine reads a load sensor, for the host of that name.
    pub fn for_gridengine(&self, host: &str) -> String {
        let line = |(name, value): (&str, String)| format!("{host}:{name}:{value}\n");
        let lines: String = self.values().map(line).concat();
        format!("begin\n{lines}end\n")
    }

    /// As LSF reads an elim: how many, then names and values. LSF knows itself what is free.
    pub fn for_lsf(&self) -> String {
        let values = self.values();
        let fixed = values.iter().filter(|(name, _)| *name != "gpuos_free");
        let words = fixed
            .clone()
            .map(|(name, value)| format!(" {name} {value}"));
        format!("{}{}\n", fixed.count(), words.collect::<String>())
    }
}
