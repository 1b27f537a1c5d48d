//! Node types from `[[node-type]]` tables.
use toml::Spanned;

use super::raw::{RawNic, RawType};
use crate::cluster::{Link, Nic, NodeType};
use crate::figures::{Figures, Precision};
use crate::gpuset::MAX_GPUS;
use crate::reading::{Check, ConfigError, quoted};

/// NCCL's figure for one NVLink of Volta and Ampere in GB/s per direction; the default.
pub(super) const NVLINK_GBPS: f32 = 20.0;
/// NCCL's figure for PCIe Gen4 x16; the default.
pub(super) const PCIE_GBPS: f32 = 24.0;
/// NCCL's figure for the link between older Intel sockets; the default.
pub(super) const SOCKET_GBPS: f32 = 10.0;

const LINK_FORM: &str = "X, NV1 to NV64, PIX, PXB, PHB, NODE or SYS, as nvidia-smi topo -m shows";

/// Makes a node type of a table with its base already merged in.
pub(super) fn build(check: Check, table: &Spanned<RawType>) -> Result<NodeType, ConfigError> {
    let raw = table.get_ref();
    let header = "[[node-type]]";
    let name = check.name("name", check.need(table, header, "name", &raw.name)?)?;
    let gpus = check.need(table, header, "gpus", &raw.gpus)?;
    let gpus = check.int("gpus", &Some(gpus.clone()), 1..=MAX_GPUS as i64, 1)? as usize;
    let gres_type = match raw.gres_type.as_ref().filter(|t| !t.get_ref().is_empty()) {
        Some(text) => check.name("gres-type", text)?,
        None => String::new(),
    };
    let sockets = check.int("sockets", &raw.sockets, 1..=64, 1)? as u16;
    let numa = numa(check, raw, gpus, sockets)?;
    let nics = match &raw.nic {
        Some(nics) => nics
            .iter()
            .enumerate()
            .map(|(nth, nic)| build_nic(check, nic, nth, &numa))
            .collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let links = links(check, table, gpus, &numa)?;
    let has_nvlink = links.iter().any(|link| matches!(link, Link::Nv(_)));
    let nvlink_gbps = check.gbps("nvlink-gbps", &raw.nvlink_gbps, NVLINK_GBPS)?;
    Ok(NodeType {
        name,
        gpu: check.text("gpu", &raw.gpu)?,
        gres_type,
        gpus,
        links,
        numa,
        nics,
        nvlink_gbps: if has_nvlink { nvlink_gbps } else { 0.0 },
        pcie_gbps: check.gbps("pcie-gbps", &raw.pcie_gbps, PCIE_GBPS)?,
        socket_gbps: check.gbps("socket-gbps", &raw.socket_gbps, SOCKET_GBPS)?,
        nvswitch: has_nvlink && raw.nvswitch.unwrap_or(false),
        sockets,
        cores_per_socket: check.int("cores-per-socket", &raw.cores_per_socket, 1..=4096, 1)? as u16,
        memory_mib: check.int("memory-gib", &raw.memory_gib, 0..=1 << 20, 0)? as u64 * 1024,
        gpu_memory_mib: check.int("gpu-memory-mib", &raw.gpu_memory_mib, 0..=1 << 30, 0)? as u64,
        figures: figures(check, raw)?,
        source: check.text("source", &raw.source)?,
    })
}

/// What one GPU can do and takes.
fn figures(check: Check, raw: &RawType) -> Result<Figures, ConfigError> {
    let number = |key: &str, value: &Option<Spanned<f64>>, most: f64| {
        let Some(value) = value else { return Ok(0.0) };
        let given = *value.get_ref();
        match (0.0..=most).contains(&given) {
            true => Ok(given),
            false => Err(check.refuse(key, value, given, format!("a number from 0 to {most}"))),
        }
    };
    let mut tflops = [0; 5];
    if let Some(rates) = &raw.tflops {
        let rates = rates.get_ref();
        let rates = [
            &rates.fp64,
            &rates.tf32,
            &rates.bf16,
            &rates.fp8,
            &rates.fp4,
        ];
        for ((rate, value), (word, _)) in tflops.iter_mut().zip(rates).zip(Precision::ALL) {
            let key = format!("tflops.{word}");
            *rate = (number(&key, value, 100_000.0)? * 10.0).round() as u32;
        }
    }
    let whole = |key: &str, value: &Option<Spanned<i64>>, most: i64| {
        Ok::<u32, ConfigError>(check.int(key, value, 0..=most, 0)? as u32)
    };
    let price = number("price-per-gpu-hour", &raw.price_per_gpu_hour, 1e6)?;
    Ok(Figures {
        tflops,
        memory_gbps: whole("gpu-memory-gbps", &raw.gpu_memory_gbps, 1_000_000)?,
        gpu_watts: whole("gpu-watts", &raw.gpu_watts, 100_000)?,
        node_watts: whole("node-watts", &raw.node_watts, 1_000_000)?,
        slowdown_celsius: whole("slowdown-celsius", &raw.slowdown_celsius, 200)?,
        price_milli: (price * 1000.0).round() as u32,
    })
}

/// NUMA node of each GPU; without the key, the GPUs are spread evenly over the sockets.
fn numa(check: Check, raw: &RawType, gpus: usize, sockets: u16) -> Result<Vec<u16>, ConfigError> {
    let Some(list) = &raw.numa else {
        return Ok(spread(gpus, sockets));
    };
    let form = format!("{gpus} NUMA nodes from 0 to 63, one for each GPU");
    let bad = |given: String| check.refuse("numa", list, given, &form);
    if list.get_ref().len() != gpus {
        return Err(bad(format!("a list of {}", list.get_ref().len())));
    }
    let node = |&n: &i64| match (0..64).contains(&n) {
        true => Ok(n as u16),
        false => Err(bad(format!("... {n} ..."))),
    };
    list.get_ref().iter().map(node).collect()
}

fn spread(gpus: usize, sockets: u16) -> Vec<u16> {
    let sockets = usize::from(sockets.max(1));
    (0..gpus).map(|gpu| (gpu * sockets / gpus) as u16).collect()
}

/// The link matrix: as written, or from the shortcuts over what PCIe and NUMA say.
fn links(
    check: Check,
    table: &Spanned<RawType>,
    gpus: usize,
    numa: &[u16],
) -> Result<Vec<Link>, ConfigError> {
    let raw = table.get_ref();
    let nvswitch = raw.nvswitch.unwrap_or(false);
    if let Some(rows) = &raw.links {
        if raw.nvlink_pairs.is_some() || raw.pcie_switches.is_some() || raw.nvlinks.is_some() {
            let message = "links says all: remove nvlinks, nvlink-pairs and pcie-switches";
            return Err(check.error(rows, message));
        }
        return read_matrix(check, rows, gpus);
    }
    let mut links = pcie_links(gpus, numa);
    if let Some(groups) = &raw.pcie_switches {
        for group in groups.get_ref() {
            let group = check.gpus("pcie-switches", groups, group, gpus)?;
            connect(&mut links, gpus, &group, Link::Pix);
        }
    }
    let count = check.int("nvlinks", &raw.nvlinks, 1..=64, 0)? as u8;
    if let Some(pairs) = &raw.nvlink_pairs {
        if nvswitch {
            return Err(check.error(pairs, "write either nvswitch = true or nvlink-pairs"));
        }
        for pair in pairs.get_ref() {
            let pair = check.gpus("nvlink-pairs", pairs, pair, gpus)?;
            if pair.len() != 2 || pair[0] == pair[1] {
                let form = "pairs of GPU indices: [[0, 1], [2, 3]]";
                return Err(check.refuse("nvlink-pairs", pairs, format!("... {pair:?} ..."), form));
            }
            connect(&mut links, gpus, &pair, Link::Nv(count));
        }
    } else if nvswitch {
        let all: Vec<usize> = (0..gpus).collect();
        connect(&mut links, gpus, &all, Link::Nv(count));
    }
    if count == 0 && links.contains(&Link::Nv(0)) {
        let message = "nvswitch and nvlink-pairs need nvlinks; add a line nvlinks = 18 \
                       (12 for A100, 18 for H100 and later)";
        return Err(check.error(table, message));
    }
    Ok(links)
}

/// Links without NVLink: within a NUMA node, or between NUMA nodes.
pub(super) fn pcie_links(gpus: usize, numa: &[u16]) -> Vec<Link> {
    let link = |at: usize| match (at / gpus, at % gpus) {
        (a, b) if a == b => Link::Same,
        (a, b) if numa[a] == numa[b] => Link::Node,
        _ => Link::Sys,
    };
    (0..gpus * gpus).map(link).collect()
}

fn connect(links: &mut [Link], gpus: usize, group: &[usize], link: Link) {
    for &a in group {
        for &b in group {
            if a != b {
                links[a * gpus + b] = link;
            }
        }
    }
}

fn read_matrix(
    check: Check,
    rows: &Spanned<Vec<String>>,
    gpus: usize,
) -> Result<Vec<Link>, ConfigError> {
    let bad = |message: String| check.error(rows, message);
    if rows.get_ref().len() != gpus {
        return Err(bad(format!(
            "links has {} rows; write {gpus}, one for each GPU",
            rows.get_ref().len()
        )));
    }
    let mut links = Vec::with_capacity(gpus * gpus);
    for (a, row) in rows.get_ref().iter().enumerate() {
        let words: Vec<&str> = row.split_whitespace().collect();
        if words.len() != gpus {
            return Err(bad(format!(
                "row {a} of links has {} entries; write {gpus}, one for each GPU",
                words.len()
            )));
        }
        for (b, word) in words.into_iter().enumerate() {
            let link = word.parse::<Link>().ok();
            match link.filter(|&link| (link == Link::Same) == (a == b)) {
                Some(link) => links.push(link),
                None => {
                    let given = quoted(word);
                    let form = format!("{LINK_FORM}; X on the diagonal only");
                    let key = format!("links, row {a}, entry {b}");
                    return Err(check.refuse(&key, rows, given, form));
                }
            }
        }
    }
    for a in 0..gpus {
        for b in 0..a {
            if links[a * gpus + b] != links[b * gpus + a] {
                return Err(bad(format!(
                    "links says {} from GPU {a} to GPU {b} and {} back; write both the same",
                    links[a * gpus + b],
                    links[b * gpus + a]
                )));
            }
        }
    }
    Ok(links)
}

/// A network adapter. GPUs that it is not near to are reached through the NUMA nodes.
fn build_nic(
    check: Check,
    table: &Spanned<RawNic>,
    nth: usize,
    numa: &[u16],
) -> Result<Nic, ConfigError> {
    let raw = table.get_ref();
    let header = "[[node-type.nic]]";
    let name = check.name("name", check.need(table, header, "name", &raw.name)?)?;
    let gbps = check.need(table, header, "gbps", &raw.gbps)?;
    let gbps = check.gbps("gbps", &Some(gbps.clone()), 0.0)?;
    let near = match &raw.near {
        Some(list) => check.gpus("near", list, list.get_ref(), numa.len())?,
        None => Vec::new(),
    };
    let words = [
        ("PIX", Link::Pix),
        ("PXB", Link::Pxb),
        ("PHB", Link::Phb),
        ("NODE", Link::Node),
    ];
    let link = check.word("link", &raw.link, &words, Link::Pix)?;
    let beside = near.first().map_or(0, |&gpu| i64::from(numa[gpu]));
    let own_numa = check.int("numa", &raw.numa, 0..=63, beside)? as u16;
    let reach = |gpu: usize| match near.contains(&gpu) {
        true => link,
        false if numa[gpu] == own_numa => Link::Node,
        false => Link::Sys,
    };
    Ok(Nic {
        name,
        numa: own_numa,
        rail: check.int("rail", &raw.rail, 0..=1023, nth as i64)? as u16,
        gbps,
        links: (0..numa.len()).map(reach).collect(),
    })
}
