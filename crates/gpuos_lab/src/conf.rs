//! The configuration files of a lab.

use std::net::Ipv4Addr;

use gpuos_model::cluster::{Link, NodeType};

use crate::accounting;
use crate::error::LabError;
use crate::install::Install;
use crate::mig;
use crate::node_type;
use crate::spec::{LabSpec, Select};
use crate::store::Record;
use crate::sys::short_hostname;

/// Keys that may stand in slurm.conf more than once.
const MANY: [&str; 5] = [
    "nodename",
    "partitionname",
    "nodeset",
    "downnodes",
    "switchname",
];

/// slurm.conf with the line of each key of `extra` replaced or added.
pub(crate) fn slurm_conf(record: &Record, install: &Install) -> Result<String, LabError> {
    let spec = &record.spec;
    let dir = record.dir.display();
    let own = install.loopback();
    let address = own.unwrap_or(Ipv4Addr::LOCALHOST);
    let mut lines = vec![
        format!("ClusterName={}", spec.name),
        format!("SlurmctldHost={}({address})", short_hostname()),
        format!("SlurmctldPort={}", record.port),
        "AuthType=auth/munge".to_string(),
        format!("AuthInfo=socket={dir}/munge/socket"),
        "SlurmUser=root".to_string(),
        "SlurmdUser=root".to_string(),
        format!("StateSaveLocation={dir}/state"),
        format!("SlurmdSpoolDir={dir}/spool/%n"),
        format!("SlurmctldPidFile={dir}/run/slurmctld.pid"),
        format!("SlurmdPidFile={dir}/run/slurmd.%n.pid"),
        format!("SlurmctldLogFile={dir}/log/slurmctld.log"),
        format!("SlurmdLogFile={dir}/log/slurmd.%n.log"),
        "SlurmctldDebug=verbose".to_string(),
        "SlurmdDebug=verbose".to_string(),
        "MpiDefault=none".to_string(),
        "SchedulerType=sched/backfill".to_string(),
        // Jobs start within a second of their submission (within 3 s of slurmctld's start).
        "SchedulerParameters=batch_sched_delay=0,bf_interval=5,sched_interval=5".to_string(),
        "SelectTypeParameters=CR_Core_Memory".to_string(),
        "AccountingStorageType=accounting_storage/none".to_string(),
        "JobAcctGatherType=jobacct_gather/none".to_string(),
        "JobCompType=jobcomp/filetxt".to_string(),
        format!("JobCompLoc={dir}/log/jobcomp.log"),
        format!("GresTypes={}", gres_types(spec)),
        // slurmds report the node type's sockets, cores and memory, not this machine's.
        "SlurmdParameters=config_overrides".to_string(),
        "DefMemPerCPU=16".to_string(),
        "ReturnToService=2".to_string(),
        "SlurmctldTimeout=60".to_string(),
        "SlurmdTimeout=60".to_string(),
        "KillWait=2".to_string(),
        "UnkillableStepTimeout=60".to_string(),
        // On a busy machine a test comes late to ask for a job that is over.
        "MinJobAge=3600".to_string(),
        "InactiveLimit=0".to_string(),
        "TreeWidth=1000".to_string(),
        "MaxArraySize=10001".to_string(),
        "MaxJobCount=100000".to_string(),
        format!("PlugStackConfig={dir}/etc/plugstack.conf"),
    ];
    if own.is_some() {
        // A lab is nobody else's business.
        lines.push("CommunicationParameters=NoCtldInAddrAny,NoInAddrAny".to_string());
    }
    if record.cgroup {
        lines.push("ProctrackType=proctrack/cgroup".to_string());
        lines.push("TaskPlugin=task/cgroup".to_string());
    } else {
        lines.push("ProctrackType=proctrack/linuxproc".to_string());
        lines.push("TaskPlugin=task/none".to_string());
    }
    if spec.topology_conf.is_some() || spec.topology_yaml.is_some() {
        lines.push("TopologyPlugin=topology/tree".to_string());
    }
    let mut text = lines.join("\n") + "\n";
    text = set_key(&text, "SelectType", Some(spec.select.select_type()));
    text = set_key(
        &text,
        "PluginDir",
        Some(&plugin_path(record, install, &spec.select)),
    );
    if spec.accounting {
        for (key, value) in accounting::slurm_conf_keys(record, address) {
            text = set_key(&text, key, Some(&value));
        }
    }
    if spec.job_submit {
        text = set_key(&text, "JobSubmitPlugins", Some("gpuos"));
    }
    text += &node_lines(record, address)?;
    text += "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
    for line in &spec.slurm_conf_extra {
        text = add_line(&text, line);
    }
    Ok(text)
}

