//! What the kernel tells of PCIe, CPUs, memory and network adapters, under `/sys` or a recorded copy of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gpuos_model::cluster::Link;
use gpuos_model::hostlist::expand;

use super::types::rank;

/// sysfs below a root. What is not there is `None` or empty: no call fails.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

/// A device's place in the PCIe tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PciPlace {
    /// The devices from the host bridge (`pci0000:00`) down to the device itself.
    pub path: Vec<String>,
    /// NUMA node; `None` when the firmware does not tell.
    pub numa: Option<u16>,
    /// CPUs beside it.
    pub cpus: Vec<u32>,
    /// PCIe generation that board and slot can do.
    pub generation: Option<u32>,
}

/// A network adapter with RDMA, or a plain one where the node has none of those.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adapter {
    /// Name, for example `mlx5_0`.
    pub name: String,
    /// Its place.
    pub place: PciPlace,
    /// Rate in Gbit/s over its ports; 0 when not known, as with links that are down.
    pub gbits: u32,
    /// Whether a port is up.
    pub up: bool,
}

/// The CPUs of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cpus {
    /// CPU number to its core's number in Slurm's count: socket by socket.
    pub core_of: BTreeMap<u32, u32>,
    /// Sockets.
    pub sockets: u16,
    /// Cores, over all sockets.
    pub cores: u32,
}

impl Sysfs {
    /// The kernel's.
    pub fn real() -> Sysfs {
        Sysfs::at("/sys")
    }

    /// A recorded one.
    pub fn at(root: impl Into<PathBuf>) -> Sysfs {
        Sysfs { root: root.into() }
    }

