//! What slurm.conf and gres.conf say of the nodes and their GPUs.
//!
//! Only the keys that matter to placement are read, and nothing is refused that
//! Slurm itself would take: a line that is not understood is left out.

mod address;
mod devices;
mod memory;
mod places;

use std::collections::HashMap;

use gpuos_model::hostlist::expand;
use gpuos_model::node_types::NodeFacts;

use crate::options::parse_gres;

pub use address::Addresses;
pub use devices::{GpuDevice, auto_detect, gpu_devices};
pub use places::{ConfFault, ConfLine, ConfText, conf_lines};

/// Reads a file by its name in the configuration folder or by its path; `None` when there is none.
pub type Read<'a> = &'a dyn Fn(&str) -> Result<Option<String>, String>;

/// How deep `Include` may nest.
const MAX_DEPTH: usize = 8;

/// The most text that is read, in bytes, included files counted in.
const MAX_TEXT: usize = 32 << 20;

/// The nodes of a cluster, as the files describe them.
#[derive(Clone, Default, Debug)]
pub struct NodeLines {
    nodes: Vec<NodeLine>,
    gres: Vec<GresLine>,
    /// The most shards of a GPU by a line of gres.conf that names files.
    shards_of_file: Option<u64>,
    dynamic: bool,
    memory_default: bool,
}

#[derive(Clone, Default, Debug)]
struct NodeLine {
    names: Vec<String>,
    gpus: usize,
    gres_type: String,
    /// Of GRES `shard`, on all GPUs of the node.
    shards: u64,
    sockets: u16,
    cores_per_socket: u16,
    /// 0: it is not said.
    memory_mib: u64,
    /// GRES beside those of GPUs, by their names.
    others: Vec<(String, u64)>,
}

#[derive(Clone, Default, Debug)]
struct GresLine {
    /// Nodes of the line; `None`: all.
    names: Option<Vec<String>>,
    devices: usize,
    first_core: Option<u32>,
    links: Option<Vec<i32>>,
}

impl NodeLines {
    /// Reads slurm.conf and gres.conf, with the files that they include.
    ///
    /// # Errors
    /// A file cannot be read, or slurm.conf is missing; the sentence names it.
    pub fn read(read: Read<'_>) -> Result<NodeLines, String> {
        let mut lines = NodeLines::default();
        let mut default = HashMap::new();
        let mut slurm = Vec::new();
        if !logical_lines("slurm.conf", read, 0, &mut 0, &mut slurm)? {
            return Err("slurm.conf: no such file".into());
        }
        for line in &slurm {
            lines.add_node(line, &mut default);
        }
        let mut gres = Vec::new();
        logical_lines("gres.conf", read, 0, &mut 0, &mut gres)?;
        for line in &gres {
            lines.add_gres(line);
        }
        Ok(lines)
    }

    /// Whether nodes may exist that no file names (`MaxNodeCount`), so that the files do not bound
    /// what a job can get.
    pub fn dynamic(&self) -> bool {
        self.dynamic
    }

    /// Memory of all nodes in MiB, in the order of [`NodeLines::all`]; 0: it is not said.
    pub fn memory_mib(&self) -> Vec<u64> {
        let of = |node: &NodeLine| std::iter::repeat_n(node.memory_mib, node.names.len());
        self.nodes.iter().flat_map(of).collect()
    }

    /// Whether nodes have shards (GRES `shard`), in the order of [`NodeLines::all`].
    pub fn has_shards(&self) -> Vec<bool> {
        let of = |node: &NodeLine| std::iter::repeat_n(node.shards > 0, node.names.len());
        self.nodes.iter().flat_map(of).collect()
    }