fn gres_types(spec: &LabSpec) -> String {
    let slices = (!spec.mig.is_empty()).then_some("gpuos");
    let shards = (spec.shards > 0).then_some("shard");
    let nvme = (spec.nvme > 0).then_some("nvme");
    let all = ["gpu"].into_iter().chain(slices).chain(shards).chain(nvme);
    all.collect::<Vec<_>>().join(",")
}

/// Shards of all whole GPUs of a node; Slurm deals them out evenly.
fn shards(spec: &LabSpec, node_type: &NodeType) -> usize {
    spec.shards as usize * mig::whole(spec, node_type).len()
}

/// The value of `PluginDir`.
pub(crate) fn plugin_path(record: &Record, install: &Install, select: &Select) -> String {
    let stock = install.plugin_dir.display();
    match select.plugins() {
        None => stock.to_string(),
        Some((_, true)) => format!("{}:{stock}", record.path("lib/gpuos").display()),
        Some((_, false)) => record.path("lib/slurm").display().to_string(),
    }
}

fn node_lines(record: &Record, address: Ipv4Addr) -> Result<String, LabError> {
    let spec = &record.spec;
    let mut text = String::new();
    let mut port = record.port;
    for (name, node_type) in typed_nodes(record) {
        port += 1;
        let hardware = match spec.hardware.get(&name) {
            Some(own) => own.clone(),
            None => hardware(spec, &node_type::find(spec, node_type)?)?,
        };
        text += &format!(
            "NodeName={name} NodeHostname=localhost NodeAddr={address} Port={port} {hardware} State=UNKNOWN {}\n",
            spec.node_extra
        );
    }
    if let Some(count) = spec.cloud_nodes.filter(|count| *count > 0) {
        text = set_key(&text, "SuspendProgram", Some("/bin/true"));
        text = set_key(&text, "ResumeProgram", Some("/bin/true"));
        text = set_key(&text, "SuspendTime", Some("86400"));
        text = set_key(&text, "ResumeTimeout", Some("65000"));
        text += &format!(
            "NodeName=c[1-{count}] NodeAddr={address} {} State=CLOUD {}\n",
            hardware(spec, &node_type::find(spec, &spec.node_type)?)?,
            spec.node_extra
        );
    }
    Ok(text)
}

/// Nodes with a slurmd, each with the name of its type.
fn typed_nodes(record: &Record) -> Vec<(String, &str)> {
    let spec = &record.spec;
    let first = spec.nodes.names().into_iter();
    let mut all: Vec<_> = first.map(|n| (n, spec.node_type.as_str())).collect();
    for group in &spec.more_nodes {
        all.extend(
            group
                .names
                .iter()
                .map(|n| (n.clone(), group.node_type.as_str())),
        );
    }
    all
}

fn hardware(spec: &LabSpec, node_type: &NodeType) -> Result<String, LabError> {
    let mut text = format!(
        "Sockets={} CoresPerSocket={} ThreadsPerCore=1 RealMemory={}",
        node_type.sockets, node_type.cores_per_socket, node_type.memory_mib
    );
    let mut gres = Vec::new();
    match (mig::whole(spec, node_type).len(), &node_type.gres_type) {
        (0, _) => {}
        (gpus, kind) if kind.is_empty() => gres.push(format!("gpu:{gpus}")),
        (gpus, kind) => gres.push(format!("gpu:{kind}:{gpus}")),
    }
    if let Some(board) = mig::board(spec, node_type)? {
        let slices = spec.mig.len() * board.slices();
        gres.push(format!("gpuos:{}:{slices}", board.name));
    }
    if let shards @ 1.. = shards(spec, node_type) {
        gres.push(format!("shard:{shards}"));
    }
    if let nvme @ 1.. = spec.nvme {
        gres.push(format!("nvme:{nvme}"));
    }
    if !gres.is_empty() {
        text += &format!(" Gres={}", gres.join(","));
    }
    Ok(text)
}

