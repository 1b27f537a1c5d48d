use gpuos_config::options::OPTIONS;
use proptest::prelude::*;
use slurm_ffi::release::Release;

use super::*;

const SLURM: &str = "NodeName=h[1-4] Gres=gpu:h100:8 RealMemory=2000000\n\
    NodeName=a[1-2] Gres=gpu:a100:4 RealMemory=500000\n\
    NodeName=u1 Gres=gpu:v100:2 RealMemory=100000\n\
    NodeName=c1 RealMemory=900000\n";

/// What H100 and A100 have is said, and of V100 nothing.
const GPUOS: &str = "[memory]\noversubscribe = true\nreserve-mib = 0\n\
    [[nodes]]\nmatch = \"h[1-4]\"\ntype = \"dgx-h100\"\n\
    [[node-type]]\nname = \"small\"\ngpu = \"A100 40GB\"\ngres-type = \"a100\"\ngpus = 4\ngpu-memory-mib = 40960\n\
    [[nodes]]\nmatch = \"a[1-2]\"\ntype = \"small\"\n";

fn inventory_of(slurm: &str, gpuos: &str, counted: bool) -> Inventory {
    let site = Site::read(None, &|name| {
        Ok(match name {
            "slurm.conf" => Some(slurm.into()),
            "gpuos.toml" => Some(gpuos.into()),
            _ => None,
        })
    });
    Inventory::of(&site.unwrap(), counted)
}

fn inventory() -> Inventory {
    inventory_of(SLURM, GPUOS, true)
}

fn said(list: &[(&str, &str)]) -> JobOptions {
    let mut options = JobOptions::default();
    for (name, value) in list {
        options.set(&format!("gpuos-{name}"), value).unwrap();
    }
    options
}

fn per_job(gres: &str) -> Shape {
    Shape {
        per_job: Some(gres.into()),
        ..Shape::default()
    }
}

fn per_node(gres: &str) -> Shape {
    Shape {
        per_node: Some(gres.into()),
        ..Shape::default()
    }
}

fn of(value: &str, shape: &Shape, host: Host) -> Result<Option<Chosen>, String> {
    with(&inventory(), value, shape, host)
}

fn with(
    inventory: &Inventory,
    value: &str,
    shape: &Shape,
    host: Host,
) -> Result<Option<Chosen>, String> {
    let options = said(&[("mem", value)]);
    choose(inventory, (&options, &Sources::default()), shape, host)
        .map_err(|refusal| refusal.sentence)
}

fn raised(value: &str, shape: &Shape, host: Host) -> Option<Raised> {
    of(value, shape, host).unwrap().expect("it is taken").raised
}

#[test]
fn what_the_gpu_has_no_room_for_is_added_to_the_jobs_memory() {
    let h100 = 81_559;
    let share = 120 * 1024 - h100;
    for (shape, gpus) in [
        (per_job("gres/gpu:h100:1"), 1),
        (per_node("gres:gpu:h100:2"), 2),
        // All may come to stand on one node, but for one on each other one.
        (per_job("gres/gpu:h100:4"), 4),
        (
            Shape {
                min_nodes: 2,
                ..per_job("gres/gpu:h100:4")
            },
            3,
        ),
        (per_job("gres/gpu:h100:64"), 8),
        (
            Shape {
                min_nodes: 2,
                tasks_per_node: 4,
                per_task: Some("gres/gpu:h100:1".into()),
                ..Shape::default()
            },
            4,
        ),
        (
            Shape {
                tasks: 3,
                per_task: Some("gres/gpu:h100:2".into()),
                ..Shape::default()
            },
            6,
        ),
        (
            Shape {
                per_socket: Some("gres/gpu:h100:2".into()),
                ..Shape::default()
            },
            8,
        ),
        (
            Shape {
                exclusive: true,
                ..per_node("gres/gpu:h100:1")
            },
            8,
        ),
        // The narrower form counts where two are given.
        (
            Shape {
                per_job: Some("gres/gpu:8".into()),
                ..per_node("gres/gpu:h100:2")
            },
            2,
        ),
    ] {
        let told = raised("120G", &shape, Host::Node(16_384));
        assert_eq!(told, Some(Raised::Node(16_384 + gpus * share)), "{shape:?}");
    }
    let each = raised(
        "120G",
        &per_job("gres/gpu:h100:4"),
        Host::Gpu("gres/gpu".into(), 8192),
    );
    assert_eq!(
        each,
        Some(Raised::Gpu(format!("gres/gpu:{}", 8192 + share)))
    );
}