    /// How many of a GRES nodes have, in the order of [`NodeLines::all`].
    pub fn counts_of(&self, gres: &str) -> Vec<u64> {
        let of = |node: &NodeLine| {
            let others = node.others.iter().filter(|(name, _)| name == gres);
            let count = others.fold(0, |all: u64, (_, count)| all.saturating_add(*count));
            std::iter::repeat_n(count, node.names.len())
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// Whether a job that asks for no memory gets less than all of its nodes', in some partition at least.
    pub fn memory_has_default(&self) -> bool {
        self.memory_default
    }

    /// The most shards (GRES `shard`) that a GPU of any node has; 0 = GPUs are not shared. Slurm deals out
    /// what a node has evenly, unless gres.conf says it for each file.
    pub fn shards_of_gpu(&self) -> u64 {
        let shared = self.nodes.iter().filter(|node| node.shards > 0);
        let even = shared.map(|node| node.shards.div_ceil(node.gpus.max(1) as u64));
        let even = even.max().unwrap_or(0);
        match self.shards_of_file {
            Some(most) if even > 0 => most,
            _ => even,
        }
    }

    /// Facts about some nodes, in their order; `None` for those that no line names. Each line is read once.
    pub fn facts(&self, names: &[String]) -> Vec<Option<NodeFacts>> {
        let mut known: HashMap<&str, (Option<&NodeLine>, Vec<&GresLine>)> = HashMap::new();
        for name in names {
            known.entry(name).or_default();
        }
        for line in &self.nodes {
            for name in &line.names {
                // Of several lines the last one counts.
                if let Some((node, _)) = known.get_mut(name.as_str()) {
                    *node = Some(line);
                }
            }
        }
        for line in &self.gres {
            match &line.names {
                Some(names) => {
                    for name in names {
                        if let Some((_, gres)) = known.get_mut(name.as_str()) {
                            gres.push(line);
                        }
                    }
                }
                None => known.values_mut().for_each(|(_, gres)| gres.push(line)),
            }
        }
        let facts = |name: &String| {
            let (node, gres) = known.get(name.as_str())?;
            Some((*node)?.facts(name, gres.iter().copied()))
        };
        names.iter().map(facts).collect()
    }

    /// Facts about all nodes, in the order of slurm.conf.
    pub fn all(&self) -> Vec<NodeFacts> {
        let mut lines: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, line) in self.gres.iter().enumerate() {
            for name in line.names.iter().flatten() {
                lines.entry(name).or_default().push(at);
            }
        }
        let general: Vec<usize> = (0..self.gres.len())
            .filter(|&at| self.gres[at].names.is_none())
            .collect();
        let mut facts = Vec::new();
        for node in &self.nodes {
            for name in &node.names {
                let mut own = lines.get(name.as_str()).cloned().unwrap_or_default();
                own.extend(&general);
                own.sort_unstable();
                facts.push(node.facts(name, own.iter().map(|&at| &self.gres[at])));
            }
        }
        facts
    }

    fn add_node(&mut self, line: &str, default: &mut HashMap<String, String>) {
        let keys = keys(line);
        let get = |key: &str| {
            keys.iter()
                .find(|(k, _)| k == key)
                .map(|(_, value)| value.as_str())
        };
        if get("maxnodecount").is_some() {
            self.dynamic = true;
        }
        self.memory_default |= memory::sets_default(&keys);
        let Some(name) = get("nodename") else { return };
        if name.eq_ignore_ascii_case("DEFAULT") {
            default.extend(keys.iter().cloned());
            return;
        }
        let Ok(names) = expand(name) else { return };
        let get = |key: &str| get(key).or_else(|| default.get(key).map(String::as_str));
        let number = |key: &str| get(key).and_then(|value| value.parse::<u16>().ok());
        let boards = number("boards").unwrap_or(1);
        let per_board = number("socketsperboard").map(|count| count.saturating_mul(boards));
        let gres = get("gres")
            .and_then(|list| parse_gres("Gres", list).ok())
            .unwrap_or_default();
        let shards = gres.iter().filter(|gres| gres.name == "shard");
        let shards = shards.fold(0, |all: u64, gres| all.saturating_add(gres.count));
        let is_other = |name: &str| !["gpu", "shard"].contains(&name);
        let others = gres.iter().filter(|gres| is_other(&gres.name));
        let others = others.map(|gres| (gres.name.clone(), gres.count)).collect();
        let gpus: Vec<_> = gres.into_iter().filter(|gres| gres.name == "gpu").collect();
        let kind = gpus.first().and_then(|gres| gres.gres_type.clone());
        let same = gpus.iter().all(|gres| gres.gres_type == kind);
        self.nodes.push(NodeLine {
            names,
            gpus: gpus.iter().map(|gres| gres.count as usize).sum(),
            gres_type: kind.filter(|_| same).unwrap_or_default(),
            shards,
            sockets: number("sockets").or(per_board).unwrap_or(1),
            cores_per_socket: number("corespersocket").or(number("cpus")).unwrap_or(1),
            memory_mib: get("realmemory")
                .and_then(|value| value.parse().ok())
                .unwrap_or(0),
            others,
        });
    }

    fn add_gres(&mut self, line: &str) {
        let keys = keys(line);
        let get = |key: &str| {
            keys.iter()
                .find(|(k, _)| k == key)
                .map(|(_, value)| value.as_str())
        };
        let named = |kind: &str| get("name").is_some_and(|name| name.eq_ignore_ascii_case(kind));
        if named("shard")
            && let (Some(file), Some(Ok(count))) = (get("file"), get("count").map(str::parse))
        {
            let each = u64::div_ceil(count, files(file).max(1) as u64);
            self.shards_of_file = self.shards_of_file.max(Some(each));
        }
        if !named("gpu") {
            return;
        }
        let names = match get("nodename").map(expand) {
            Some(Ok(names)) => Some(names),
            Some(Err(_)) => return,
            None => None,
        };
        let devices = match (get("file").or(get("multiplefiles")), get("count")) {
            (Some(file), _) => files(file),
            (None, Some(count)) => count.parse().unwrap_or(0),
            (None, None) => 1,
        };
        let links: Option<Vec<i32>> =
            get("links").and_then(|row| row.split(',').map(|n| n.trim().parse().ok()).collect());
        self.gres.push(GresLine {
            names,
            devices,
            first_core: get("cores").and_then(|list| {
                list.split([',', '-'])
                    .next()?
                    .trim_start_matches('[')
                    .parse()
                    .ok()
            }),
            links: links.filter(|_| devices == 1),
        });
    }
}

impl NodeLine {
    fn facts<'a>(&self, name: &str, gres: impl Iterator<Item = &'a GresLine>) -> NodeFacts {
        let mut links = Some(Vec::new());
        let mut sockets = Some(Vec::new());
        let mut devices = 0;
        for line in gres {
            devices += line.devices;
            if devices > self.gpus {
                break;
            }
            let row = line.links.as_ref().filter(|row| row.len() == self.gpus);
            links = links.zip(row).map(|(mut all, row)| {
                all.extend(row);
                all
            });
            let socket = line
                .first_core
                .map(|core| core / u32::from(self.cores_per_socket.max(1)));
            sockets = sockets.zip(socket).map(|(mut all, socket)| {
                all.extend(std::iter::repeat_n(
                    socket.min(u16::MAX.into()) as u16,
                    line.devices,
                ));
                all
            });
        }
        let complete = devices == self.gpus && devices > 0;
        NodeFacts {
            name: name.to_owned(),
            gpus: self.gpus,
            gres_type: self.gres_type.clone(),
            sockets: self.sockets,
            cores_per_socket: self.cores_per_socket,
            links: links.filter(|_| complete),
            gpu_sockets: sockets.filter(|_| complete),
        }
    }
}

