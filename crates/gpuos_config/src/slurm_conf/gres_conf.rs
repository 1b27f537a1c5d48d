//! gres.conf: its lines as Slurm reads them, and which of them become the GPUs of a node, in which order.

use std::collections::HashMap;

use gpuos_model::hostlist::expand;

use super::{ConfLine, GpuCount, Read, lines_of};
use crate::options::gres::digits_and_scale;

/// A line of gres.conf that describes GRES.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GresRecord {
    /// Nodes that it is for; `None`: all.
    pub nodes: Option<Vec<String>>,
    /// Name of the GRES, for example `gpu`.
    pub name: String,
    /// `Type=`; empty when there is none.
    pub gres_type: String,
    /// `File=`, `Files=` or `MultipleFiles=`, ranges expanded, in their order.
    pub files: Vec<String>,
    /// All its files are of one device (`MultipleFiles=`).
    pub is_one_device: bool,
    /// `Count=`, if it is given.
    pub count: Option<u64>,
    /// `Cores=`, or `CPUs=` as it was called before, as it is written; empty when there is none.
    pub cores: String,
    /// `Links=` or `Link=` as it is written; empty when there is none.
    pub links: String,
    /// `gres.conf:3`.
    pub place: String,
}

impl GresRecord {
    /// How many devices it describes.
    pub fn devices(&self) -> u64 {
        match (self.files.len(), self.is_one_device) {
            (0, _) => self.count.unwrap_or(1),
            (_, true) => 1,
            (files, false) => files as u64,
        }
    }

    /// Whether it describes GRES of that name.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// What a line of gres.conf describes; `None` where that is no GRES.
    pub fn of(line: &ConfLine) -> Option<GresRecord> {
        let first = line.pairs.first()?;
        let nodes = match first.0.as_str() {
            "name" => None,
            // A line for a list that is none is for nobody.
            "nodename" => Some(expand(&first.1).ok()?),
            _ => return None,
        };
        // Of two names of a key Slurm looks for this one first.
        let either = |key: &str, other: &str| line.get(key).or(line.get(other));
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let one = line.get("multiplefiles");
        let files = either("file", "files").or(one);
        Some(GresRecord {
            name: match nodes {
                None => first.1.clone(),
                Some(_) => line.get("name")?.to_owned(),
            },
            nodes,
            gres_type: text(line.get("type")),
            files: files.map(expand_files).unwrap_or_default(),
            is_one_device: one.is_some(),
            count: line.get("count").and_then(count),
            cores: text(either("cores", "cpus")),
            links: text(either("link", "links")),
            place: line.place(),
        })
    }
}

/// gres.conf with the files that it includes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GresConf {
    /// Its records in the order in which Slurm takes them: those for all nodes, then those with `NodeName=`.
    pub records: Vec<GresRecord>,
    /// `AutoDetect=` of all nodes, in small letters, and of those that a line names.
    detect: Option<String>,
    detect_of: HashMap<String, String>,
}

/// A record as far as a node has its devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share<'a> {
    pub record: &'a GresRecord,
    /// How many of its devices, the first ones.
    pub devices: u64,
}

impl GresConf {
    /// Reads gres.conf; without the file there are no records. A line that is not understood is left out.
    ///
    /// # Errors
    /// A file cannot be read; the sentence names it.
    pub fn read(read: Read<'_>) -> Result<GresConf, String> {
        let lines = lines_of("gres.conf", read)?.unwrap_or_default();
        Ok(GresConf::of(&lines))
    }

    /// By its lines and those that it includes. One that is not understood is left out.
    pub fn of(lines: &[ConfLine]) -> GresConf {
        let mut conf = GresConf::default();
        conf.records.extend(lines.iter().filter_map(GresRecord::of));
        conf.records.sort_by_key(|record| record.nodes.is_some());
        for line in lines {
            conf.add_detection(line);
        }
        conf
    }