    fn text(&self, path: &Path) -> Option<String> {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned())
    }

    /// The text of a file below the root, without the space around it.
    pub(crate) fn read(&self, path: &Path) -> Option<String> {
        self.text(&self.root.join(path))
    }

    /// Names in a folder, sorted.
    pub(crate) fn list(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(folder));
        let names = entries.into_iter().flatten().flatten();
        let mut names: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }

    /// A PCI device by its address in the kernel's form.
    pub fn pci(&self, address: &str) -> Option<PciPlace> {
        self.place(&self.root.join("bus/pci/devices").join(address))
    }

    fn place(&self, device: &Path) -> Option<PciPlace> {
        let real = device.canonicalize().ok()?;
        let parts = real.iter().filter_map(|part| part.to_str());
        let path: Vec<String> = parts
            .skip_while(|part| !part.starts_with("pci"))
            .map(str::to_owned)
            .collect();
        let number = |file: &str| self.text(&real.join(file))?.parse::<i64>().ok();
        let speed = self.text(&real.join("max_link_speed"));
        (!path.is_empty()).then(|| PciPlace {
            path,
            numa: number("numa_node").and_then(|node| node.try_into().ok()),
            cpus: self
                .text(&real.join("local_cpulist"))
                .map_or(Vec::new(), |list| cpu_list(&list)),
            generation: speed.as_deref().and_then(generation),
        })
    }

    /// Network adapters, in the order of their names.
    pub fn adapters(&self) -> Vec<Adapter> {
        let rdma: Vec<Adapter> = self
            .list("class/infiniband")
            .into_iter()
            .filter_map(|name| self.rdma(name))
            .collect();
        if !rdma.is_empty() {
            return rdma;
        }
        let plain = self.list("class/net").into_iter();
        plain.filter_map(|name| self.plain(name)).collect()
    }

    fn rdma(&self, name: String) -> Option<Adapter> {
        let folder = format!("class/infiniband/{name}");
        let place = self.place(&self.root.join(&folder).join("device"))?;
        let (mut gbits, mut up) = (0, false);
        for port in self.list(&format!("{folder}/ports")) {
            let file = |file: &str| self.root.join(&folder).join("ports").join(&port).join(file);
            let active = self
                .text(&file("state"))
                .is_some_and(|state| state.ends_with("ACTIVE"));
            up |= active;
            // "400 Gb/sec (4X NDR)"; a port that is down shows its least rate.
            let rate = self.text(&file("rate")).filter(|_| active);
            let rate = rate.and_then(|rate| rate.split(['.', ' ']).next()?.parse::<u32>().ok());
            gbits += rate.unwrap_or(0);
        }
        Some(Adapter {
            name,
            place,
            gbits,
            up,
        })
    }

    /// An adapter without RDMA. Virtual ones have no PCI device.
    fn plain(&self, name: String) -> Option<Adapter> {
        let folder = self.root.join("class/net").join(&name);
        let place = self.place(&folder.join("device"))?;
        let up = self.text(&folder.join("operstate")).as_deref() == Some("up");
        let speed = self.text(&folder.join("speed"));
        let megabits = speed.and_then(|speed| speed.parse::<u32>().ok());
        Some(Adapter {
            name,
            place,
            gbits: megabits.unwrap_or(0) / 1000,
            up,
        })
    }

    /// NVSwitches that the node sees on its PCI bus.
    pub fn nvswitches(&self) -> usize {
        let devices = self.list("bus/pci/devices").into_iter();
        devices
            .filter(|address| {
                let folder = self.root.join("bus/pci/devices").join(address);
                let is = |file: &str, start: &str| {
                    self.text(&folder.join(file))
                        .is_some_and(|text| text.starts_with(start))
                };
                is("vendor", "0x10de") && is("class", "0x0680")
            })
            .count()
    }

    /// The CPUs.
    pub fn cpus(&self) -> Cpus {
        let mut by_core: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for name in self.list("devices/system/cpu") {
            let Some(cpu) = name.strip_prefix("cpu").and_then(|n| n.parse::<u32>().ok()) else {
                continue;
            };
            let topology = self
                .root
                .join("devices/system/cpu")
                .join(&name)
                .join("topology");
            let number = |file: &str| self.text(&topology.join(file))?.parse::<u32>().ok();
            let core = number("physical_package_id").zip(number("core_id"));
            if let Some(core) = core {
                by_core.entry(core).or_default().push(cpu);
            }
        }
        let mut sockets: Vec<u32> = by_core.keys().map(|(socket, _)| *socket).collect();
        sockets.dedup();
        // Slurm counts the cores of a socket in the order of their first CPUs.
        let mut cores: Vec<(u32, u32, &Vec<u32>)> = by_core
            .iter()
            .map(|((socket, _), cpus)| (*socket, cpus.iter().copied().min().unwrap_or(0), cpus))
            .collect();
        cores.sort_unstable();
        let numbered = (0..).zip(&cores);
        Cpus {
            core_of: numbered
                .flat_map(|(core, (_, _, cpus))| cpus.iter().map(move |&cpu| (cpu, core)))
                .collect(),
            sockets: sockets.len() as u16,
            cores: cores.len() as u32,
        }
    }

    /// Memory of the node in MiB, over its NUMA nodes; 0 when not known.
    pub fn memory_mib(&self) -> u64 {
        let nodes = self.list("devices/system/node").into_iter();
        let kib = nodes
            .filter(|name| name.starts_with("node"))
            .filter_map(|name| {
                let file = self
                    .root
                    .join("devices/system/node")
                    .join(name)
                    .join("meminfo");
                let text = self.text(&file)?;
                let line = text.lines().find(|line| line.contains("MemTotal:"))?;
                line.split_whitespace().rev().nth(1)?.parse::<u64>().ok()
            });
        kib.sum::<u64>() / 1024
    }
}

/// The path between two devices in the terms of `nvidia-smi topo -m`.
pub fn between(a: &PciPlace, b: &PciPlace) -> Link {
    let common = a
        .path
        .iter()
        .zip(&b.path)
        .take_while(|(a, b)| a == b)
        .count();
    // Below the last common device: a port and the device on each side is one switch.
    let below = (a.path.len() - common).max(b.path.len() - common);
    match common {
        0 if a.numa.is_some() && a.numa == b.numa => Link::Node,
        0 => Link::Sys,
        1 => Link::Phb,
        _ if below <= 2 => Link::Pix,
        _ => Link::Pxb,
    }
}

