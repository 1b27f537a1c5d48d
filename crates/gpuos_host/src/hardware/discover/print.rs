//! What to write into gpuos.toml, gres.conf and slurm.conf for a node that was found.

use gpuos_model::cluster::{Link, NodeType};

use super::types::{like, rank};
use super::{GpuHardware, NodeHardware, described, shipped, slices};

/// Lines for three files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Printed {
    /// Name of the node type; `None` when all GPUs are divided.
    pub type_name: Option<String>,
    /// Whether gpuos ships it, so that it needs no `[[node-type]]`.
    pub shipped: bool,
    /// For gpuos.toml.
    pub gpuos_toml: String,
    /// For gres.conf.
    pub gres_conf: String,
    /// For slurm.conf.
    pub slurm_conf: String,
    /// What could not be written, and why: sentences.
    pub notes: Vec<String>,
}

/// Writes the lines for a node. `None` without GPUs.
pub fn print(found: &NodeHardware, node: &str) -> Option<Printed> {
    found.seen().next()?;
    let mine = described(found);
    let mut printed = match &mine {
        Some(mine) => print_type(found, mine, node),
        None => Printed::default(),
    };
    let pool = slices::pool(found, &mut printed.notes);
    let mut gres = Vec::new();
    if let Some(mine) = &mine {
        gres.push(format!("gpu:{}:{}", mine.gres_type, mine.gpus));
    }
    if let Some(pool) = &pool {
        printed.gpuos_toml += &pool.gpuos_toml(node);
        printed.gres_conf += &pool.gres_conf(found, node);
        gres.push(pool.gres());
    }
    printed.slurm_conf = slurm_conf(found, node, &gres, pool.is_some());
    Some(printed)
}

/// The node type, and the lines for its GPUs that are not divided.
fn print_type(found: &NodeHardware, mine: &NodeType, node: &str) -> Printed {
    let known = shipped(mine);
    let type_name = known.as_ref().unwrap_or(mine).name.clone();
    let mut gpuos_toml = match &known {
        Some(known) => format!(
            "# {} x {}: gpuos ships a type for this node.\n",
            known.gpus, known.gpu
        ),
        None => stanza(mine),
    };
    gpuos_toml += &format!("\n[[nodes]]\nmatch = \"{node}\"\ntype = \"{type_name}\"\n");
    let mut notes = Vec::new();
    Printed {
        gres_conf: gres_conf(found, mine, node, &mut notes),
        slurm_conf: String::new(),
        shipped: known.is_some(),
        type_name: Some(type_name),
        gpuos_toml,
        notes,
    }
}

/// `[[node-type]]` with all that was found. A shipped type with the same GPUs is its base: rates and figures
/// come from there.
fn stanza(t: &NodeType) -> String {
    let base = like(&t.gpu, t.gpus);
    let mut text = format!("[[node-type]]\nname = \"{}\"\n", t.name);
    if let Some(base) = &base {
        text += &format!("base = \"{}\"\n", base.name);
    }
    text += &format!("gpu = {}\n", quoted(&t.gpu));
    text += &format!("gres-type = \"{}\"\n", t.gres_type);
    text += &format!("gpus = {}\ngpu-memory-mib = {}\n", t.gpus, t.gpu_memory_mib);
    text += &links_lines(t);
    text += &format!("numa = {:?}\n", t.numa);
    if base.is_none() {
        if t.nvlink_gbps > 0.0 {
            text += &format!("nvlink-gbps = {:.1}\n", t.nvlink_gbps);
        }
        text += &format!("pcie-gbps = {:.1}\n", t.pcie_gbps);
    }
    text += &format!(
        "sockets = {}\ncores-per-socket = {}\n",
        t.sockets, t.cores_per_socket
    );
    if t.memory_mib > 0 {
        text += &format!("memory-gib = {}\n", t.memory_mib / 1024);
    }
    // Without this line the base's adapters would be taken.
    if t.nics.is_empty() {
        text += "nic = []\n";
    }
    text += &format!("source = {}\n", quoted(&t.source));
    text + &nic_lines(t)
}

pub(super) fn quoted(text: &str) -> String {
    let escaped: String = text
        .chars()
        .filter(|c| !c.is_control())
        .flat_map(|c| match c {
            '"' | '\\' => vec!['\\', c],
            _ => vec![c],
        })
        .collect();
    format!("\"{escaped}\"")
}

/// How the GPUs are linked: a matrix, or its short form.
fn links_lines(t: &NodeType) -> String {
    let pairs = || (0..t.gpus).flat_map(|a| (0..a).map(move |b| (a, b)));
    let mut links = pairs().map(|(a, b)| t.link(a, b));
    if let (true, Some(Link::Nv(count))) = (t.nvswitch, links.next())
        && links.all(|link| link == Link::Nv(count))
    {
        return format!("nvswitch = true\nnvlinks = {count}\n");
    }
    let mut text = String::new();
    if t.nvswitch {
        text += "nvswitch = true\n";
    }
    text += "links = [\n";
    for a in 0..t.gpus {
        let row: Vec<String> = (0..t.gpus).map(|b| t.link(a, b).to_string()).collect();
        text += &format!("  \"{}\",\n", row.join(" "));
    }
    text + "]\n"
}