    /// Only a line of its own, or one that names nodes, says how GPUs are found. Of several the last one counts.
    fn add_detection(&mut self, line: &ConfLine) {
        let (Some((key, value)), Some(how)) = (line.pairs.first(), line.get("autodetect")) else {
            return;
        };
        let how = how.to_ascii_lowercase();
        match key.as_str() {
            "autodetect" => self.detect = Some(how),
            "nodename" => {
                let names = expand(value).unwrap_or_default().into_iter();
                self.detect_of.extend(names.map(|name| (name, how.clone())));
            }
            _ => {}
        }
    }

    /// `AutoDetect=` of a node, in small letters: that of a line that names the node, else that of all.
    pub fn auto_detect(&self, node: &str) -> Option<&str> {
        let found = self.detect_of.get(node).or(self.detect.as_ref());
        found.map(String::as_str)
    }

    /// Whether Slurm finds the GPUs of a node itself.
    pub fn detects(&self, node: &str) -> bool {
        self.auto_detect(node).is_some_and(|how| how != "off")
    }

    /// The records by the nodes that they are for, to be looked up for many nodes.
    pub fn by_node(&self) -> RecordsByNode<'_> {
        let mut found = RecordsByNode::default();
        for record in &self.records {
            match &record.nodes {
                None => found.all.push(record),
                Some(names) => {
                    for name in names {
                        found.own.entry(name).or_default().push(record);
                    }
                }
            }
        }
        found
    }

    /// The records for a node, in Slurm's order.
    pub(super) fn of_node(&self, node: &str) -> impl Iterator<Item = &GresRecord> {
        self.records.iter().filter(move |record| {
            let named = record.nodes.as_ref();
            named.is_none_or(|names| names.iter().any(|name| name == node))
        })
    }
}

/// Records of gres.conf by the nodes that they are for.
#[derive(Default)]
pub struct RecordsByNode<'a> {
    all: Vec<&'a GresRecord>,
    own: HashMap<&'a str, Vec<&'a GresRecord>>,
}

impl<'a> RecordsByNode<'a> {
    /// Those of a node, in Slurm's order.
    pub fn of(&self, node: &str) -> impl Iterator<Item = &'a GresRecord> {
        let own = self.own.get(node).into_iter().flatten();
        self.all.iter().chain(own).copied()
    }
}

/// The GPUs of a node: what slurm.conf counts, type by type, filled from the records of gres.conf (`_merge_gres2` in Slurm's `gres.c`).
/// What slurm.conf counts and no record describes has no place here: Slurm leaves it out too.
pub(super) fn gpus_of<'a>(
    counts: &[GpuCount],
    records: impl Iterator<Item = &'a GresRecord>,
) -> Vec<Share<'a>> {
    let mut left: Vec<&GresRecord> = records.filter(|record| record.is("gpu")).collect();
    let is_typed = counts.iter().any(|count| count.gres_type.is_some());
    let mut shares = Vec::new();
    for count in counts {
        if is_typed && count.gres_type.is_none() {
            continue;
        }
        let mut wanted = count.count;
        left.retain(|record| {
            let fits = match &count.gres_type {
                Some(wanted) => record.gres_type.eq_ignore_ascii_case(wanted),
                None => true,
            };
            if !fits || wanted == 0 {
                return true;
            }
            let devices = record.devices().min(wanted);
            wanted -= devices;
            shares.push(Share { record, devices });
            false
        });
    }
    shares
}

