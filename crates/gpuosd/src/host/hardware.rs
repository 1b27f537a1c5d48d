//! Where the hardware is not what gpuos.toml and Slurm say of it: said in the log, with what to write.

use gpuos_config::gpuos_toml::Config;
use gpuos_host::hardware::discover::{
    NodeHardware, PciPlace, described, differences, mig_differences,
};
use gpuos_model::node_types::NodeFacts;
use gpuos_workload::node::NodeRecord;

/// What is known of the node from three sides, and what was said of it.
#[derive(Debug, Default)]
pub struct Hardware {
    found: Option<Box<NodeHardware>>,
    config: Option<Box<Config>>,
    facts: Option<NodeFacts>,
    logged: Vec<String>,
}

impl Hardware {
    /// The hardware was looked at.
    pub fn found(&mut self, found: Box<NodeHardware>) -> Vec<String> {
        self.found = Some(found);
        self.changes()
    }

    /// gpuos.toml was read: what still differs is said again, for whoever changed it wants to know.
    pub fn configured(&mut self, config: Box<Config>) -> Vec<String> {
        self.config = Some(config);
        self.logged.clear();
        self.changes()
    }

    /// Slurm told its record of the node.
    pub fn shown(&mut self, record: &NodeRecord) -> Vec<String> {
        let facts = NodeFacts {
            name: record.name.clone(),
            gpus: record.gpu_count(),
            gres_type: match &record.gpus[..] {
                [(only, _)] => only.clone(),
                _ => String::new(),
            },
            sockets: record.sockets,
            cores_per_socket: record.cores_per_socket,
            links: None,
            gpu_sockets: None,
        };
        if self.facts.as_ref() == Some(&facts) {
            return Vec::new();
        }
        self.facts = Some(facts);
        self.changes()
    }

    /// Where GPUs are in the PCIe tree, by PCI address.
    pub fn place(&self, pci: &str) -> Option<&PciPlace> {
        let mut gpus = self.found.as_ref()?.seen();
        let gpu = gpus.find(|gpu| gpu.identity.pci == pci)?;
        gpu.place.as_ref()
    }

    /// What is to be said and was not.
    fn changes(&mut self) -> Vec<String> {
        let now = self.differences();
        let new = now.iter().filter(|line| !self.logged.contains(line));
        let new = new.cloned().collect();
        self.logged = now;
        new
    }

    fn differences(&self) -> Vec<String> {
        let (Some(found), Some(config), Some(facts)) = (&self.found, &self.config, &self.facts)
        else {
            return Vec::new();
        };
        let name = &facts.name;
        let sliced = mig_differences(found, &config.mig, name).into_iter();
        let sliced = sliced.map(|(sentence, advice)| format!("{sentence}: {advice}"));
        let switchable = config.mig.pool_of(name).map(|(pool, _)| pool.switchable);
        let switchable =
            |gpu: u8| switchable.is_some_and(|switchable| switchable.0.contains(usize::from(gpu)));
        let away = found
            .divided
            .iter()
            .filter(|one| switchable(one.index))
            .count();
        if away > 0 && found.gpus.len() + away == facts.gpus {
            // It was looked at while some of its GPUs were divided: of the whole node nothing is known.
            return sliced.collect();
        }
        if found.gpus.len() != facts.gpus {
            // All else of the node type would differ with it.
            let count = format!(
                "slurm.conf gives {name} {} GPUs, the driver shows {}: bring the missing ones back (`nvidia-smi`, \
                 dmesg), or write the lines that `gpuos discover --node-name {name}` prints",
                facts.gpus,
                found.gpus.len()
            );
            return [count].into_iter().chain(sliced).collect();
        }
        let (Some(kind), Some(mine)) = (config.described_type(facts), described(found)) else {
            return sliced.collect();
        };
        let own = config.node_types.iter().any(|own| own.name == kind.name);
        let line = |one: &gpuos_host::hardware::discover::Difference| {
            format!(
                "{}: {}",
                one.sentence(&kind.name),
                one.advice(&kind.name, own)
            )
        };
        differences(&kind, &mine)
            .iter()
            .map(line)
            .chain(sliced)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use gpuos_host::hardware::discover::{Sysfs, discover};
    use gpuos_host::hardware::nvml::Twin;
    use gpuos_model::node_types::by_name;
    use gpuos_workload::numbering::GpuNumbering;

    use super::*;

    fn found(kind: &str) -> Box<NodeHardware> {
        let twin = Twin::of(&by_name(kind).unwrap());
        let found = discover(&twin, &Sysfs::at("/nowhere"), &GpuNumbering::identity());
        Box::new(found.unwrap())
    }

    fn record(gres_type: &str, gpus: usize) -> NodeRecord {
        NodeRecord {
            name: "n1".into(),
            gpus: vec![(gres_type.into(), gpus)],
            ..NodeRecord::default()
        }
    }

    fn config(text: &str) -> Box<Config> {
        Box::new(Config::parse(text, "gpuos.toml").unwrap())
    }

    const WRONG: &str = "[[node-type]]\nname = \"mine\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 40000\n\
                         [[nodes]]\nmatch = \"n1\"\ntype = \"mine\"\n";

    #[test]
    fn a_difference_is_said_once_with_its_line_and_again_after_a_reload() {
        let mut hardware = Hardware::default();
        assert!(hardware.configured(config(WRONG)).is_empty());
        assert!(hardware.shown(&record("h100", 8)).is_empty());
        let said = hardware.found(found("dgx-h100"));
        let [line] = &said[..] else {
            panic!("{said:?}")
        };
        assert!(
            line.contains("mine says 40000 MiB")
                && line.contains("[[node-type]] name = \"mine\", write gpu-memory-mib = "),
            "{line}"
        );
        assert!(hardware.found(found("dgx-h100")).is_empty());
        assert_eq!(hardware.configured(config(WRONG)), said);
        assert!(hardware.configured(config("")).is_empty());
        // A GPU that Slurm does not know of, or the driver.
        let said = hardware.shown(&record("h100", 7));
        assert!(
            said[0].contains("gives n1 7 GPUs, the driver shows 8"),
            "{said:?}"
        );
        assert!(hardware.shown(&record("h100", 8)).is_empty());
    }

    #[test]
    fn a_node_that_nobody_described_differs_from_nothing() {
        let mut hardware = Hardware::default();
        hardware.configured(config(""));
        hardware.shown(&record("a1000", 8));
        assert!(hardware.found(found("dgx-h100")).is_empty());
    }
}
