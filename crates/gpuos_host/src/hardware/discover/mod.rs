//! What hardware a node has: GPUs and NVLink from NVML, PCIe, CPUs and network adapters from sysfs, joined
//! into a node type of gpuos.

mod differ;
mod print;
mod slices;
mod sysfs;
mod types;

use gpuos_model::cluster::Link;
use gpuos_model::gpuset::GpuSet;

use crate::hardware::nvml::{Answer, GpuLibrary, Identity, LinkPeer, NvLink};
use gpuos_workload::numbering::GpuNumbering;

pub use differ::{Difference, differences};
pub use print::{Printed, cores, print};
pub use slices::{Divided, mig_differences, mig_modes};
pub use sysfs::{Adapter, Cpus, PciPlace, Sysfs, between, served};
pub use types::{described, shipped};

/// A GPU that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuHardware {
    /// NVML index.
    pub index: u8,
    /// Its number in GRES `gpu`; `None`: it is none of these.
    pub number: Option<u8>,
    /// Who it is.
    pub identity: Identity,
    /// Its NVLinks.
    pub nvlinks: Vec<NvLink>,
    /// Its place, where sysfs shows it.
    pub place: Option<PciPlace>,
}

impl GpuHardware {
    /// NUMA node: the kernel's word, then NVML's, then 0.
    pub fn numa(&self) -> u16 {
        let kernel = self.place.as_ref().and_then(|place| place.numa);
        kernel.or(self.identity.numa.first().copied()).unwrap_or(0)
    }

    /// CPUs beside it.
    pub fn cpus(&self) -> &[u32] {
        match &self.place {
            Some(place) if !place.cpus.is_empty() => &place.cpus,
            _ => &self.identity.cpus,
        }
    }
}

/// A node as its hardware shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeHardware {
    /// Version of the driver.
    pub driver: String,
    /// GPUs, in the order of their GRES indices.
    pub gpus: Vec<GpuHardware>,
    /// GPUs in MIG mode that are none of GRES `gpu`, and the MIG-switchable ones, by NVML index.
    pub divided: Vec<Divided>,
    /// Link between GPUs `i` and `j` at `i * gpus + j`.
    pub links: Vec<Link>,
    /// Whether the NVLinks go through NVSwitch.
    pub nvswitch: bool,
    /// NVSwitches on the node's PCI bus; 0 also where switches are outside of the node.
    pub nvswitches: usize,
    /// Network adapters, all of them.
    pub adapters: Vec<Adapter>,
    /// CPUs; empty when sysfs is not this node's.
    pub cpus: Cpus,
    /// Memory in MiB; 0 when not known.
    pub memory_mib: u64,
    /// What was strange: sentences.
    pub notes: Vec<String>,
}

impl NodeHardware {
    /// All GPUs, those that are divided for good last.
    pub fn seen(&self) -> impl Iterator<Item = &GpuHardware> {
        let divided = self.divided.iter().map(|divided| &divided.gpu);
        self.gpus
            .iter()
            .chain(divided.filter(|gpu| gpu.number.is_none()))
    }

    /// GPUs in MIG mode that are in GRES `gpu` too: NVML indexes.
    pub fn switchable(&self) -> GpuSet {
        let both = self.divided.iter().filter(|one| one.gpu.number.is_some());
        both.fold(GpuSet::EMPTY, |set, one| set.with(one.index.into()))
    }
}

/// Looks at all hardware. GPUs that do not answer are told in the notes. Error when the library
/// answers nothing at all.
pub fn discover(
    library: &dyn GpuLibrary,
    sysfs: &Sysfs,
    order: &GpuNumbering,
) -> Answer<NodeHardware> {
    discover_switchable(library, sysfs, order, GpuSet::EMPTY)
}

