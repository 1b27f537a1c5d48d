//! Discovery over the twin of NVML and a recorded `/sys`.

use gpuos_config::gpuos_toml::Config;
use gpuos_host::Recorded as Files;
use gpuos_host::hardware::discover::{
    NodeHardware, Sysfs, described, differences, discover, mig_differences, mig_modes, print,
    shipped,
};
use gpuos_host::hardware::nvml::{Error, GpuLibrary, LinkPeer, Twin};
use gpuos_host::slurm::numbering;
use gpuos_model::cluster::{Link, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::mig::Geometry;
use gpuos_model::node_types::{builtin, by_name};
use gpuos_workload::numbering::GpuNumbering;

use crate::recorded::Recorded;

struct Node {
    twin: Twin,
    folder: tempfile::TempDir,
    tree: Recorded,
}

fn node(node_type: &NodeType) -> Node {
    let twin = Twin::of(node_type);
    let folder = tempfile::tempdir().unwrap();
    let count = twin.count().unwrap();
    let addresses: Vec<String> = (0..count)
        .map(|gpu| twin.identity(gpu).unwrap().pci)
        .collect();
    let tree = Recorded::of(folder.path(), node_type, &addresses);
    Node { twin, folder, tree }
}

impl Node {
    fn found(&self) -> NodeHardware {
        self.found_in(&GpuNumbering::identity())
    }

    fn found_in(&self, order: &GpuNumbering) -> NodeHardware {
        discover(&self.twin, &Sysfs::at(self.folder.path()), order).unwrap()
    }
}

/// The type that the printed stanza gives, read by gpuos's own parser.
fn parsed(found: &NodeHardware) -> NodeType {
    let printed = print(found, "n1").unwrap();
    let config = Config::parse(&printed.gpuos_toml, "printed").unwrap();
    (*config.node_type(&printed.type_name.unwrap()).unwrap()).clone()
}

#[test]
fn every_shipped_type_is_known_again() {
    for node_type in builtin() {
        let node = node(&node_type);
        let found = node.found();
        assert_eq!(found.notes, Vec::<String>::new(), "{}", node_type.name);
        let mine = described(&found).unwrap();
        assert_eq!(differences(&node_type, &mine), [], "{}", node_type.name);
        assert_eq!(shipped(&mine).unwrap().name, node_type.name);
        let printed = print(&found, "n1").unwrap();
        assert!(printed.shipped && !printed.gpuos_toml.contains("[[node-type]]"));
        assert_eq!(parsed(&found), node_type);
        let gpus = format!(
            "NodeName=n1 Gres=gpu:{}:{} Sockets={}",
            node_type.gres_type, node_type.gpus, node_type.sockets
        );
        assert!(printed.slurm_conf.contains(&gpus), "{}", printed.slurm_conf);
    }
}

#[test]
fn what_differs_from_a_shipped_type_gets_a_stanza_that_parses_to_it() {
    let mut own = by_name("dgx-h100").unwrap();
    for (gpu, nic) in own.nics.iter_mut().enumerate() {
        nic.name = format!("rdma{gpu}");
    }
    own.cores_per_socket = 48;
    let found = node(&own).found();
    let mine = described(&found).unwrap();
    assert_eq!(shipped(&mine), None);
    let printed = print(&found, "n[1-4]").unwrap();
    assert!(
        printed.gpuos_toml.contains("base = \"dgx-h100\""),
        "{}",
        printed.gpuos_toml
    );
    let read = parsed(&found);
    assert_eq!(read, mine);
    assert_eq!(
        (read.nics[7].name.as_str(), read.cores_per_socket),
        ("rdma7", 48)
    );
    // The rates come from the base.
    assert_eq!((read.nvlink_gbps, read.figures.gpu_watts), (20.6, 700));
}

#[test]
fn unknown_gpus_and_bridges_parse_too() {
    let mut own = by_name("pairs-8").unwrap();
    own.gpu = "NVIDIA \"X\" 77b".into();
    own.nics.clear();
    let found = node(&own).found();
    let read = parsed(&found);
    assert_eq!(read, described(&found).unwrap());
    assert_eq!(read.gres_type, "77b");
    assert_eq!(read.links, own.links);
    let printed = print(&found, "n1").unwrap();
    let first = printed.gres_conf.lines().next().unwrap();
    assert!(first.contains("File=/dev/nvidia0 Cores=0-"), "{first}");
    assert!(first.contains(" Links=-1,"), "{first}");
    assert_eq!(printed.gres_conf.lines().count(), 8);
}

#[test]
fn gres_conf_names_the_cores_beside_the_gpus() {
    let found = node(&by_name("dgx-h100").unwrap()).found();
    let printed = print(&found, "n1").unwrap();
    assert_eq!(
        printed.gres_conf,
        "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55\n\
         NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=56-111\n"
    );
    // Slurm's files as printed give the same GPUs back.
    let files = Files::default().file("/etc/slurm/gres.conf", &printed.gres_conf);
    let order = numbering::read(&files, "/etc/slurm".as_ref(), "n1").unwrap();
    assert_eq!(
        (order.index(0), order.index(7), order.index(8)),
        (Some(0), Some(7), None)
    );
}

#[test]
fn order_is_that_of_gres_conf() {
    let node = node(&by_name("a100-pairs-4").unwrap());
    let files = Files::default().file(
        "/etc/slurm/gres.conf",
        "Name=gpu File=/dev/nvidia[0,2,1,3]\n",
    );
    let order = numbering::read(&files, "/etc/slurm".as_ref(), "n1").unwrap();
    let found = node.found_in(&order);
    let mine = described(&found).unwrap();
    assert!(matches!(mine.link(0, 2), Link::Nv(_)) && !matches!(mine.link(0, 1), Link::Nv(_)));
    let configured = by_name("a100-pairs-4").unwrap();
    let all = differences(&configured, &mine);
    assert_eq!(all[0].key, "links");
    assert!(all[0].line.starts_with("links = [\"X "), "{}", all[0].line);
}

#[test]
fn slurm_sorts_by_the_bus_where_it_finds_gpus_itself() {
    let node = node(&by_name("a100-pairs-4").unwrap());
    let files = Files::default().file(
        "/etc/slurm/gres.conf",
        "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0,2,1,3]\n",
    );
    let order = numbering::read(&files, "/etc/slurm".as_ref(), "n1").unwrap();
    let mine = described(&node.found_in(&order)).unwrap();
    assert!(matches!(mine.link(0, 1), Link::Nv(_)) && !matches!(mine.link(0, 2), Link::Nv(_)));
}

#[test]
fn differences_name_the_line_to_write() {
    let configured = by_name("dgx-h100").unwrap();
    let node = node(&configured);
    node.tree.down("mlx5_0");
    let mine = described(&node.found()).unwrap();
    let all = differences(&configured, &mine);
    assert_eq!(all.iter().map(|d| d.key).collect::<Vec<_>>(), ["nic"]);
    assert!(all[0].configured.starts_with("mlx5_0, ") && !all[0].found.contains("mlx5_0,"));
    // Each line can be written as it is.
    for difference in &all {
        let text = format!(
            "[[node-type]]\nname = \"own\"\nbase = \"dgx-h100\"\n{}\n",
            difference.line
        );
        let config = Config::parse(&text, "line").unwrap();
        let own = config.node_type("own").unwrap();
        assert_eq!(differences(&own, &mine), []);
    }
    for (key, wrong) in [
        (
            "numa",
            NodeType {
                numa: vec![0; 8],
                ..configured.clone()
            },
        ),
        (
            "sockets",
            NodeType {
                sockets: 1,
                ..configured.clone()
            },
        ),
        (
            "gpus",
            NodeType {
                gpus: 4,
                ..configured.clone()
            },
        ),
        (
            "memory-gib",
            NodeType {
                memory_mib: 1 << 20,
                ..configured.clone()
            },
        ),
        (
            "gpu-memory-mib",
            NodeType {
                gpu_memory_mib: 40_000,
                ..configured.clone()
            },
        ),
    ] {
        let all = differences(&wrong, &configured);
        assert!(
            all.iter().any(|d| d.key == key && d.line.starts_with(key)),
            "{key}: {all:?}"
        );
    }
}

#[test]
fn gpus_that_do_not_answer_and_links_that_are_down_are_told() {
    let node = node(&by_name("dgx-h100").unwrap());
    node.twin.change(2, |gpu| gpu.fault = Some(Error::Lost));
    node.twin.change(3, |gpu| gpu.nvlinks[5].up = false);
    let found = node.found();
    assert_eq!(found.gpus.len(), 7);
    let notes = found.notes.join("\n");
    assert!(
        notes.contains("GPU 2 of NVML is left out: the GPU is lost"),
        "{notes}"
    );
    assert!(notes.contains("1 of 18 NVLinks are down (5)"), "{notes}");
    // A link that is down is a fault, not another machine.
    assert_eq!(described(&found).unwrap().link(0, 3), Link::Nv(18));
    node.twin.fail(Some(Error::NoDriver));
    let sysfs = Sysfs::at(node.folder.path());
    assert_eq!(
        discover(&node.twin, &sysfs, &GpuNumbering::identity()),
        Err(Error::NoDriver)
    );
}

#[test]
fn without_sysfs_nvml_and_the_shipped_type_tell() {
    let twin = Twin::of(&by_name("dgx-h100").unwrap());
    let found = discover(&twin, &Sysfs::at("/nowhere"), &GpuNumbering::identity()).unwrap();
    assert_eq!(
        shipped(&described(&found).unwrap()).unwrap().name,
        "dgx-h100"
    );
    assert!(found.notes[0].starts_with("sysfs does not show these GPUs"));
    let printed = print(&found, "n1").unwrap();
    assert!(!printed.gres_conf.contains("Cores=") && printed.notes[0].contains("no Cores="));
    // A driver that cannot tell the other end of a link: the fabric says that there are switches.
    for gpu in 0..8 {
        twin.change(gpu, |gpu| {
            gpu.nvlinks
                .iter_mut()
                .for_each(|link| link.peer = LinkPeer::Unknown);
        });
    }
    let again = discover(&twin, &Sysfs::at("/nowhere"), &GpuNumbering::identity()).unwrap();
    assert_eq!(again.links, found.links);
    assert!(again.nvswitch);
}

#[test]
fn gpus_in_mig_mode_are_a_pool_beside_the_node_type() {
    let node = node(&by_name("dgx-h100").unwrap());
    let off = mig_modes(&node.found());
    assert_eq!(off, None, "boards without MIG have no mode");
    for gpu in 4..8 {
        node.twin.divide(gpu, &h100());
    }
    let found = node.found();
    assert_eq!((found.gpus.len(), found.divided.len()), (4, 4));
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    assert_eq!(mig_modes(&found).unwrap(), "MIG mode: on for 4 GPUs");
    let printed = print(&found, "n1").unwrap();
    assert_eq!(
        printed.slurm_conf.lines().collect::<Vec<_>>(),
        [
            "GresTypes=gpu,gpuos",
            "NodeName=n1 Gres=gpu:h100:4,gpuos:h100-80gb:32 Sockets=2 CoresPerSocket=56 ThreadsPerCore=2"
        ]
    );
    let gres: Vec<&str> = printed.gres_conf.lines().collect();
    assert_eq!(
        (gres.len(), gres[1]),
        (
            5,
            "NodeName=n1 Name=gpuos Type=h100-80gb File=/var/lib/gpuos/slices/gpu4s[0-7] Cores=56-111"
        )
    );
    // What is printed is what gpuos reads, and then nothing differs.
    let config = Config::parse(&printed.gpuos_toml, "printed").unwrap();
    let (pool, board) = config.mig.pool_of("n1").unwrap();
    assert_eq!((pool.gpus.0, &board.geometry), (GpuSet(0xf0), &h100()));
    assert_eq!(config.node_type("h100-x4").unwrap().gpus, 4);
    assert_eq!(mig_differences(&found, &config.mig, "n1"), []);
    // A GPU that is none of the pool, one whose mode is off, and another board.
    let said = |toml: &str| {
        let config = Config::parse(toml, "changed").unwrap();
        let all = mig_differences(&node.found(), &config.mig, "n1").into_iter();
        all.map(|(sentence, _)| sentence).collect::<Vec<_>>()
    };
    let moved = said(&printed.gpuos_toml.replace("\"4-7\"", "\"3-6\""));
    assert_eq!(
        moved,
        [
            "[[mig.pool]] has GPU 3 of n1, and the driver shows no such GPU in MIG mode",
            "GPU 7 of n1 is in MIG mode and in no [[mig.pool]]: no job gets it"
        ]
    );
    let other = said(
        &printed
            .gpuos_toml
            .replace("memory-mib = 9984", "memory-mib = 9000"),
    );
    assert_eq!(other.len(), 4, "{other:?}");
    assert!(other[0].contains("[[mig.board]] h100-80gb is not how"));
    assert_eq!(said(""), [""; 0], "MIG without a pool is somebody else's");
    // gres.conf with the GPUs as GRES gpu: they are whole GPUs, as before.
    let files = Files::default().file("/etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-7]\n");
    let order = numbering::read(&files, "/etc/slurm".as_ref(), "n1").unwrap();
    let listed = node.found_in(&order);
    assert_eq!((listed.gpus.len(), listed.divided.len()), (8, 0));
    assert!(
        listed.notes[0].contains("GPU 4 is divided"),
        "{:?}",
        listed.notes
    );
}

/// `Name=gpu Count=4` or AutoDetect=nvml, with the pool before the whole GPUs.
#[test]
fn divided_gpus_are_none_of_a_gres_that_names_no_files() {
    let node = node(&by_name("dgx-h100").unwrap());
    for gpu in 0..4 {
        node.twin.divide(gpu, &h100());
    }
    for text in ["Name=gpu Count=4\n", "AutoDetect=nvml\n", ""] {
        let files = Files::default().file("/etc/slurm/gres.conf", text);
        let order = numbering::read(&files, "/etc/slurm".as_ref(), "n1").unwrap();
        let found = node.found_in(&order);
        let minors = found.gpus.iter().map(|gpu| gpu.identity.minor);
        assert_eq!(minors.collect::<Vec<_>>(), [4, 5, 6, 7].map(Some), "{text}");
        assert_eq!(found.divided.len(), 4);
    }
}

#[test]
fn a_node_whose_gpus_are_all_divided_has_no_type() {
    let node = node(&by_name("dgx-h100").unwrap());
    for gpu in 0..8 {
        node.twin.divide(gpu, &h100());
    }
    node.twin.change(7, |gpu| {
        gpu.mig_profiles.pop();
    });
    let found = node.found();
    assert_eq!(described(&found), None);
    let printed = print(&found, "n1").unwrap();
    assert_eq!(printed.type_name, None);
    assert!(printed.slurm_conf.contains(" Gres=gpuos:h100-80gb:56 "));
    assert!(
        !printed.gpuos_toml.contains("[[nodes]]"),
        "{}",
        printed.gpuos_toml
    );
    assert!(
        printed.gpuos_toml.contains("gpus = \"0-6\""),
        "{}",
        printed.gpuos_toml
    );
    let [note] = &printed.notes[..] else {
        panic!("{:?}", printed.notes)
    };
    assert!(
        note.contains("GPU 7 of NVML") && note.contains("a node has one pool"),
        "{note}"
    );
}

/// H100 with 80 GB as the simulator's boards have it.
fn h100() -> Geometry {
    let boards = include_str!("../../gpuos_sim/data/mig/boards.json");
    let boards: Vec<serde_json::Value> = serde_json::from_str(boards).unwrap();
    let board = boards.iter().find(|board| board["name"] == "h100-80gb");
    serde_json::from_value(board.unwrap()["profiles"].clone()).unwrap()
}