/// gres.conf.
pub(crate) fn gres_conf(record: &Record) -> Result<String, LabError> {
    let spec = &record.spec;
    if let Some(own) = &spec.gres_conf {
        return Ok(own.replace("DEVICES", &record.device_dir().display().to_string()));
    }
    let mut text = "AutoDetect=off\n".to_string();
    let mut groups: Vec<(String, &str)> = typed_nodes(record);
    if let Some(count) = spec.cloud_nodes.filter(|count| *count > 0) {
        groups.push((format!("c[1-{count}]"), &spec.node_type));
    }
    for (nodes, name) in groups {
        let node_type = node_type::find(spec, name)?;
        let whole = mig::whole(spec, &node_type);
        for &gpu in &whole {
            text += &format!("NodeName={nodes} Name=gpu");
            if !node_type.gres_type.is_empty() {
                text += &format!(" Type={}", node_type.gres_type);
            }
            text += &format!(
                " File={}",
                record.device_dir().join(format!("nvidia{gpu}")).display()
            );
            text += &cores(spec, &node_type, gpu);
            if let Some(links) = links(&node_type, &whole, gpu) {
                text += &format!(" Links={links}");
            }
            text += "\n";
        }
        if let shards @ 1.. = shards(spec, &node_type) {
            text += &format!("NodeName={nodes} Name=shard Count={shards}\n");
        }
        if let nvme @ 1.. = spec.nvme {
            text += &format!("NodeName={nodes} Name=nvme Count={nvme} Flags=CountOnly\n");
        }
        let Some(board) = mig::board(spec, &node_type)? else {
            continue;
        };
        for gpu in spec.mig.iter() {
            let file = mig::slices_dir(record, &nodes).join(mig::slice_file(gpu));
            text += &format!(
                "NodeName={nodes} Name=gpuos Type={} File={}[0-{}]{}\n",
                board.name,
                file.display(),
                board.slices() - 1,
                cores(spec, &node_type, gpu)
            );
        }
    }
    Ok(text)
}

/// `Cores=` of a GPU: those of its socket.
fn cores(spec: &LabSpec, node_type: &NodeType, gpu: usize) -> String {
    if !spec.gres_cores {
        return String::new();
    }
    let per_socket = u32::from(node_type.cores_per_socket);
    let first = u32::from(socket_of(node_type, gpu)) * per_socket;
    format!(" Cores={}-{}", first, first + per_socket - 1)
}

/// Socket of a GPU: its NUMA node, where sockets may have several NUMA nodes each.
fn socket_of(node_type: &NodeType, gpu: usize) -> u16 {
    let sockets = node_type.sockets.max(1);
    let adapters = node_type.nics.iter().map(|nic| nic.numa);
    let top = node_type.numa.iter().copied().chain(adapters).max();
    let per_socket = (top.unwrap_or(0) + 1).div_ceil(sockets);
    let numa = node_type.numa.get(gpu).copied().unwrap_or(0);
    (numa / per_socket).min(sockets - 1)
}

/// `Links=` of a GPU: NVLinks to each other one of `all`, as NVML reports them. Through NVSwitch it
/// reports none, and then there is no such key.
fn links(node_type: &NodeType, all: &[usize], gpu: usize) -> Option<String> {
    if node_type.nvswitch {
        return None;
    }
    let count = |other: usize| match node_type.link(gpu, other) {
        Link::Same => -1,
        Link::Nv(n) => i32::from(n),
        _ => 0,
    };
    let row: Vec<i32> = all.iter().copied().map(count).collect();
    let nvlink = |a: usize, b: usize| matches!(node_type.link(a, b), Link::Nv(_));
    let any = all.iter().any(|&a| all.iter().any(|&b| nvlink(a, b)));
    any.then(|| row.iter().map(i32::to_string).collect::<Vec<_>>().join(","))
}

/// cgroup.conf.
pub(crate) fn cgroup_conf(record: &Record, install: &Install) -> String {
    if record.cgroup {
        format!(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint={}\nConstrainDevices=yes\n",
            record.path("cgroup").display()
        )
    } else if install.version.as_str() < "24.05" {
        // "disabled" came with 24.05; before, v1 is only loaded and never used.
        "CgroupPlugin=cgroup/v1\n".to_string()
    } else {
        "CgroupPlugin=disabled\n".to_string()
    }
}

