//! Clusters whose gres.conf has every oddity that Slurm takes: links, cores, types and files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpuos_model::rng::Rng;
use gpuos_tests::Setup;

/// Device files that every node of a lab has.
const DEVICES: u64 = 8;

/// Nodes that are alike.
#[derive(Clone, Debug)]
pub struct Group {
    /// Their names.
    pub nodes: Vec<String>,
    /// Sockets of a node.
    pub sockets: u64,
    /// Cores of a socket.
    pub cores: u64,
    /// GPUs of a node.
    pub gpus: u64,
    /// Types of the GPUs, as GRES names them: none, one, or one for each half.
    pub types: Vec<&'static str>,
}

impl Group {
    /// How many GPUs are of the type with this number; all where there is none or one.
    fn of_type(&self, number: usize) -> u64 {
        match (self.types.len(), number) {
            (2, 0) => self.gpus.div_ceil(2),
            (2, _) => self.gpus / 2,
            _ => self.gpus,
        }
    }

    fn type_of(&self, gpu: u64) -> Option<&'static str> {
        match self.types[..] {
            [] => None,
            [one] => Some(one),
            [first, ..] if gpu < self.of_type(0) => Some(first),
            [_, second, ..] => Some(second),
        }
    }

    /// What slurm.conf says of such a node.
    fn hardware(&self) -> String {
        let gres = match self.types[..] {
            [] => format!("gpu:{}", self.gpus),
            _ => {
                let types = self.types.iter().enumerate();
                let types = types.filter(|(number, _)| self.of_type(*number) > 0);
                let all =
                    types.map(|(number, kind)| format!("gpu:{kind}:{}", self.of_type(number)));
                all.collect::<Vec<_>>().join(",")
            }
        };
        format!(
            "Sockets={} CoresPerSocket={} ThreadsPerCore=1 RealMemory=64000 Gres={gres}",
            self.sockets, self.cores
        )
    }
}

/// A cluster.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// Its nodes.
    pub groups: Vec<Group>,
    /// gres.conf, with `DEVICES` for the folder of the device files.
    pub gres_conf: String,
    /// topology.conf, if it has one.
    pub topology: Option<String>,
    /// `SelectTypeParameters`.
    pub parameters: &'static str,
}

/// `SelectTypeParameters` that clusters have, the usual one twice as often.
const PARAMETERS: [&str; 5] = [
    "CR_Core_Memory",
    "CR_Core_Memory",
    "CR_Core",
    "CR_CPU_Memory",
    "CR_Socket_Memory",
];

impl Site {
    /// The cluster of a seed.
    pub fn of(rng: &mut Rng) -> Site {
        let mut site = Site {
            gres_conf: "AutoDetect=off\n".into(),
            parameters: pick::<&str>(rng, &PARAMETERS),
            ..Site::default()
        };
        let mut first = 1;
        for count in [2, 2] {
            let names = (first..first + count).map(|number| format!("n{number}"));
            first += count;
            let group = Group {
                nodes: names.collect(),
                sockets: *pick(rng, &[1, 2, 2, 2, 4]),
                cores: *pick(rng, &[2, 4, 8]),
                gpus: *pick(rng, &[1, 2, 3, 4, 4, 6, 8, 8, 8]),
                types: pick(rng, &[vec![], vec!["a"], vec!["a"], vec!["a", "b"]]).clone(),
            };
            site.gres_conf += &lines(rng, &group);
            site.groups.push(group);
        }
        site.topology = match rng.below(3) {
            0 => None,
            1 => Some(leaves(&[&["n1", "n2"], &["n3", "n4"]])),
            _ => Some(leaves(&[&["n1", "n3"], &["n2", "n4"]])),
        };
        site
    }

    /// A cluster whose nodes differ in their links alone: each has rows of its own, of all kinds.
    pub fn of_links(rng: &mut Rng) -> Site {
        let mut site = Site {
            gres_conf: "AutoDetect=off\n".into(),
            parameters: "CR_Core_Memory",
            ..Site::default()
        };
        let gpus = *pick(rng, &[4, 6, 8, 8]);
        for number in 1..=4 {
            let group = Group {
                nodes: vec![format!("n{number}")],
                sockets: *pick(rng, &[1, 2]),
                cores: 8,
                gpus,
                types: vec!["a"],
            };
            site.gres_conf += &lines(rng, &group);
            site.groups.push(group);
        }
        site
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> Vec<&str> {
        let nodes = self.groups.iter().flat_map(|group| &group.nodes);
        nodes.map(String::as_str).collect()
    }

    /// Has a lab be this cluster.
    pub fn put(&self, setup: &mut Setup) {
        let spec = &mut setup.spec;
        spec.nodes = gpuos_lab::Nodes::Names(self.nodes().into_iter().map(str::to_owned).collect());
        spec.hardware = BTreeMap::new();
        for group in &self.groups {
            let all = group
                .nodes
                .iter()
                .map(|node| (node.clone(), group.hardware()));
            spec.hardware.extend(all);
        }
        spec.gres_conf = Some(self.gres_conf.clone());
        spec.topology_conf = self.topology.clone();
        spec.slurm_conf_extra
            .push(format!("SelectTypeParameters={}", self.parameters));
    }

    /// What a reader has to know to make it himself.
    pub fn describe(&self) -> String {
        let mut text = format!("SelectTypeParameters={}\n", self.parameters);
        for group in &self.groups {
            let _ = writeln!(
                text,
                "NodeName={} {}",
                group.nodes.join(","),
                group.hardware()
            );
        }
        text += &self.gres_conf;
        if let Some(topology) = &self.topology {
            let _ = write!(text, "topology.conf:\n{topology}");
        }
        text
    }
}

/// One of several.
pub fn pick<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[rng.below(all.len() as u64) as usize]
}