#[test]
fn the_smallest_gpu_that_the_job_could_get_counts() {
    let both = "NodeName=h1 Gres=gpu:h100:8 RealMemory=2000000\nNodeName=a1 Gres=gpu:a100:4 RealMemory=500000\n";
    let inventory = inventory_of(both, GPUOS, true);
    let any = with(&inventory, "60G", &per_job("gres/gpu:1"), Host::Node(1000));
    assert_eq!(
        any.unwrap().unwrap().raised,
        Some(Raised::Node(1000 + 20_480))
    );
    let large = with(
        &inventory,
        "60G",
        &per_job("gres/gpu:h100:1"),
        Host::Node(1000),
    );
    let large = large.unwrap().unwrap();
    assert_eq!(large.raised, None);
    assert_eq!(
        String::from(large.sentence),
        "gpuos: --gpuos-mem=60G: nothing of the host's memory, for a GPU has 81559 MiB"
    );
    // What the driver takes of a GPU programs do not have.
    let reserve = GPUOS.replace("reserve-mib = 0\n", "");
    let inventory = inventory_of(both, &reserve, true);
    let own = with(
        &inventory,
        "120G",
        &per_job("gres/gpu:h100:1"),
        Host::Node(1),
    );
    let own = own.unwrap().unwrap().raised;
    assert_eq!(own, Some(Raised::Node(1 + 122_880 - 81_559 + 1024)));
}

#[test]
fn what_the_job_has_in_all_is_told() {
    let told = |host| {
        let chosen = of("120G", &per_node("gres/gpu:h100:2"), host).unwrap();
        String::from(chosen.unwrap().sentence)
    };
    assert_eq!(
        told(Host::Node(16_384)),
        "gpuos: --gpuos-mem=120G: 41321 MiB of the host's memory beside the 81559 MiB of a GPU: --mem is 99026 MiB on each node, 16384 MiB of it \
         for the program itself, the rest for 2 of its GPUs"
    );
    assert!(told(Host::Whole).ends_with("for each of them, out of all that the node has"));
    assert_eq!(told(Host::Unsaid), told(Host::Whole));
}

#[test]
fn what_is_not_known_or_does_not_fit_is_refused_with_what_to_write() {
    let h100 = per_job("gres/gpu:h100:1");
    let defaults = inventory_of(&format!("DefMemPerCPU=1000\n{SLURM}"), GPUOS, true);
    let uncounted = inventory_of(SLURM, GPUOS, false);
    let dynamic = inventory_of(&format!("MaxNodeCount=99\n{SLURM}"), GPUOS, true);
    let off = inventory_of(SLURM, "", true);
    let own = inventory();
    let small = inventory_of(&SLURM.replace("500000", "491519"), GPUOS, true);
    let node = || Host::Node(16_384);
    for (inventory, value, shape, host, why) in [
        (
            &off,
            "120G",
            h100.clone(),
            node(),
            "[memory] oversubscribe = true in gpuos.toml",
        ),
        (
            &own,
            "120G",
            per_job("gres/gpu:1"),
            node(),
            "how much memory the GPUs of node u1 have is not said; write --gpus=TYPE:N",
        ),
        (
            &own,
            "120G",
            per_job("gres/gpu:v100:1"),
            node(),
            "GPUs of node u1",
        ),
        (
            &own,
            "120G",
            per_job("gres/gpu:b200:1"),
            node(),
            "no node of this cluster has such GPUs",
        ),
        (
            &own,
            "400G",
            h100.clone(),
            node(),
            "has 81559 MiB; write at most 326236M here",
        ),
        (
            &own,
            "80G,tiers=hbm",
            h100.clone(),
            node(),
            "write at most 81559M here",
        ),
        (
            &own,
            "120G",
            h100.clone(),
            Host::Cpu,
            "write --mem=SIZE or --mem-per-gpu=SIZE in its place",
        ),
        (
            &own,
            "120G",
            h100.clone(),
            Host::Other,
            "in a way that gpuos does not understand",
        ),
        (
            &own,
            "120G",
            h100.clone(),
            Host::Node(1_990_000),
            "needs 2031321 MiB, and no node with such GPUs has more than 2000000",
        ),
        (
            &own,
            "120G",
            h100.clone(),
            Host::Gpu("gres/gpu".into(), 1_990_000),
            "no node with such GPUs has more",
        ),
        (
            &small,
            "160G",
            per_node("gres/gpu:a100:4"),
            Host::Whole,
            "takes 122880 MiB of the host's memory for each GPU, and a node with such GPUs has 491519",
        ),
        (
            &defaults,
            "120G",
            h100.clone(),
            Host::Unsaid,
            "write --mem=SIZE or --mem-per-gpu=SIZE with it",
        ),
        (
            &uncounted,
            "120G",
            h100.clone(),
            node(),
            "could be promised twice; write --exclusive with it",
        ),
        (
            &dynamic,
            "120G",
            h100.clone(),
            node(),
            "may have nodes that slurm.conf does not name",
        ),
    ] {
        let said = with(inventory, value, &shape, host).unwrap_err();
        let begin = format!("--gpuos-mem={value}: ");
        assert!(said.starts_with(&begin) && said.contains(why), "{said}");
    }
    assert!(of("160G", &per_node("gres/gpu:a100:4"), Host::Whole).is_ok());
    let whole = Shape {
        exclusive: true,
        ..h100
    };
    assert!(with(&uncounted, "120G", &whole, Host::Node(1000)).is_ok());
    assert!(with(&uncounted, "40G", &per_job("gres/gpu:h100:1"), node()).is_ok());
}

