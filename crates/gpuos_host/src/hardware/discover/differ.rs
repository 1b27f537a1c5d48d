//! Differences between the node type that is configured and the hardware.

use gpuos_model::cluster::{Link, NodeType};

use super::print::{links_line, nic_line};

/// One difference, with the line of gpuos.toml that ends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Key of `[[node-type]]`.
    pub key: &'static str,
    /// What is configured.
    pub configured: String,
    /// What was found.
    pub found: String,
    /// The line to write.
    pub line: String,
}

impl Difference {
    /// What differs, in a sentence; `kind` is the name of the configured type.
    pub fn sentence(&self, kind: &str) -> String {
        format!(
            "{}: {kind} says {}, the hardware has {}",
            self.key, self.configured, self.found
        )
    }

    /// What to write where. `own`: gpuos.toml describes the type itself; a shipped one is changed by one that
    /// is based on it.
    pub fn advice(&self, kind: &str, own: bool) -> String {
        let place = match own {
            true => format!("[[node-type]] name = \"{kind}\""),
            false => format!(
                "a [[node-type]] with base = \"{kind}\", which [[nodes]] names for this node"
            ),
        };
        format!("in gpuos.toml, in {place}, write {}", self.line)
    }
}

/// Where the hardware is not what the type says. Names, rates and figures that no hardware tells do not count.
pub fn differences(configured: &NodeType, found: &NodeType) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut add = |key, configured: String, found: String, line: String| {
        all.push(Difference {
            key,
            configured,
            found,
            line,
        });
    };
    let number = |key: &str, value: u64| format!("{key} = {value}");
    let (c, f) = (configured, found);
    if c.gpus != f.gpus {
        add(
            "gpus",
            c.gpus.to_string(),
            f.gpus.to_string(),
            number("gpus", f.gpus as u64),
        );
    }
    if !c.gpu.is_empty() && c.gpu != f.gpu {
        add(
            "gpu",
            c.gpu.clone(),
            f.gpu.clone(),
            format!("gpu = \"{}\"", f.gpu),
        );
    }
    if far(c.gpu_memory_mib, f.gpu_memory_mib, 2) {
        let text = |mib: u64| format!("{mib} MiB");
        let line = number("gpu-memory-mib", f.gpu_memory_mib);
        add(
            "gpu-memory-mib",
            text(c.gpu_memory_mib),
            text(f.gpu_memory_mib),
            line,
        );
    }
    // Per-GPU lists can be compared only when they are as long.
    if c.gpus == f.gpus {
        if let Some((a, b)) = first_other_link(c, f) {
            let text = |t: &NodeType| format!("{} between GPU {a} and GPU {b}", t.link(a, b));
            add("links", text(c), text(f), links_line(f));
        } else if c.nvswitch != f.nvswitch {
            let text = |t: &NodeType| {
                if t.nvswitch {
                    "NVSwitch"
                } else {
                    "no NVSwitch"
                }
                .to_owned()
            };
            add(
                "nvswitch",
                text(c),
                text(f),
                format!("nvswitch = {}", f.nvswitch),
            );
        }
        if c.numa != f.numa {
            let line = format!("numa = {:?}", f.numa);
            add(
                "numa",
                format!("{:?}", c.numa),
                format!("{:?}", f.numa),
                line,
            );
        }
        if let Some((configured, found)) = other_nics(c, f) {
            add("nic", configured, found, nic_line(f));
        }
    }
    if c.sockets != f.sockets {
        let line = number("sockets", f.sockets.into());
        add(
            "sockets",
            c.sockets.to_string(),
            f.sockets.to_string(),
            line,
        );
    }
    if c.cores_per_socket != f.cores_per_socket {
        let (of, is) = (
            c.cores_per_socket.to_string(),
            f.cores_per_socket.to_string(),
        );
        add(
            "cores-per-socket",
            of,
            is,
            number("cores-per-socket", f.cores_per_socket.into()),
        );
    }
    // The kernel keeps a few percent for itself.
    if far(c.memory_mib, f.memory_mib, 8) {
        let text = |mib: u64| format!("{} GiB", mib / 1024);
        let line = number("memory-gib", f.memory_mib / 1024);
        add("memory-gib", text(c.memory_mib), text(f.memory_mib), line);
    }
    all
}

/// Whether two known sizes differ by more than so many percent.
fn far(a: u64, b: u64, percent: u64) -> bool {
    a > 0 && b > 0 && a.abs_diff(b) * 100 > a.max(b) * percent
}

fn first_other_link(c: &NodeType, f: &NodeType) -> Option<(usize, usize)> {
    let pairs = (0..c.gpus).flat_map(|a| (0..a).map(move |b| (b, a)));
    pairs
        .into_iter()
        .find(|&(a, b)| c.link(a, b) != f.link(a, b))
}

/// What differs of the adapters: their names, rates, or the GPUs they are near to.
fn other_nics(c: &NodeType, f: &NodeType) -> Option<(String, String)> {
    let names = |t: &NodeType| match t.nics.is_empty() {
        true => "no adapter".to_owned(),
        false => {
            let names: Vec<&str> = t.nics.iter().map(|nic| nic.name.as_str()).collect();
            names.join(", ")
        }
    };
    if names(c) != names(f) {
        return Some((names(c), names(f)));
    }
    for (c, f) in c.nics.iter().zip(&f.nics) {
        if (c.gbps - f.gbps).abs() > 0.05 * c.gbps.max(f.gbps) {
            let text = |gbps: f32| format!("{} with {gbps} GB/s", c.name);
            return Some((text(c.gbps), text(f.gbps)));
        }
        if let Some(gpu) = (0..c.links.len()).find(|&gpu| c.links.get(gpu) != f.links.get(gpu)) {
            let text = |link: Option<&Link>| {
                let link = link.map_or("nothing".to_owned(), Link::to_string);
                format!("{link} between {} and GPU {gpu}", c.name)
            };
            return Some((text(c.links.get(gpu)), text(f.links.get(gpu))));
        }
    }
    None
}