/// The same where these GPUs, by NVML index, are MIG-switchable. Where gres.conf does not say otherwise,
/// GRES `gpu` then has its GPUs by NVML's index, without those that are divided for good.
pub fn discover_switchable(
    library: &dyn GpuLibrary,
    sysfs: &Sysfs,
    order: &GpuNumbering,
    switchable: GpuSet,
) -> Answer<NodeHardware> {
    let mut found = NodeHardware {
        driver: library.driver_version()?,
        nvswitches: sysfs.nvswitches(),
        ..NodeHardware::default()
    };
    let mut seen_gpus = Vec::new();
    for index in 0..library.count()? {
        let seen = library
            .identity(index)
            .and_then(|identity| Ok((identity, library.nvlinks(index)?)));
        match seen {
            Ok((identity, nvlinks)) => {
                let place = sysfs.pci(&identity.pci);
                let gpu = GpuHardware {
                    index,
                    number: None,
                    identity,
                    nvlinks,
                    place,
                };
                seen_gpus.push((index, gpu));
            }
            Err(error) => found
                .notes
                .push(format!("GPU {index} of NVML is left out: {error}")),
        }
    }
    let who = seen_gpus.iter().map(|one| &one.1.identity);
    let who: Vec<_> = who.map(|who| (who.minor, &who.uuid[..])).collect();
    let numbers = order.number_each(&who);
    let mut gpus = Vec::new();
    let mut next = 0..;
    for (mut one, told) in seen_gpus.into_iter().zip(numbers) {
        let divided = one.1.identity.mig.is_some_and(|mig| mig.on);
        let switched = switchable.contains(one.0.into());
        let place = match order.names_files() || switchable.is_empty() {
            true => told.filter(|_| !divided || order.names_files()),
            false if divided && !switched => None,
            false => next.next(),
        };
        one.1.number = place;
        if divided && switched && place.is_some() {
            let same = one.1.clone();
            found.divided.push(Divided::read(library, one.0, same));
        }
        match place {
            Some(place) => gpus.push((place, one.0, one.1)),
            None if divided => found.divided.push(Divided::read(library, one.0, one.1)),
            None => found.notes.push(format!(
                "/dev/nvidia{} is not in gres.conf: Slurm does not use this GPU",
                one.1.identity.minor.unwrap_or(one.0.into())
            )),
        }
    }
    gpus.sort_by_key(|(place, ..)| *place);
    found.nvswitch = switched(&gpus.iter().map(|(.., gpu)| gpu).collect::<Vec<_>>());
    for (_, a, first) in &gpus {
        for (_, b, second) in &gpus {
            let link = match nvlinks(first, second, found.nvswitch) {
                _ if a == b => Link::Same,
                0 => match (&first.place, &second.place) {
                    (Some(first), Some(second)) => between(first, second),
                    // Where neither knows, nothing is nearer than the rest of the machine.
                    _ => library.path(*a, *b).unwrap_or(Link::Sys),
                },
                count => Link::Nv(count),
            };
            found.links.push(link);
        }
    }
    found.gpus = gpus.into_iter().map(|(.., gpu)| gpu).collect();
    if found.seen().any(|gpu| gpu.place.is_some()) {
        found.adapters = sysfs.adapters();
        found.cpus = sysfs.cpus();
        found.memory_mib = sysfs.memory_mib();
    } else if found.seen().next().is_some() {
        found.notes.push(
            "sysfs does not show these GPUs: CPUs, memory and network adapters come from the node \
             type that is most like it"
                .into(),
        );
    }
    notes(&mut found, switchable);
    Ok(found)
}

/// Whether links lead into switches. Drivers that cannot tell the other end register the GPU in a fabric.
fn switched(gpus: &[&GpuHardware]) -> bool {
    let mut ends = gpus.iter().flat_map(|gpu| {
        let fabric = gpu.identity.fabric.is_some();
        gpu.nvlinks.iter().map(move |link| (&link.peer, fabric))
    });
    ends.any(|(peer, fabric)| match peer {
        LinkPeer::Switch => true,
        LinkPeer::Unknown => fabric,
        LinkPeer::Gpu(_) => false,
    })
}

/// NVLinks between two GPUs, whether they are up or not.
fn nvlinks(a: &GpuHardware, b: &GpuHardware, switched: bool) -> u8 {
    let count = match switched {
        true => a.nvlinks.len().min(b.nvlinks.len()),
        false => {
            let to_b = |link: &&NvLink| link.peer == LinkPeer::Gpu(b.identity.pci.clone());
            a.nvlinks.iter().filter(to_b).count()
        }
    };
    count.min(64) as u8
}

fn notes(found: &mut NodeHardware, switchable: GpuSet) {
    for (gpu, seen) in found.gpus.iter().enumerate() {
        let down: Vec<String> = seen
            .nvlinks
            .iter()
            .filter(|link| !link.up)
            .map(|link| link.number.to_string())
            .collect();
        if !down.is_empty() {
            found.notes.push(format!(
                "GPU {gpu}: {} of {} NVLinks are down ({}): `nvidia-smi nvlink -s -i {}`",
                down.len(),
                seen.nvlinks.len(),
                down.join(", "),
                seen.identity.pci
            ));
        }
        let switched = switchable.contains(seen.index.into());
        if !switched && seen.identity.mig.is_some_and(|mig| mig.on) {
            found.notes.push(format!(
                "GPU {gpu} is divided (MIG): it takes part in no NVLink and is one GPU here"
            ));
        }
    }
    let kinds: std::collections::BTreeSet<&str> = found
        .gpus
        .iter()
        .map(|gpu| gpu.identity.name.as_str())
        .collect();
    if kinds.len() > 1 {
        let kinds: Vec<&str> = kinds.into_iter().collect();
        let note = format!(
            "several kinds of GPU ({}): a node type describes one, here the first GPU's",
            kinds.join(", ")
        );
        found.notes.push(note);
    }
}