/// Each other option of jobs beside this one: taken, or refused with which and why. docs/user/larger.md has the table.
#[test]
fn every_other_option_goes_with_it_or_is_refused() {
    let values = [
        ("topology", "leaf", None),
        ("placement", "pack", None),
        ("shape", "tp2", None),
        ("profile", "io", None),
        ("class", "noisy", None),
        ("exclusive", "node", None),
        ("power", "300W", None),
        ("clocks", "1200", None),
        ("watch", "5", None),
        (
            "mps",
            "on",
            Some("--gpuos-mps=on, whose programs share one context"),
        ),
        (
            "mig",
            "1/2",
            Some("--gpuos-mig=1/2, for whole GPUs alone have it"),
        ),
        (
            "share",
            "timeslice",
            Some("--gpuos-share=timeslice, for whole GPUs alone have it"),
        ),
        ("checkpoint", "10m", None),
        ("restart", "auto", None),
        ("spares", "1", None),
    ];
    // But for the switch and the option itself.
    assert_eq!(
        values.len() + 2,
        OPTIONS.len(),
        "an option has no line in the matrix"
    );
    let table = include_str!("../../docs/user/larger.md");
    for (name, value, why) in values {
        let options = said(&[("mem", "120G"), (name, value)]);
        let sources = Sources::default();
        let shape = per_node("gres/gpu:h100:2");
        let told = choose(&inventory(), (&options, &sources), &shape, Host::Node(1000));
        let row = table
            .lines()
            .find(|line| line.starts_with(&format!("| `--gpuos-{name}`")));
        let row =
            row.unwrap_or_else(|| panic!("docs/user/larger.md has no row for --gpuos-{name}"));
        assert_eq!(row.contains("| refused"), why.is_some(), "{row}");
        match why {
            None => assert!(told.is_ok(), "{name}: {told:?}"),
            Some(why) => {
                let said = told.unwrap_err().sentence;
                assert!(said.contains(&format!("does not go with {why}")), "{said}");
                assert!(said.contains("=off undoes the option"), "{said}");
            }
        }
    }
    for gres in ["gres/shard:1", "gres/gpuos:h100:2", "gres/mps:50"] {
        let said = of("120G", &per_node(gres), Host::Node(1000)).unwrap_err();
        assert!(said.contains("does not go with GRES "), "{said}");
    }
}

#[test]
fn a_job_without_gpus_or_without_the_option_is_left_alone() {
    let none = Shape::default();
    assert_eq!(of("120G", &none, Host::Node(1000)), Ok(None));
    let sources = Sources::default();
    let quiet = said(&[("watch", "5")]);
    let h100 = per_job("gres/gpu:h100:1");
    let off = inventory_of(SLURM, "", false);
    assert_eq!(choose(&off, (&quiet, &sources), &h100, Host::Cpu), Ok(None));
    // A default of the environment is for whole GPUs.
    let default = Sources::parse("environment=mem");
    let options = said(&[("mem", "120G")]);
    for gres in ["gres/shard:1", "gres/gpuos:h100:2"] {
        let told = choose(
            &inventory(),
            (&options, &default),
            &per_node(gres),
            Host::Unsaid,
        );
        assert_eq!(told, Ok(None), "{gres}");
    }
}