fn leaves(leaves: &[&[&str]]) -> String {
    let mut text = String::new();
    let mut names = Vec::new();
    for (at, nodes) in leaves.iter().enumerate() {
        let _ = writeln!(text, "SwitchName=leaf{at} Nodes={}", nodes.join(","));
        names.push(format!("leaf{at}"));
    }
    let _ = writeln!(text, "SwitchName=spine Switches={}", names.join(","));
    text
}

/// The lines of gres.conf of a group.
fn lines(rng: &mut Rng, group: &Group) -> String {
    let gpus = group.gpus;
    let mut order: Vec<u64> = (0..DEVICES).collect();
    if rng.below(4) == 0 {
        rng.shuffle(&mut order);
    }
    let rows = links(rng, gpus as usize);
    let cores = rng.below(8);
    let some_without = rng.below(12) == 0;
    let nodes = group.nodes.join(",");
    let mut text = String::new();
    // Several devices in one line have one row of links, and one type.
    let together = rng.below(5) == 0 && group.types.len() < 2 && gpus > 1;
    let width = if together {
        gpus.div_ceil(group.sockets.min(gpus))
    } else {
        1
    };
    for first in (0..gpus).step_by(width as usize) {
        let _ = write!(text, "NodeName={nodes} Name=gpu");
        if let Some(kind) = group.type_of(first) {
            let _ = write!(text, " Type={kind}");
        }
        let files: Vec<String> = (first..(first + width).min(gpus))
            .map(|gpu| format!("DEVICES/nvidia{}", order[gpu as usize]))
            .collect();
        let _ = write!(text, " File={}", files.join(","));
        let socket = first * group.sockets / gpus;
        let socket = match cores {
            0 | 1 => None,
            2 => Some((0, group.sockets)),
            3 => Some((group.sockets - 1 - socket, 1)),
            _ => Some((socket, 1)),
        };
        if let Some((socket, count)) = socket.filter(|_| !(some_without && first == 0)) {
            let (from, to) = (socket * group.cores, (socket + count) * group.cores - 1);
            let _ = write!(text, " Cores={from}-{to}");
        }
        if let Some(row) = rows.as_ref().and_then(|rows| rows[first as usize].as_ref()) {
            let row: Vec<String> = row.iter().map(i32::to_string).collect();
            let _ = write!(text, " Links={}", row.join(","));
        }
        text.push('\n');
    }
    text
}

/// Rows of `Links=`, one for each GPU; a GPU may have none.
fn links(rng: &mut Rng, gpus: usize) -> Option<Vec<Option<Vec<i32>>>> {
    let kind = rng.below(12);
    if kind < 2 {
        return None;
    }
    let most = *pick(rng, &[1, 2, 4, 12, 18]);
    let pair = |a: usize, b: usize| a / 2 == b / 2;
    let mut rows: Vec<Vec<i32>> = (0..gpus)
        .map(|a| {
            (0..gpus)
                .map(|b| match kind {
                    2 => 0,
                    3 | 4 => most * i32::from(pair(a, b)),
                    5 => most,
                    _ => rng.below(most as u64 + 1) as i32,
                })
                .collect()
        })
        .collect();
    if [6, 7].contains(&kind) {
        for a in 0..gpus {
            let column: Vec<i32> = rows[..a].iter().map(|row| row[a]).collect();
            rows[a][..a].copy_from_slice(&column);
        }
    }
    if kind == 8 {
        for row in &mut rows {
            let at = rng.below(gpus as u64) as usize;
            row[at] = -2;
        }
    }
    // Which place is the device itself.
    let mut own: Vec<usize> = (0..gpus).collect();
    match rng.below(5) {
        0 => rng.shuffle(&mut own),
        1 => own.iter_mut().for_each(|at| *at = (*at ^ 1).min(gpus - 1)),
        2 if rng.below(2) == 0 => own.rotate_left(1),
        _ => {}
    }
    for (row, own) in rows.iter_mut().zip(&own) {
        row[*own] = -1;
    }
    let mut rows: Vec<Option<Vec<i32>>> = rows.into_iter().map(Some).collect();
    if rng.below(8) == 0 {
        let at = rng.below(gpus as u64) as usize;
        rows[at] = None;
    }
    if rng.below(8) == 0
        && let Some(row) = rows[gpus - 1].as_mut()
    {
        // Short rows end in zeros.
        let own = row.iter().position(|links| *links == -1).unwrap_or(0);
        row.truncate(own + 1);
    }
    Some(rows)
}