/// GPUs to which no other adapter is nearer than this one: those that suffer when its link is down. None where the
/// two lie on different sockets.
pub fn served<Gpu: Copy>(
    adapter: &Adapter,
    all: &[Adapter],
    gpus: &[(Gpu, &PciPlace)],
) -> Vec<Gpu> {
    let near = |(_, gpu): &&(Gpu, &PciPlace)| {
        let own = rank(between(gpu, &adapter.place));
        let best = all.iter().map(|other| rank(between(gpu, &other.place)));
        own < rank(Link::Sys) && best.min().is_none_or(|best| own <= best)
    };
    gpus.iter().filter(near).map(|(index, _)| *index).collect()
}

/// `0-3,8` as numbers.
fn cpu_list(list: &str) -> Vec<u32> {
    let names = expand(&format!("[{list}]")).unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// PCIe generation of `32.0 GT/s PCIe`.
fn generation(speed: &str) -> Option<u32> {
    match speed.split(['.', ' ']).next()? {
        "2" => Some(1),
        "5" => Some(2),
        "8" => Some(3),
        "16" => Some(4),
        "32" => Some(5),
        "64" => Some(6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, numa: u16) -> PciPlace {
        PciPlace {
            path: path.split('/').map(str::to_owned).collect(),
            numa: Some(numa),
            ..PciPlace::default()
        }
    }

    #[test]
    fn paths_are_those_of_the_tree() {
        // Host bridge, root port, a switch's upstream port, its downstream port, device.
        let gpu = place("pci0000:00/00:01.0/01:00.0/02:00.0/03:00.0", 0);
        let beside = place("pci0000:00/00:01.0/01:00.0/02:01.0/04:00.0", 0);
        let function = place("pci0000:00/00:01.0/01:00.0/02:00.0/03:00.1", 0);
        let deeper = place(
            "pci0000:00/00:01.0/01:00.0/02:02.0/05:00.0/06:00.0/07:00.0",
            0,
        );
        let port = place("pci0000:00/00:02.0/08:00.0", 0);
        let bridge = place("pci0000:40/40:01.0/41:00.0", 0);
        let socket = place("pci0000:80/80:01.0/81:00.0", 1);
        for (other, link) in [
            (&beside, Link::Pix),
            (&function, Link::Pix),
            (&deeper, Link::Pxb),
            (&port, Link::Phb),
            (&bridge, Link::Node),
            (&socket, Link::Sys),
        ] {
            assert_eq!(between(&gpu, other), link, "{other:?}");
            assert_eq!(between(other, &gpu), link);
        }
        let unknown = PciPlace::default();
        assert_eq!(between(&unknown, &PciPlace::default()), Link::Sys);
    }

    #[test]
    fn an_adapter_serves_the_gpus_next_to_it() {
        let adapter = |name: &str, path: &str, numa| Adapter {
            name: name.into(),
            place: place(path, numa),
            gbits: 400,
            up: true,
        };
        let all = [
            adapter("mlx5_0", "pci0000:00/00:01.0/01:00.0/02:01.0/03:00.0", 0),
            adapter("mlx5_1", "pci0000:80/80:01.0/81:00.0/82:01.0/83:00.0", 1),
            adapter("storage", "pci0000:c0/c0:01.0/c1:00.0", 1),
        ];
        let gpus = [
            place("pci0000:00/00:01.0/01:00.0/02:00.0/04:00.0", 0),
            place("pci0000:80/80:01.0/81:00.0/82:00.0/84:00.0", 1),
        ];
        let gpus = [(0, &gpus[0]), (5, &gpus[1])];
        let served: Vec<Vec<u8>> = all.iter().map(|one| served(one, &all, &gpus)).collect();
        assert_eq!(served, [vec![0], vec![5], vec![]]);
    }

    #[test]
    fn words_of_the_kernel() {
        assert_eq!(cpu_list("0-2,8"), [0, 1, 2, 8]);
        assert!(cpu_list("").is_empty());
        assert_eq!(generation("32.0 GT/s PCIe"), Some(5));
        assert_eq!(generation("Unknown"), None);
    }

    #[test]
    fn nothing_there_is_no_error() {
        let none = Sysfs::at("/nowhere");
        assert_eq!(none.pci("0000:01:00.0"), None);
        assert!(none.adapters().is_empty() && none.nvswitches() == 0);
        assert_eq!((none.cpus(), none.memory_mib()), (Cpus::default(), 0));
    }
}
