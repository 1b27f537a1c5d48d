//! What slurm.conf and gres.conf say of the nodes and their GPUs.
//!
//! Only the keys that matter to placement are read, and nothing is refused that
//! Slurm itself would take: a line that is not understood is left out.

mod address;
mod devices;
mod gres_conf;
mod memory;
mod places;
mod tokens;
mod topology_keys;

use std::collections::HashMap;

use gpuos_model::hostlist::expand;
use gpuos_model::node_types::NodeFacts;

use crate::options::parse_gres;

use gres_conf::gpus_of;

pub use address::Addresses;
pub use devices::{GpuDevice, auto_detect, gpu_devices};
pub use gres_conf::{GresConf, GresRecord, RecordsByNode};
pub use places::{ConfFault, ConfLine, ConfText, conf_lines};
pub use topology_keys::{NodeTopology, TopologyKeys};

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
    gres: GresConf,
    dynamic: bool,
    memory_default: bool,
}

#[derive(Clone, Default, Debug)]
struct NodeLine {
    names: Vec<String>,
    gpus: Vec<GpuCount>,
    /// Of GRES `shard`, on all GPUs of the node.
    shards: u64,
    sockets: u16,
    cores_per_socket: u16,
    /// slurm.conf says how many cores there are.
    says_cores: bool,
    /// 0: it is not said.
    memory_mib: u64,
    /// GRES beside those of GPUs, by their names.
    others: Vec<(String, u64)>,
}

/// GPUs of one type that slurm.conf counts on a node.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct GpuCount {
    gres_type: Option<String>,
    count: u64,
}

impl NodeLines {
    /// Reads slurm.conf and gres.conf, with the files that they include.
    ///
    /// # Errors
    /// A file cannot be read, or slurm.conf is missing; the sentence names it.
    pub fn read(read: Read<'_>) -> Result<NodeLines, String> {
        let lines = lines_of_slurm_conf(read)?;
        Ok(NodeLines::of(&lines, GresConf::read(read)?))
    }

    /// What the lines of slurm.conf and gres.conf say.
    pub(crate) fn of(slurm_conf: &[ConfLine], gres: GresConf) -> NodeLines {
        let mut lines = NodeLines {
            gres,
            ..NodeLines::default()
        };
        let mut default = HashMap::new();
        for line in slurm_conf {
            lines.add_node(line, &mut default);
        }
        lines
    }

