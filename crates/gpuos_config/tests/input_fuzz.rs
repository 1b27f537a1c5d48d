//! The fuzz targets of `tests/fuzz` over seeded mutations of good and bad texts: a bounded run
//! for the stable compiler, the same on every machine.

use crate::random::Random;
use crate::targets;

/// Texts tried for each target.
const ROUNDS: u32 = 4000;

/// Pieces that parsers of many kinds stumble over.
const PIECES: &[&str] = &[
    "",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    ",",
    ":",
    "=",
    "-",
    "\"",
    "'",
    "#",
    "\\",
    "\n",
    "\t",
    " ",
    "0",
    "1",
    "-1",
    "64",
    "65535",
    "99999999999999999999",
    "1e400",
    "nan",
    "inf",
    "true",
    "null",
    "~",
    "&a",
    "*a",
    "!!x",
    "|",
    ">",
    "---",
    "...",
    "%",
    "ä",
    "\u{0}",
    "\u{feff}",
    "\u{2028}",
    "n[1-3]",
    "n[1-",
    "gpu:",
    "K",
    "P",
    "none",
    "leaf",
    "required",
    "any",
];

fn mutate(random: &mut Random, seeds: &[&str]) -> String {
    let mut text: Vec<char> = random.pick(seeds).chars().collect();
    // One change more often than many: most texts should still reach the checks of meaning.
    for _ in 0..=random.index(3) * random.index(3) {
        let at = random.index(text.len() + 1);
        let end = (at + 1 + random.index(12)).min(text.len());
        match random.index(8) {
            0 if at < end => drop(text.drain(at..end)),
            1 => {
                let piece: Vec<char> = random.pick(PIECES).chars().collect();
                text.splice(at..at, piece);
            }
            2 if at < end => {
                let copy: Vec<char> = text[at..end].to_vec();
                text.splice(at..at, copy);
            }
            3 if at < text.len() => text[at] = (32 + random.index(96) as u8) as char,
            4 => {
                let other: Vec<char> = random.pick(seeds).chars().collect();
                let from = random.index(other.len() + 1);
                text.truncate(at);
                text.extend(&other[from..]);
            }
            5 => {
                let piece = random.pick(PIECES).repeat(1 + random.index(40));
                text.splice(at..at, piece.chars());
            }
            // Another number: what parses stays right in form and may be wrong in meaning.
            _ => {
                let digits = (0..text.len()).filter(|&at| text[at].is_ascii_digit());
                let digits: Vec<usize> = digits.collect();
                if let Some(&at) = digits.get(random.index(digits.len())) {
                    text[at] = (b'0' + random.index(10) as u8) as char;
                }
            }
        }
    }
    text.into_iter().collect()
}

