//! A `/sys` tree of a node type, as the kernel would show it: the PCIe tree, CPUs, NUMA nodes and adapters.

#![allow(dead_code, reason = "each test uses a part of this")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use gpuos_model::cluster::{Link, NodeType};

/// A tree in a folder.
pub struct Recorded {
    root: PathBuf,
}

fn put(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

/// Devices that share a host bridge, and how.
fn groups(node_type: &NodeType) -> Vec<(Vec<usize>, Link)> {
    let gpus = node_type.gpus;
    let all = gpus + node_type.nics.len();
    let near = |link: Link| matches!(link, Link::Pix | Link::Pxb | Link::Phb);
    let link = |a: usize, b: usize| match (a < gpus, b < gpus) {
        (true, true) => node_type.link(a, b),
        (true, false) => node_type.nics[b - gpus].links[a],
        (false, true) => node_type.nics[a - gpus].links[b],
        (false, false) => Link::Sys,
    };
    let mut group: Vec<usize> = (0..all).collect();
    let mut kind = vec![Link::Pix; all];
    for a in 0..all {
        for b in 0..a {
            if near(link(a, b)) {
                let (from, to) = (group[a], group[b]);
                group
                    .iter_mut()
                    .filter(|g| **g == from)
                    .for_each(|g| *g = to);
                kind[to] = link(a, b);
            }
        }
    }
    let members = |id: usize| (0..all).filter(|&device| group[device] == id).collect();
    let ids = (0..all).filter(|&id| group.contains(&id));
    ids.map(|id| (members(id), kind[id])).collect()
}

impl Recorded {
    /// The tree of a type whose GPUs have these PCI addresses.
    pub fn of(root: &Path, node_type: &NodeType, gpus: &[String]) -> Recorded {
        let tree = Recorded { root: root.into() };
        for (bridge, (members, kind)) in groups(node_type).into_iter().enumerate() {
            let root = format!("pci{bridge:04x}:00");
            for (place, &device) in members.iter().enumerate() {
                let (address, numa) = match device.checked_sub(node_type.gpus) {
                    None => (gpus[device].clone(), node_type.numa[device]),
                    Some(nic) => (
                        format!("{:04x}:f{nic:x}:00.0", 0x10),
                        node_type.nics[nic].numa,
                    ),
                };
                let port = |level: usize| format!("{bridge:04x}:{level:02x}:{place:02x}.0");
                let path = match kind {
                    Link::Phb => vec![port(1)],
                    // Its own switch below the switch that all share.
                    Link::Pxb => vec!["port".into(), "switch".into(), port(2), port(3), port(4)],
                    _ => vec!["port".into(), "switch".into(), port(2)],
                };
                let folder = format!("devices/{root}/{}/{address}", path.join("/"));
                tree.device(&folder, &address, numa, node_type);
                if let Some(nic) = device.checked_sub(node_type.gpus) {
                    let nic = &node_type.nics[nic];
                    tree.adapter(&nic.name, (nic.gbps * 8.0) as u32, &folder);
                }
            }
        }
        tree.cpus(node_type);
        tree
    }

    fn device(&self, folder: &str, address: &str, numa: u16, node_type: &NodeType) {
        let real = self.root.join(folder);
        put(real.join("numa_node"), &format!("{numa}\n"));
        put(real.join("max_link_speed"), "32.0 GT/s PCIe\n");
        let cores = node_type.cores_per_socket;
        let all = cores * node_type.sockets;
        let first = numa * cores;
        let list = format!(
            "{first}-{},{}-{}\n",
            first + cores - 1,
            all + first,
            all + first + cores - 1
        );
        put(real.join("local_cpulist"), &list);
        let devices = self.root.join("bus/pci/devices");
        fs::create_dir_all(&devices).expect("a folder");
        symlink(real, devices.join(address)).expect("a link");
    }

    /// An RDMA adapter whose PCI device is there.
    pub fn adapter(&self, name: &str, gbits: u32, device: &str) {
        let class = self.root.join("class/infiniband").join(name);
        put(class.join("ports/1/state"), "4: ACTIVE\n");
        put(
            class.join("ports/1/rate"),
            &format!("{gbits} Gb/sec (4X NDR)\n"),
        );
        symlink(self.root.join(device), class.join("device")).expect("a link");
    }

    /// An adapter's port goes down.
    pub fn down(&self, name: &str) {
        let port = self
            .root
            .join("class/infiniband")
            .join(name)
            .join("ports/1");
        put(port.join("state"), "1: DOWN\n");
        put(port.join("rate"), "10 Gb/sec (4X SDR)\n");
    }

    fn cpus(&self, node_type: &NodeType) {
        let (sockets, cores) = (node_type.sockets, node_type.cores_per_socket);
        for cpu in 0..2 * sockets * cores {
            let core = cpu % (sockets * cores);
            let folder = self
                .root
                .join(format!("devices/system/cpu/cpu{cpu}/topology"));
            put(
                folder.join("physical_package_id"),
                &format!("{}\n", core / cores),
            );
            put(folder.join("core_id"), &format!("{}\n", core % cores));
        }
        let kib = node_type.memory_mib * 1024 / u64::from(sockets);
        for node in 0..sockets {
            let file = self
                .root
                .join(format!("devices/system/node/node{node}/meminfo"));
            put(
                file,
                &format!("Node {node} MemTotal:       {kib} kB\nNode {node} MemFree: 1 kB\n"),
            );
        }
    }
}