/// Adds the lines of a file to `lines`, comments removed, continued lines joined and included files
/// in their place. `Ok(false)` when there is no such file.
fn logical_lines(
    file: &str,
    read: Read<'_>,
    depth: usize,
    total: &mut usize,
    lines: &mut Vec<String>,
) -> Result<bool, String> {
    let Some(text) = read(file)? else {
        return Ok(false);
    };
    *total += text.len();
    if *total > MAX_TEXT {
        return Err(format!(
            "{file}: more than {MAX_TEXT} bytes with the files before it"
        ));
    }
    let mut joined = String::new();
    for line in text.lines() {
        joined.push_str(without_comment(line));
        if joined.ends_with('\\') {
            joined.pop();
            continue;
        }
        let line = std::mem::take(&mut joined);
        let line = line.trim();
        match line.split_once(char::is_whitespace) {
            Some((word, path)) if word.eq_ignore_ascii_case("include") => {
                if depth == MAX_DEPTH {
                    return Err(format!(
                        "{file}: Include nested more than {MAX_DEPTH} times"
                    ));
                }
                logical_lines(path.trim(), read, depth + 1, total, lines)?;
            }
            _ if line.is_empty() => {}
            _ => lines.push(line.to_owned()),
        }
    }
    Ok(true)
}

/// How many files a `File=` names.
fn files(list: &str) -> usize {
    // A path is a hostlist but for its slashes.
    let names = list
        .replace(",/", ",")
        .trim_start_matches('/')
        .replace('/', "-");
    expand(&names).map_or(0, |names| names.len())
}

fn without_comment(line: &str) -> &str {
    let hash = line
        .match_indices('#')
        .find(|(at, _)| !line[..*at].ends_with('\\'));
    hash.map_or(line, |(at, _)| &line[..at])
}