fn run(target: fn(&str), seeds: &[&str]) {
    seeds.iter().for_each(|seed| target(seed));
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for _ in 0..ROUNDS {
        let text = mutate(&mut random, seeds);
        if let Err(panic) = std::panic::catch_unwind(|| target(&text)) {
            eprintln!("the input was {text:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn hostlists() {
    run(
        targets::hostlist,
        &[
            "n[001-004,7],gpu-[1-2]-a",
            "a,b c",
            "r[1-2]n[1-9]",
            "n[08-12]x",
            "",
            "n9,n10,n011",
        ],
    );
}

#[test]
fn options() {
    run(
        targets::options,
        &[
            "leaf:required",
            "node",
            "pack",
            "affinity:alice,12_3",
            "anti-affinity:bob",
            "off",
            "gpuos-topology=leaf",
            "tp8:pp4:dp16",
            "dp6:cp2:ep4:tp1",
            "gpuos-shape=tp2:dp2",
            "communication",
            "gpuos_placement=spread",
            "best-fit",
        ],
    );
}

#[test]
fn gres_strings() {
    run(
        targets::gres,
        &[
            "gres:gpu:h100:4",
            "gres/gpu:2,license/x:1",
            "gpu=2",
            "gpu:h100:8(S:0-1),shard:1K",
            "h100:2,a100:1",
            "4",
            "none",
        ],
    );
}

#[test]
fn configs() {
    let sample = include_str!("../../../packaging/gpuos.toml.sample");
    let comment =
        |rest: &str| rest.starts_with(' ') && !rest.starts_with("  \"") && !rest.starts_with(" {");
    let keys: String = sample
        .lines()
        .map(|line| line.strip_prefix('#').unwrap_or(line))
        .filter(|line| !comment(line))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(gpuos_config::gpuos_toml::Config::parse(&keys, "sample").is_ok());
    let mut seeds = vec![
        "[slurm]\nsteer = true\nattempts = 3\n[policy]\nplacement = \"pack\"\n",
        "[[node-type]]\nname = \"a\"\nbase = \"dgx-h100\"\ngpus = 4\n[[nodes]]\nmatch = \"n[1-3]\"\ntype = \"a\"\n",
        "[[node-type]]\nname = \"p\"\ngpus = 4\nnvlinks = 4\nnvlink-pairs = [[0, 1], [2, 3]]\n\
         pcie-switches = [[0, 1, 2]]\n[[node-type.nic]]\nname = \"m\"\ngbps = 25\nnear = [0]\n",
        "[[node-type]]\nname = \"m\"\ngpus = 2\nlinks = [\"X NV4\", \"NV4 X\"]\nnuma = [0, 1]\n",
        "[[fabric.level]]\nname = \"nvlink\"\n[[fabric.level]]\nname = \"leaf\"\ngbps = 50\n\
         [[fabric.switch]]\nname = \"r\"\nlevel = \"nvlink\"\nnodes = \"n[0-3]\"\n\
         [[fabric.switch]]\nname = \"l\"\nlevel = \"leaf\"\nswitches = [\"r\"]\n",
    ];
    seeds.push(
        "[[fabric.level]]\nname = \"nvlink\"\n\
         [[fabric.switch]]\nname = \"r1\"\nlevel = \"nvlink\"\nnodes = \"n[5-6]\"\n\
         [[fabric.switch]]\nname = \"r2\"\nlevel = \"nvlink\"\nnodes = \"n[12-13]\"\n",
    );
    seeds.extend([
        "[[fabric.net]]\nname = \"a\"\nkind = \"fat-tree\"\nnodes = \"n[0-7]\"\nnodes-per-switch = 2\n\
         fanout = [2, 2]\noversubscription = [1, 2.5]\nborder-gbps = 9\n\
         [[fabric.net]]\nname = \"b\"\nkind = \"torus\"\nnodes = \"n[8-15]\"\nsize = [2, 4]\nswitch-gbps = 25\n",
        "[[fabric.net]]\nname = \"d\"\nkind = \"dragonfly\"\nnodes = \"n[0-15]\"\ngroups = 2\n\
         switches-per-group = 4\nnodes-per-switch = 2\nglobal-links = 3\nglobal-gbps = 25\n\
         [[fabric.net]]\nname = \"v\"\nkind = \"nvlink\"\nnodes = \"n[0-15]\"\nnodes-per-switch = 4\n",
        "[[fabric.net]]\nname = \"g\"\nkind = \"graph\"\n[[fabric.net.switch]]\nname = \"a\"\nnodes = \"n[0-7]\"\n\
         rail = 1\n[[fabric.net.switch]]\nname = \"b\"\nnodes = \"n[4-9]\"\n[[fabric.net.switch]]\nname = \"c\"\n\
         [[fabric.net.link]]\nbetween = [\"a\", \"b\"]\ngbps = 50\nlinks = 2\n",
        "[[fabric.net]]\nname = \"h\"\nkind = \"hypercube\"\nnodes = \"n[0-15]\"\ndimensions = 4\n",
        "[[fabric.level]]\nname = \"leaf\"\nuplinks = 4\nuplink-gbps = 50\nrails = true\n\
         [[fabric.switch]]\nname = \"l\"\nlevel = \"leaf\"\nnodes = \"n[0-3]\"\n",
    ]);
    seeds.push(&keys);
    run(targets::config, &seeds);
}

#[test]
fn topology_confs() {
    run(
        targets::topology_conf,
        &[
            "SwitchName=s0 Nodes=n[0-5]\nSwitchName=s1 Nodes=n[6-11] # x\nSwitchName=s2 Switches=s[0-1]\n",
            "BlockName=b1 Nodes=n[0-7]\nBlockName=b2 \\\n Nodes=\"n[8-15]\"\nBlockSizes=8,16\n",
            "SwitchName=a Switches=b\nSwitchName=b Nodes=n1\nSwitchName=c Switches=a LinkSpeed=1\n",
            "RingName=r Nodes=n[0-3]\n",
        ],
    );
}

#[test]
fn topology_yamls() {
    run(
        targets::topology_yaml,
        &[
            "---\n- topology: t\n  cluster_default: true\n  tree:\n    switches:\n\
             \x20     - switch: r\n        children: s[1-2]\n      - switch: s1\n        nodes: n[0-7]\n\
             \x20     - switch: s2\n        nodes: [n8, n9]\n",
            "- topology: b\n  block:\n    block_sizes: [4]\n    blocks:\n    - block: b1\n      nodes: n[0-3]\n",
            "- {topology: f, flat: true}\n- {topology: \"g\", tree: {switches: [{switch: a, nodes: n1}]}}\n",
            "- topology: |\n    long\n  ring:\n    rings: &x\n    - ring: *x\n",
        ],
    );
}

#[test]
fn notes() {
    run(
        targets::note,
        &[
            "gpuos: level=leaf domain=l3 wish=leaf:required bus=50 lost=0.5 nodes=9 domains=2 try=1 gpus=n[1-7]:0-7,n8:0,2-3,x:-,+4",
            "other text | gpuos: level=node gpus=n1:0-63",
            "gpuos: level=any",
        ],
    );
}

#[test]
fn records() {
    let seeds = [
        "gpuosrec",
        "aAzZ0123456789 the bytes go over a ring of decisions",
        "\u{1}\u{2}",
    ];
    run(|text| targets::record(text.as_bytes()), &seeds);
}

#[test]
fn slurm_confs() {
    run(
        targets::slurm_conf,
        &[
            "NodeName=DEFAULT Sockets=2 CoresPerSocket=8\nNodeName=n[1-4] Gres=gpu:h100:8,shard:8 \\\n CPUs=16\n",
            "NodeName=n1 Gres=gpu:a100:4(S:0-1) Boards=1 SocketsPerBoard=2\nInclude x.conf\nMaxNodeCount=4\n",
        ],
    );
}

#[test]
fn health_rules() {
    run(
        targets::health,
        &[
            "[health]\nreturns = 3\nsettle = \"10s\"\n",
            "[[health.rule]]\nname = \"xid-79\"\naction = \"drain-gpu\"\n",
            "[[health.rule]]\nname = \"very-many-replays\"\non = \"pcie-replays\"\nthreshold = 1000\nwithin = \"10m\"\n\
             action = \"drain-gpu\"\njobs = \"run-out\"\nthen = \"reset\"\n",
            "[[health.rule]]\nname = \"a\"\nxid = 9999\nthreshold = 99999999999\nwithin = \"30d\"\naction = \"requeue\"\n",
        ],
    );
}

#[test]
fn parts_of_extra() {
    run(
        targets::extra,
        &[
            "rack=7 [gpuos:1 out=2,5 degraded=3]",
            "[gpuos:1 out=0] row=2",
            "[gpuos:1 degraded=63",
            "[gpu[gpuos:1 out=1]os:1 out=2]",
            "[gpuos:2 out=1] [gpuos:1 out=1]",
            "",
        ],
    );
}

#[test]
fn lines_of_the_socket() {
    run(
        targets::wire,
        &[
            "{\"ask\":\"hello\",\"protocol\":1,\"client\":\"x\"}\n{\"ask\":\"status\"}\n",
            "{\"ask\":\"admin\",\"verb\":\"drain\",\"gpus\":[5],\"reason\":\"loud\",\"force\":true}\n",
            "{\"ask\":\"step-start\",\"id\":{\"job\":7,\"step\":0},\"uid\":1000,\"gpus\":[0,1]}\n",
            "{\"ask\":\"audit\",\"lines\":20}\n\n{\"ask\":\"reload\"}",
        ],
    );
}