#[test]
fn a_change_leaves_the_gpus_what_they_need() {
    let options = said(&[("mem", "120G")]);
    let asked = options.memory.unwrap();
    let share = 122_880 - 81_559;
    let one = per_node("gres/gpu:h100:1");
    let two = per_node("gres/gpu:h100:2");
    let check = |then: &Shape, host: Host| check_update(&inventory(), &asked, (&one, then), &host);
    for (then, host, taken) in [
        (&one, Host::Unsaid, true),
        (&two, Host::Unsaid, false),
        (&one, Host::Node(share), true),
        (&one, Host::Node(share - 1), false),
        (&two, Host::Node(2 * share), true),
        (&two, Host::Node(2 * share - 1), false),
        (&one, Host::Gpu("gres/gpu".into(), share), true),
        (&one, Host::Gpu("gres/gpu".into(), share - 1), false),
        (&one, Host::Whole, true),
        (&one, Host::Cpu, false),
    ] {
        let told = check(then, host.clone());
        assert_eq!(told.is_ok(), taken, "{then:?} {host:?}: {told:?}");
    }
    let said = check(&one, Host::Node(1)).unwrap_err().sentence;
    assert!(
        said.contains("41321 MiB of the host's memory are counted for each GPU"),
        "{said}"
    );
}

#[test]
fn memory_of_a_description_is_read_in_every_release() {
    for release in [
        Release::new(22, 5, 8),
        Release::new(23, 11, 5),
        Release::new(24, 11, 5),
        Release::new(25, 5, 0),
        Release::new(26, 5, 3),
    ] {
        let offsets = Offsets::of(&Fields::of(release, None).unwrap()).expect("the table says");
        let host = |number: u64, text: Option<&std::ffi::CStr>| {
            let mut description = vec![0u8; 2048];
            let text = text.map_or(0, |text| text.as_ptr() as usize);
            description[offsets.per_node..][..8].copy_from_slice(&number.to_ne_bytes());
            description[offsets.per_gpu..][..8].copy_from_slice(&text.to_ne_bytes());
            offsets.host(description.as_mut_ptr().cast()).unwrap()
        };
        for (number, text, means) in [
            (NO_VAL64, None, Host::Unsaid),
            (u64::MAX, None, Host::Unsaid),
            (0, None, Host::Whole),
            (4096, None, Host::Node(4096)),
            (PER_CPU | 4096, None, Host::Cpu),
            (
                NO_VAL64,
                Some(c"gres:gpu:4096"),
                Host::Gpu("gres:gpu".into(), 4096),
            ),
            (
                NO_VAL64,
                Some(c"gres/gpu:0"),
                Host::Gpu("gres/gpu".into(), 0),
            ),
            (NO_VAL64, Some(c""), Host::Unsaid),
            (NO_VAL64, Some(c"gres:nic:4096"), Host::Other),
            (NO_VAL64, Some(c"gres:gpu:4096,gres:nic:1"), Host::Other),
            (NO_VAL64, Some(c"gres:gpu:-1"), Host::Other),
        ] {
            assert_eq!(host(number, text), means, "{release} {number} {text:?}");
        }
        assert_eq!(offsets.host(std::ptr::null_mut()), None);
    }
}

proptest! {
    /// However the GPUs of a job come to lie on its nodes, none has more than was counted.
    #[test]
    fn no_node_has_more_gpus_than_are_counted(
        given in proptest::collection::vec(1u64..=8, 1..6), exclusive in any::<bool>(), form in 0..3usize
    ) {
        let all: u64 = given.iter().sum();
        let nodes = given.len() as u32;
        let most = *given.iter().max().unwrap();
        let shape = match form {
            0 => Shape { min_nodes: nodes, ..per_job(&format!("gres/gpu:{all}")) },
            1 => per_job(&format!("gres/gpu:{all}")),
            _ => Shape {
                min_nodes: nodes,
                tasks: all as u32,
                per_task: Some("gres/gpu:1".into()),
                ..Shape::default()
            },
        };
        let shape = Shape { exclusive, ..shape };
        let counted = gpus_of_node(&shape, 8);
        prop_assert!(counted >= most && counted <= 8, "{shape:?}: {counted}");
    }
}