/// The same in one line.
pub(super) fn links_line(t: &NodeType) -> String {
    let text = links_lines(t);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    match text.contains("links = [") {
        true => lines.join(" ").replace(", ]", "]").replace("[ ", "["),
        false => lines.join(" and "),
    }
}

/// All adapters in one line.
pub(super) fn nic_line(t: &NodeType) -> String {
    let tables = nic_lines(t);
    let tables = tables
        .split("\n[[node-type.nic]]\n")
        .filter(|table| !table.is_empty());
    let inline = |table: &str| {
        let keys: Vec<&str> = table.lines().collect();
        format!("{{ {} }}", keys.join(", "))
    };
    let all: Vec<String> = tables.map(inline).collect();
    format!("nic = [{}]", all.join(", "))
}

/// `[[node-type.nic]]` of every adapter.
fn nic_lines(t: &NodeType) -> String {
    let mut text = String::new();
    for nic in &t.nics {
        let best = nic.links.iter().copied().min_by_key(|link| rank(*link));
        let best = best.filter(|link| rank(*link) < 4);
        let near = (0..nic.links.len()).filter(|&gpu| Some(nic.links[gpu]) == best);
        let near: Vec<usize> = near.collect();
        text += &format!(
            "\n[[node-type.nic]]\nname = \"{}\"\ngbps = {}\nnuma = {}\nrail = {}\nnear = {near:?}\n",
            nic.name, nic.gbps, nic.numa, nic.rail
        );
        if let Some(best) = best {
            text += &format!("link = \"{best}\"\n");
        }
    }
    text
}

/// One line for each run of GPUs with the same cores; `Links=` where GPUs are joined by bridges, whose rows
/// need a line each.
fn gres_conf(found: &NodeHardware, t: &NodeType, node: &str, notes: &mut Vec<String>) -> String {
    let bridged = !t.nvswitch && t.links.iter().any(|link| matches!(link, Link::Nv(_)));
    let cores: Vec<Option<String>> = (0..t.gpus).map(|gpu| cores(found, gpu)).collect();
    if cores.contains(&None) {
        notes.push(
            "which cores are near which GPU is not known: gres.conf has no Cores=, and Slurm \
             takes any"
                .into(),
        );
    }
    let minor = |gpu: usize| found.gpus[gpu].identity.minor.unwrap_or(gpu as u32);
    let mut text = String::new();
    let mut gpu = 0;
    while gpu < t.gpus {
        let mut last = gpu;
        while !bridged
            && last + 1 < t.gpus
            && cores[last + 1] == cores[gpu]
            && minor(last + 1) == minor(last) + 1
        {
            last += 1;
        }
        let file = match last == gpu {
            true => minor(gpu).to_string(),
            false => format!("[{}-{}]", minor(gpu), minor(last)),
        };
        text += &format!(
            "NodeName={node} Name=gpu Type={} File=/dev/nvidia{file}",
            t.gres_type
        );
        if let Some(cores) = &cores[gpu] {
            text += &format!(" Cores={cores}");
        }
        if bridged {
            let row: Vec<String> = (0..t.gpus)
                .map(|other| match t.link(gpu, other) {
                    Link::Same => "-1".into(),
                    Link::Nv(count) => count.to_string(),
                    _ => "0".into(),
                })
                .collect();
            text += &format!(" Links={}", row.join(","));
        }
        text.push('\n');
        gpu = last + 1;
    }
    text
}

/// The cores beside a GPU in Slurm's numbers, as ranges; `None` when not known.
pub fn cores(found: &NodeHardware, gpu: usize) -> Option<String> {
    cores_beside(found, &found.gpus[gpu])
}

/// The same for any GPU of the node.
pub(super) fn cores_beside(found: &NodeHardware, gpu: &GpuHardware) -> Option<String> {
    let cpus = gpu.cpus().iter();
    let cores: Option<std::collections::BTreeSet<u32>> = cpus
        .map(|cpu| found.cpus.core_of.get(cpu).copied())
        .collect();
    let cores: Vec<u32> = cores?.into_iter().collect();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => ranges.push((core, core)),
        }
    }
    let ranges: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    (!ranges.is_empty()).then(|| ranges.join(","))
}

/// What the node's line says of GPUs, their slices and CPUs.
fn slurm_conf(found: &NodeHardware, node: &str, gres: &[String], sliced: bool) -> String {
    let mut line = format!("NodeName={node} Gres={}", gres.join(","));
    let sockets = u32::from(found.cpus.sockets.max(1));
    let (cpus, cores) = (found.cpus.core_of.len() as u32, found.cpus.cores);
    if let (1.., 1..) = (cores, cpus) {
        let per_socket = (cores / sockets).clamp(1, 4096);
        let threads = cpus / cores;
        line += &format!(" Sockets={sockets} CoresPerSocket={per_socket} ThreadsPerCore={threads}");
    }
    let types = if sliced { "gpu,gpuos" } else { "gpu" };
    format!("GresTypes={types}\n{line}\n")
}