/// `8`, `1K`.
fn count(text: &str) -> Option<u64> {
    let (digits, scale) = digits_and_scale(text)?;
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

/// The files of a `File=`: paths with ranges, separated by commas.
fn expand_files(list: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in outside_brackets(list) {
        // A host list but for the slashes of its folders.
        let (folder, name) = match part.rsplit_once('/') {
            Some((folder, name)) => (format!("{folder}/"), name),
            None => (String::new(), part),
        };
        for name in expand(name).unwrap_or_default() {
            found.push(format!("{folder}{name}"));
        }
    }
    found
}

/// Cuts a list at the commas outside brackets.
fn outside_brackets(list: &str) -> Vec<&str> {
    let mut open = 0;
    let cut = |c: char| {
        match c {
            '[' => open += 1,
            ']' => open -= 1,
            _ => {}
        }
        c == ',' && open <= 0
    };
    list.split(cut).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> GresConf {
        GresConf::read(&|_: &str| Ok(Some(text.to_owned()))).unwrap()
    }

    #[test]
    fn all_keys_of_slurm_and_their_older_names_are_read() {
        let text = "Name=GPU Type=\"a100\" \\\n CPUs=0-3 Files=/dev/nvidia[0-1],/dev/sub/x2 Link=-1,2,0 Flags=nvidia_gpu_env\n\
                    Name=gpu MultipleFiles=/dev/nvidia4,/dev/caps/[1,3] Cores=4 CPUs=9 Links=2,-1,0 Link=0,-1,0\n\
                    name=shard count=1K\nTYPE=none Name=gpu\nNodeName=n[ Name=gpu\n";
        let all = conf(text).records;
        assert_eq!(all.len(), 3);
        assert!(all[0].is("gpu"));
        assert_eq!(
            all[0].files,
            ["/dev/nvidia0", "/dev/nvidia1", "/dev/sub/x2"]
        );
        assert_eq!(
            (
                all[0].devices(),
                all[0].cores.as_str(),
                all[0].links.as_str()
            ),
            (3, "0-3", "-1,2,0")
        );
        assert_eq!(all[1].files, ["/dev/nvidia4", "/dev/caps/1", "/dev/caps/3"]);
        assert_eq!(
            (
                all[1].devices(),
                all[1].cores.as_str(),
                all[1].links.as_str()
            ),
            (1, "4", "0,-1,0")
        );
        assert_eq!(
            (all[2].devices(), all[2].place.as_str()),
            (1024, "gres.conf:4")
        );
    }

    #[test]
    fn detection_is_that_of_the_node_or_of_a_line_of_its_own() {
        let how = |text: &str, node: &str| {
            let conf = conf(text);
            let how = conf.auto_detect(node);
            assert_eq!(conf.detects(node), ![None, Some("off")].contains(&how));
            how.map(str::to_owned)
        };
        let text = "AutoDetect=NVML\nNodeName=n[2-3] AutoDetect=off Name=gpu File=/dev/nvidia0\n\
                    Name=gpu AutoDetect=rsmi File=/dev/nvidia1\n";
        assert_eq!(how(text, "n1").as_deref(), Some("nvml"));
        assert_eq!(how(text, "n3").as_deref(), Some("off"));
        assert_eq!(
            how("#AutoDetect=nvml\nName=gpu AutoDetect=rsmi\n", "n1"),
            None
        );
    }

    #[test]
    fn gpus_come_in_the_order_of_the_types_of_slurm_conf() {
        let conf = conf(
            "NodeName=n1 Name=gpu Type=b File=/dev/nvidia[0-1]\nNodeName=n1 Name=gpu Type=A File=/dev/nvidia[2-4]\n\
             Name=gpu Type=b File=/dev/nvidia9\nName=gpu Count=2\n",
        );
        let of = |counts: &[(Option<&str>, u64)]| {
            let counts: Vec<GpuCount> = counts
                .iter()
                .map(|(gres_type, count)| GpuCount {
                    gres_type: gres_type.map(str::to_owned),
                    count: *count,
                })
                .collect();
            let shares = gpus_of(&counts, conf.of_node("n1"));
            let shown = shares.iter().map(|share| {
                let first = share.record.files.first();
                let minor = first.map_or("none", |file| &file["/dev/nvidia".len()..]);
                format!("{minor}x{}", share.devices)
            });
            shown.collect::<Vec<_>>().join(" ")
        };
        // Lines for all nodes come before those that name some.
        assert_eq!(of(&[(Some("a"), 2), (Some("b"), 3)]), "2x2 9x1 0x2");
        assert_eq!(of(&[(Some("b"), 2)]), "9x1 0x1");
        assert_eq!(of(&[(None, 7)]), "9x1 nonex2 0x2 2x2");
        assert_eq!(of(&[(None, 1), (Some("a"), 3)]), "2x3");
        assert_eq!(of(&[(Some("c"), 3)]), "");
    }
}