/// The `Key=Value` pairs of a line, keys in lower case, quotes removed.
fn keys(line: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = line.trim();
    while let Some((key, after)) = rest.split_once('=') {
        let key = key
            .split_whitespace()
            .next_back()
            .unwrap_or_default()
            .to_ascii_lowercase();
        let after = after.trim_start();
        let (value, next) = match after
            .strip_prefix('"')
            .and_then(|quoted| quoted.split_once('"'))
        {
            Some(parts) => parts,
            None => after.split_once(char::is_whitespace).unwrap_or((after, "")),
        };
        pairs.push((key, value.to_owned()));
        rest = next.trim();
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLURM: &str = "ClusterName=x # a comment\n\
        NodeName=DEFAULT Sockets=2 CoresPerSocket=8 RealMemory=1000\n\
        nodename=n[1-2] Gres=gpu:a100:4,gpuos:64 \\\n  State=UNKNOWN Feature=\"a b\"\n\
        Include more.conf\n";
    const MORE: &str =
        "NodeName=c1 CPUs=4\nNodeName=m1 Gres=gpu:a100:2,gpu:h100:1 Boards=1 SocketsPerBoard=4\n";
    const GRES: &str = "AutoDetect=off\n\
        NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia0 Cores=0-7 Links=-1,4,0,0\n\
        NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia1 Cores=0-7 Links=4,-1,0,0\n\
        NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia2 Cores=8-15 Links=0,0,-1,4\n\
        NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia3 Cores=8-15 Links=0,0,4,-1\n\
        NodeName=n2 Name=gpu File=/dev/nvidia[0-1],/dev/nvidia2 Cores=0-7\n\
        NodeName=n2 Name=gpu File=/dev/nvidia3 Cores=8-15\n\
        Name=gpuos Count=64\n";

    fn files(name: &str) -> Result<Option<String>, String> {
        Ok(match name {
            "slurm.conf" => Some(SLURM.into()),
            "more.conf" => Some(MORE.into()),
            "gres.conf" => Some(GRES.into()),
            _ => None,
        })
    }

    #[test]
    fn shards_are_counted_for_each_gpu() {
        let shards = |slurm: &str, gres: &str| {
            let read = |name: &str| {
                Ok(Some(if name == "slurm.conf" {
                    slurm.to_owned()
                } else {
                    gres.to_owned()
                }))
            };
            NodeLines::read(&read).unwrap().shards_of_gpu()
        };
        let nodes =
            "NodeName=n[1-2] Gres=gpu:h100:8,shard:32\nNodeName=n3 Gres=gpu:4,shard:h100:18\n";
        assert_eq!(shards(nodes, "Name=shard Count=32\n"), 5);
        assert_eq!(
            shards(
                "NodeName=n1 Gres=gpu:8\n",
                "Name=shard Count=8 File=/dev/nvidia0\n"
            ),
            0
        );
        let files = "NodeName=n1 Name=shard Count=8 File=/dev/nvidia0\nName=shard Count=4 File=/dev/nvidia[1-2]\n";
        assert_eq!(shards("NodeName=n1 Gres=gpu:3,shard:12\n", files), 8);
    }

    #[test]
    fn nodes_and_their_gpus_are_found() {
        let lines = NodeLines::read(&files).unwrap();
        let names = ["n2", "n3", "n1", "m1", "c1", "n1"].map(String::from);
        let [n2, n3, n1, m1, c1, again] = lines.facts(&names).try_into().unwrap();
        assert_eq!(n3, None);
        assert_eq!(again, n1);
        let [n1, n2, m1, c1] = [n1, n2, m1, c1].map(Option::unwrap);
        assert_eq!(
            (
                n1.gpus,
                n1.gres_type.as_str(),
                n1.sockets,
                n1.cores_per_socket
            ),
            (4, "a100", 2, 8)
        );
        let rows = [-1, 4, 0, 0, 4, -1, 0, 0, 0, 0, -1, 4, 0, 0, 4, -1];
        assert_eq!(n1.links.as_deref(), Some(&rows[..]));
        assert_eq!(n1.gpu_sockets.as_deref(), Some(&[0, 0, 1, 1][..]));
        assert_eq!(n2.links, None);
        assert_eq!(n2.gpu_sockets.as_deref(), Some(&[0, 0, 0, 1][..]));
        assert_eq!((m1.gpus, m1.gres_type.as_str()), (3, ""));
        assert_eq!(c1.gpus, 0);
        assert!(!lines.dynamic());
    }

    #[test]
    fn all_nodes_agree_with_those_asked_for() {
        let lines = NodeLines::read(&files).unwrap();
        let all = lines.all();
        assert_eq!(
            all.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
            ["n1", "n2", "c1", "m1"]
        );
        let names: Vec<String> = all.iter().map(|facts| facts.name.clone()).collect();
        let asked: Option<Vec<_>> = lines.facts(&names).into_iter().collect();
        assert_eq!(asked, Some(all));
    }

    #[test]
    fn missing_and_endless_files_are_errors() {
        assert!(
            NodeLines::read(&|_| Ok(None))
                .unwrap_err()
                .contains("slurm.conf")
        );
        let endless = NodeLines::read(&|_| Ok(Some("include slurm.conf\n".into())));
        assert!(endless.unwrap_err().contains("nested"));
        let denied = NodeLines::read(&|name| Err(format!("{name}: denied")));
        assert_eq!(denied.unwrap_err(), "slurm.conf: denied");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(slurm: String, gres: String) {
            let read = |name: &str| Ok(Some(if name == "slurm.conf" { slurm.clone() } else { gres.clone() }));
            if let Ok(lines) = NodeLines::read(&read) {
                lines.all();
            }
        }
    }
}