    /// The GPUs that slurm.conf counts on a node, by type; `None`: no line names the node.
    fn gpu_counts(&self, node: &str) -> Option<Vec<GpuCount>> {
        let mut lines = self.nodes.iter().rev();
        let line = lines.find(|line| line.names.iter().any(|name| name == node))?;
        Some(line.gpus.clone())
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

    /// Cores of all nodes, in the order of [`NodeLines::all`]; 0: it is not said.
    pub fn cores(&self) -> Vec<u32> {
        let of = |node: &NodeLine| {
            let cores = u32::from(node.sockets) * u32::from(node.cores_per_socket);
            let said = if node.says_cores { cores } else { 0 };
            std::iter::repeat_n(said, node.names.len())
        };
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
        let even = shared.map(|node| node.shards.div_ceil(node.gpu_count().max(1) as u64));
        let even = even.max().unwrap_or(0);
        let lines = self.gres.records.iter().filter(|line| line.is("shard"));
        let of_files = lines.filter_map(|line| {
            let files = (line.files.len() as u64).max(1);
            Some(line.count?.div_ceil(files)).filter(|_| !line.files.is_empty())
        });
        match of_files.max() {
            Some(most) if even > 0 => most,
            _ => even,
        }
    }

    /// Facts about some nodes, in their order; `None` for those that no line names. Each line is read once.
    pub fn facts(&self, names: &[String]) -> Vec<Option<NodeFacts>> {
        let lines = self.gres.by_node();
        let mut known: HashMap<&str, &NodeLine> = HashMap::new();
        for line in &self.nodes {
            // Of several lines the last one counts.
            known.extend(line.names.iter().map(|name| (name.as_str(), line)));
        }
        let facts = |name: &String| {
            let line = known.get(name.as_str())?;
            Some(line.facts(name, lines.of(name)))
        };
        names.iter().map(facts).collect()
    }

    /// Facts about all nodes, in the order of slurm.conf.
    pub fn all(&self) -> Vec<NodeFacts> {
        let lines = self.gres.by_node();
        let of = |node: &NodeLine| -> Vec<NodeFacts> {
            let names = node.names.iter();
            names.map(|name| node.facts(name, lines.of(name))).collect()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    fn add_node(&mut self, line: &ConfLine, default: &mut HashMap<String, String>) {
        if line.get("maxnodecount").is_some() {
            self.dynamic = true;
        }
        self.memory_default |= memory::sets_default(&line.pairs);
        let Some(name) = line.get("nodename") else {
            return;
        };
        if name.eq_ignore_ascii_case("DEFAULT") {
            default.extend(line.pairs.iter().cloned());
            return;
        }
        let Ok(names) = expand(name) else { return };
        let get = |key: &str| {
            line.get(key)
                .or_else(|| default.get(key).map(String::as_str))
        };
        let shape = Shape::of(|key| get(key).and_then(|value| value.parse().ok()));
        let gres = get("gres")
            .and_then(|list| parse_gres("Gres", list).ok())
            .unwrap_or_default();
        let shards = gres.iter().filter(|gres| gres.name == "shard");
        let shards = shards.fold(0, |all: u64, gres| all.saturating_add(gres.count));
        let is_other = |name: &str| !["gpu", "shard"].contains(&name);
        let others = gres.iter().filter(|gres| is_other(&gres.name));
        let others = others.map(|gres| (gres.name.clone(), gres.count)).collect();
        let mut gpus: Vec<GpuCount> = Vec::new();
        for one in gres.into_iter().filter(|gres| gres.name == "gpu") {
            match gpus.iter_mut().find(|gpu| gpu.gres_type == one.gres_type) {
                Some(same) => same.count = same.count.saturating_add(one.count),
                None => gpus.push(GpuCount {
                    gres_type: one.gres_type,
                    count: one.count,
                }),
            }
        }
        self.nodes.push(NodeLine {
            names,
            gpus,
            shards,
            sockets: shape.sockets,
            cores_per_socket: shape.cores_per_socket,
            says_cores: ["cpus", "procs", "corespersocket"]
                .iter()
                .any(|key| get(key).is_some()),
            memory_mib: get("realmemory")
                .and_then(|value| value.parse().ok())
                .unwrap_or(0),
            others,
        });
    }
}

/// Sockets of a node and the cores of each, of what slurm.conf gives of them.
struct Shape {
    sockets: u16,
    cores_per_socket: u16,
}

impl Shape {
    /// As Slurm infers what is not given (`_parse_nodename` in its `read_config.c`). `number` gives the value of a key in lower case.
    fn of(number: impl Fn(&str) -> Option<u16>) -> Shape {
        let at_least_1 = |key: &str| number(key).unwrap_or(1).max(1);
        let cores = at_least_1("corespersocket");
        let (threads, boards) = (at_least_1("threadspercore"), at_least_1("boards"));
        let of_socket = u32::from(cores) * u32::from(threads);
        let cpus = number("cpus")
            .or(number("procs"))
            .map(|cpus| u32::from(cpus.max(1)));
        let whole = |cpus: &u32| cpus.is_multiple_of(of_socket);
        let sockets = match (number("socketsperboard"), number("sockets")) {
            (Some(per_board), _) => per_board.max(1).saturating_mul(boards),
            (None, Some(sockets)) => sockets.max(1),
            (None, None) => match cpus.filter(whole) {
                Some(cpus) => (cpus / of_socket) as u16,
                None => boards,
            },
        };
        Shape {
            sockets,
            cores_per_socket: cores,
        }
    }
}

impl NodeLine {
    fn gpu_count(&self) -> usize {
        let all = self
            .gpus
            .iter()
            .fold(0, |all: u64, gpus| all.saturating_add(gpus.count));
        usize::try_from(all).unwrap_or(usize::MAX)
    }

    /// The type of all GPUs; empty where they have none, or several.
    fn gres_type(&self) -> &str {
        match &self.gpus[..] {
            [one] => one.gres_type.as_deref().unwrap_or_default(),
            _ => "",
        }
    }

    fn facts<'a>(&self, name: &str, records: impl Iterator<Item = &'a GresRecord>) -> NodeFacts {
        let gpus = self.gpu_count();
        let mut links = Some(Vec::new());
        let mut sockets = Some(Vec::new());
        let mut devices = 0;
        for share in gpus_of(&self.gpus, records) {
            let count = usize::try_from(share.devices).unwrap_or(usize::MAX);
            devices += count;
            let row = link_row(&share.record.links);
            let row = row.filter(|row| share.record.devices() == 1 && row.len() == gpus);
            links = links.zip(row).map(|(mut all, row)| {
                all.extend(row);
                all
            });
            let core = first_core(&share.record.cores);
            let socket = core.map(|core| core / u32::from(self.cores_per_socket.max(1)));
            sockets = sockets.zip(socket).map(|(mut all, socket)| {
                let socket = socket.min(u16::MAX.into()) as u16;
                all.extend(std::iter::repeat_n(socket, count));
                all
            });
        }
        let complete = devices == gpus && devices > 0;
        NodeFacts {
            name: name.to_owned(),
            gpus,
            gres_type: self.gres_type().to_owned(),
            sockets: self.sockets,
            cores_per_socket: self.cores_per_socket,
            links: links.filter(|_| complete),
            gpu_sockets: sockets.filter(|_| complete),
        }
    }
}

/// `-1,4,0,0`.
fn link_row(text: &str) -> Option<Vec<i32>> {
    text.split(',')
        .map(|links| links.trim().parse().ok())
        .collect()
}

/// The first of `0-3,8-11`.
fn first_core(list: &str) -> Option<u32> {
    let first = list.split([',', '-']).next()?;
    first.trim_start_matches('[').parse().ok()
}

/// The lines of slurm.conf, which has to be there, with the files that it includes.
pub(crate) fn lines_of_slurm_conf(read: Read<'_>) -> Result<Vec<ConfLine>, String> {
    let lines = lines_of("slurm.conf", read)?;
    lines.ok_or_else(|| "slurm.conf: no such file".to_owned())
}

/// The lines of a file with those that it includes; `None`: there is no such file. A file that is there and cannot be read is an
/// error, also where it is included.
fn lines_of(file: &str, read: Read<'_>) -> Result<Option<Vec<ConfLine>>, String> {
    let unread = std::cell::OnceCell::new();
    let noting = |name: &str| {
        read(name).inspect_err(|why| {
            let _ = unread.set(why.clone());
        })
    };
    let found = conf_lines(file, &noting)?;
    match unread.into_inner() {
        Some(why) => Err(why),
        None => Ok(found.map(|(lines, _)| lines)),
    }
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
        NodeName=n2 Name=gpu Type=A100 Files=/dev/nvidia[0-1],/dev/nvidia2 Cores=0-7\n\
        NodeName=n2 Name=gpu Type=a100 MultipleFiles=/dev/nvidia3,/dev/x CPUs=8-15\n\
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
    fn sockets_are_inferred_as_slurm_infers_them() {
        for (line, sockets, cores) in [
            ("CPUs=16 CoresPerSocket=8", 2, 8),
            ("CPUs=16 CoresPerSocket=4 ThreadsPerCore=2", 2, 4),
            ("Procs=6 CoresPerSocket=4", 1, 4),
            ("CPUs=4", 4, 1),
            ("", 1, 1),
            ("Sockets=2", 2, 1),
            ("Boards=2 CoresPerSocket=4", 2, 4),
            (
                "Boards=2 SocketsPerBoard=2 Sockets=3 CoresPerSocket=4",
                4,
                4,
            ),
            ("Sockets=0 CoresPerSocket=0", 1, 1),
            ("Sockets=2 Sockets=4 CoresPerSocket=8", 4, 8),
        ] {
            let conf = format!("NodeName=n1 {line}\n");
            let read = |name: &str| Ok((name == "slurm.conf").then(|| conf.clone()));
            let lines = NodeLines::read(&read).unwrap();
            let node = lines.all().remove(0);
            assert_eq!(
                (node.sockets, node.cores_per_socket),
                (sockets, cores),
                "{line}"
            );
            let says_nothing = ["", "Sockets=2"].contains(&line);
            let said = if says_nothing { 0 } else { sockets * cores };
            assert_eq!(lines.cores(), [u32::from(said)], "{line}");
        }
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
    fn missing_files_are_errors_and_endless_ones_end() {
        assert!(
            NodeLines::read(&|_| Ok(None))
                .unwrap_err()
                .contains("slurm.conf")
        );
        let endless = "NodeName=n1 Gres=gpu:1\ninclude slurm.conf\n";
        let endless = NodeLines::read(&|_| Ok(Some(endless.into()))).unwrap();
        assert_eq!(endless.facts(&["n1".into()])[0].as_ref().unwrap().gpus, 1);
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