/// Sets, replaces or (with `None`) removes the line of a key. Keys ignore case.
pub fn set_key(text: &str, key: &str, value: Option<&str>) -> String {
    let is_key = |line: &str| {
        line.split_once('=')
            .is_some_and(|(k, _)| k.trim().eq_ignore_ascii_case(key))
    };
    let mut out: Vec<String> = Vec::new();
    let mut done = false;
    for line in text.lines() {
        match value {
            _ if !is_key(line) => out.push(line.to_string()),
            Some(value) if !done => {
                out.push(format!("{key}={value}"));
                done = true;
            }
            _ => {}
        }
    }
    if let (Some(value), false) = (value, done) {
        // In front: lines of a key must not come after NodeName lines that depend on it.
        out.insert(0, format!("{key}={value}"));
    }
    out.join("\n") + "\n"
}

/// Adds a `Key=Value` line; replaces that of the same key, or for NodeName and the like that
/// of the same key and name. A line `Key=` takes the key away.
fn add_line(text: &str, line: &str) -> String {
    let Some((key, value)) = line.split_once('=') else {
        return text.to_string();
    };
    let key = key.trim();
    if !MANY.contains(&key.to_ascii_lowercase().as_str()) {
        return set_key(text, key, Some(value).filter(|value| !value.is_empty()));
    }
    let name = value.split_ascii_whitespace().next().unwrap_or_default();
    let same = |old: &&str| {
        old.split_once('=').is_some_and(|(k, v)| {
            k.trim().eq_ignore_ascii_case(key) && v.split_ascii_whitespace().next() == Some(name)
        })
    };
    let mut out: String = text
        .lines()
        .filter(|old| !same(old))
        .map(|old| format!("{old}\n"))
        .collect();
    out += line;
    out + "\n"
}

/// The hosts file of a lab with its own root: its own name and nothing of the network's.
pub(crate) fn hosts() -> String {
    format!("127.0.0.1 localhost {}\n::1 localhost\n", short_hostname())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::spec::NodeGroup;
    use gpuos_model::gpuset::GpuSet;
    use std::path::PathBuf;

    fn record(spec: LabSpec) -> Record {
        Record {
            format: 1,
            id: "0123456789ab".to_string(),
            dir: PathBuf::from("/nowhere/lab"),
            owner: None,
            created: 0,
            port: 20_000,
            cgroup: false,
            slurm: "24.11.5".to_string(),
            root: None,
            spec,
        }
    }

    fn install() -> Install {
        Install {
            root: Some(PathBuf::from("/suite")),
            path: "/usr/bin".to_string(),
            plugin_dir: PathBuf::from("/usr/lib/slurm"),
            version: "24.11.5".to_string(),
        }
    }

    fn lines<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
        text.lines().filter(|l| l.starts_with(start)).collect()
    }

    #[test]
    fn pairs_have_links_and_cores_and_switched_gpus_no_links() {
        let mixed = record(LabSpec {
            nodes: 1.into(),
            node_type: "pairs-8".into(),
            more_nodes: vec![NodeGroup {
                names: vec!["big".into(), "bigger".into()],
                node_type: "dgx-h100".into(),
            }],
            ..LabSpec::default()
        });
        let text = gres_conf(&mixed).expect("gres.conf");
        let third = lines(&text, "NodeName=n1")[2];
        assert!(third.contains("/nvidia2 "), "{third}");
        assert!(third.contains(" Links=0,0,-1,"), "{third}");
        let last = lines(&text, "NodeName=big ")[7];
        assert!(last.ends_with(" Cores=56-111"), "{last}");
        assert_eq!(lines(&text, "NodeName=").len(), 24);
        let conf = slurm_conf(&mixed, &install()).expect("slurm.conf");
        let ports: Vec<bool> = lines(&conf, "NodeName=")
            .iter()
            .zip(["Port=20001", "Port=20002", "Port=20003"])
            .map(|(line, port)| line.contains(port))
            .collect();
        assert_eq!(ports, [true; 3]);
    }

    #[test]
    fn mig_switchable_gpus_are_in_both_gres() {
        let record = record(LabSpec {
            nodes: 1.into(),
            mig: GpuSet(0b1111_0000),
            mig_switchable: GpuSet(0b1000_0000),
            ..LabSpec::default()
        });
        let text = gres_conf(&record).expect("gres.conf");
        let all = lines(&text, "NodeName=");
        let of = |gres: &str| {
            let files = all.iter().filter(|line| line.contains(gres));
            let files = files.filter_map(|line| line.split("File=").nth(1)?.split(' ').next());
            let ends = files.filter_map(|file| file.rsplit('/').next());
            ends.collect::<Vec<_>>()
        };
        let whole = ["nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia7"];
        assert_eq!(of("Name=gpu "), whole);
        let slices = ["gpu4s[0-7]", "gpu5s[0-7]", "gpu6s[0-7]", "gpu7s[0-7]"];
        assert_eq!(of("Name=gpuos "), slices);
        let conf = slurm_conf(&record, &install()).expect("slurm.conf");
        assert!(
            conf.contains(" Gres=gpu:h100:5,gpuos:h100-80gb:32 "),
            "{conf}"
        );
    }

    #[test]
    fn stock_labs_do_not_see_the_plugins() {
        let dir = PathBuf::from("/built");
        let path = |select: &Select| {
            let spec = LabSpec {
                select: select.clone(),
                ..LabSpec::default()
            };
            let text = slurm_conf(&record(spec), &install()).expect("slurm.conf");
            let find = |key: &str| {
                lines(&text, key)[0]
                    .split_once('=')
                    .expect("=")
                    .1
                    .to_string()
            };
            (find("SelectType="), find("PluginDir="))
        };
        let stock = "/usr/lib/slurm".to_string();
        assert_eq!(
            path(&Select::Stock),
            ("select/cons_tres".into(), stock.clone())
        );
        let own = Select::Gpuos {
            plugin_dir: dir.clone(),
            own_dir: true,
        };
        let both = format!("/nowhere/lab/lib/gpuos:{stock}");
        assert_eq!(path(&own), ("select/gpuos".into(), both));
        let beside = Select::Installed {
            plugin_dir: dir,
            own_dir: false,
        };
        let merged = "/nowhere/lab/lib/slurm".to_string();
        assert_eq!(path(&beside), ("select/cons_tres".into(), merged));
    }

    #[test]
    fn extra_lines_replace_the_labs_own() {
        let spec = LabSpec {
            slurm_conf_extra: vec![
                "schedulerparameters=defer".into(),
                "MinJobAge=7".into(),
                "PartitionName=all Nodes=n1 Default=YES".into(),
                "PartitionName=low Nodes=ALL".into(),
            ],
            ..LabSpec::default()
        };
        let text = slurm_conf(&record(spec), &install()).expect("slurm.conf");
        assert_eq!(lines(&text, "SchedulerParameters"), Vec::<&str>::new());
        assert_eq!(
            lines(&text, "schedulerparameters"),
            ["schedulerparameters=defer"]
        );
        assert_eq!(lines(&text, "MinJobAge"), ["MinJobAge=7"]);
        assert_eq!(
            lines(&text, "PartitionName"),
            [
                "PartitionName=all Nodes=n1 Default=YES",
                "PartitionName=low Nodes=ALL"
            ]
        );
    }

    #[test]
    fn cgroups_are_disabled_where_slurm_can() {
        let plugin = |version: &str| {
            let install = Install {
                version: version.to_string(),
                ..install()
            };
            cgroup_conf(&record(LabSpec::default()), &install)
        };
        for old in ["22.05.8", "23.02.5", "23.11.0", "23.11.11"] {
            assert_eq!(plugin(old), "CgroupPlugin=cgroup/v1\n", "{old}");
        }
        for new in ["24.05.0", "24.11.5", "26.05.5"] {
            assert_eq!(plugin(new), "CgroupPlugin=disabled\n", "{new}");
        }
    }

    proptest! {
        #[test]
        fn a_key_that_was_set_stands_once(text in "((MinJobAge|KillWait|# x) ?=? ?[0-9]{0,3}\n){0,6}") {
            let set = set_key(&text, "KillWait", Some("5"));
            let found: Vec<&str> = set
                .lines()
                .filter(|l| l.split_once('=').is_some_and(|(k, _)| k.trim() == "KillWait"))
                .collect();
            prop_assert_eq!(found, ["KillWait=5"]);
            let gone = set_key(&set, "KILLWAIT", None);
            prop_assert!(!gone.contains("KillWait=5"));
        }
    }
}
