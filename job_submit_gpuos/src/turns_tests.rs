use gpuos_config::options::{OPTIONS, parse_share};
use gpuos_config::site::Site;

use super::*;
use crate::share;
use slurm_ffi::release::Release;

const SLURM: &str = "NodeName=h[1-4] Gres=gpu:h100:8,shard:32 RealMemory=2000000\n\
    NodeName=a[1-2] Gres=gpu:a100:4,shard:16 RealMemory=500000\n\
    NodeName=b1 Gres=gpu:b200:8 RealMemory=3000000\n\
    NodeName=c1 RealMemory=900000\n";

const GPUOS: &str = "[memory]\nturns = 2\nreserve-mib = 1000\n\
    [[nodes]]\nmatch = \"h[1-4]\"\ntype = \"dgx-h100\"\n\
    [[node-type]]\nname = \"small\"\ngpu = \"A100 40GB\"\ngres-type = \"a100\"\ngpus = 4\ngpu-memory-mib = 40960\n\
    [[nodes]]\nmatch = \"a[1-2]\"\ntype = \"small\"\n";

/// Nodes whose GPUs are all H100.
fn one_kind() -> String {
    SLURM.replace("a100:4,shard:16", "a100:4")
}

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

fn said(list: &[(&str, &str)]) -> JobOptions {
    let mut options = JobOptions::default();
    for (name, value) in list {
        options.set(&format!("gpuos-{name}"), value).unwrap();
    }
    options
}

fn with(inventory: &Inventory, share: &str, host: &Host) -> Result<Option<Chosen>, String> {
    let options = said(&[("share", share)]);
    let told = choose(
        inventory,
        (&options, &Sources::default()),
        &Shape::default(),
        host,
    );
    told.map_err(|refusal| refusal.sentence)
}

#[test]
fn a_place_for_what_is_parked_is_added_to_the_jobs_memory() {
    let own = inventory_of(&one_kind(), GPUOS, true);
    let chosen = with(&own, "timeslice,mem=60G", &Host::Node(16_384));
    let chosen = chosen.unwrap().unwrap();
    assert_eq!(chosen.raised, Some(Raised::Node(16_384 + 61_440)));
    assert_eq!(
        String::from(chosen.sentence),
        "gpuos: --gpuos-share=timeslice,mem=60G: at most 2 jobs have a GPU in turns; 61440 MiB of the host's memory are a place for what is \
         parked: --mem is 77824 MiB on each node, 16384 MiB of it for the program itself"
    );
    // Those that have none of it are asked nothing.
    for other in ["timeslice", "timeslice:2", "mps:25%"] {
        assert_eq!(with(&own, other, &Host::Cpu), Ok(None));
    }
    let none = JobOptions::default();
    let quiet = (&none, &Sources::default());
    let told = choose(&own, quiet, &Shape::default(), &Host::Unsaid);
    assert_eq!(told, Ok(None));
}

#[test]
fn what_is_not_known_or_does_not_fit_is_refused_with_what_to_write() {
    let one = one_kind();
    let own = inventory_of(&one, GPUOS, true);
    let both = inventory_of(SLURM, GPUOS, true);
    let off = inventory_of(&one, &GPUOS.replace("turns = 2", "turns = 0"), true);
    let unsaid = inventory_of(&one, "[memory]\nturns = 2\n", true);
    let uncounted = inventory_of(&one, GPUOS, false);
    let dynamic = inventory_of(&format!("MaxNodeCount=99\n{one}"), GPUOS, true);
    let no_shards = inventory_of(&one.replace(",shard:32", ""), GPUOS, true);
    let node = || Host::Node(16_384);
    for (inventory, share, host, why) in [
        (
            &off,
            "timeslice,mem=60G",
            node(),
            "an administrator can allow it with [memory] turns = 2 in gpuos.toml",
        ),
        (&unsaid, "timeslice,mem=60G", node(), "GPUs of node h1"),
        (
            &own,
            "timeslice,mem=80G",
            node(),
            "has 81559 MiB, of which programs' contexts take some; write mem=80559M or less",
        ),
        // The smallest that the job could get counts.
        (
            &both,
            "timeslice,mem=60G",
            node(),
            "write mem=39960M or less",
        ),
        (
            &uncounted,
            "timeslice,mem=60G",
            node(),
            "Slurm does not count memory",
        ),
        (
            &dynamic,
            "timeslice,mem=60G",
            node(),
            "may have nodes that slurm.conf does not name",
        ),
        (
            &no_shards,
            "timeslice,mem=60G",
            node(),
            "no GPU of this cluster has shards",
        ),
        (
            &own,
            "timeslice,mem=60G",
            Host::Node(1_990_000),
            "needs 2051440 MiB of the host's memory, and no node with shards has more than 2000000",
        ),
        (
            &own,
            "timeslice,mem=60G",
            Host::Unsaid,
            "write --mem=SIZE with it",
        ),
        (
            &own,
            "timeslice,mem=60G",
            Host::Whole,
            "write --mem=SIZE with it",
        ),
        (
            &own,
            "timeslice,mem=60G",
            Host::Cpu,
            "write --mem=SIZE with it",
        ),
        (
            &own,
            "timeslice,mem=60G",
            Host::Gpu("gres/gpu".into(), 1),
            "write --mem=SIZE with it",
        ),
    ] {
        let told = with(inventory, share, &host).unwrap_err();
        let begin = format!("--gpuos-share={share}: ");
        assert!(told.starts_with(&begin) && told.contains(why), "{told}");
    }
}

#[test]
fn no_more_jobs_stand_on_a_gpu_than_the_site_allows() {
    let shards = |of_gpu, turns, share| {
        let share = parse_share(share).unwrap();
        let none = JobOptions::default();
        let told = share::choose(
            (of_gpu, turns),
            share,
            (&none, &Sources::default()),
            &Shape::default(),
            Release::new(24, 11, 5),
        );
        told.map(|chosen| chosen.per_node)
            .map_err(|refusal| refusal.sentence)
    };
    for (of_gpu, turns, share, count) in [
        (4, 2, "timeslice,mem=1G", 2),
        (4, 3, "timeslice,mem=1G", 2),
        (4, 4, "timeslice,mem=1G", 1),
        (4, 9, "timeslice,mem=1G", 1),
        (4, 1, "timeslice,mem=1G", 4),
        (7, 2, "timeslice,mem=1G", 4),
        (1, 2, "timeslice,mem=1G", 1),
        (4, 2, "timeslice:3,mem=1G", 3),
        (4, 4, "timeslice:2,mem=1G", 2),
    ] {
        let given = shards(of_gpu, turns, share);
        assert_eq!(
            given,
            Ok(format!("gres/shard:{count}")),
            "{of_gpu} {turns} {share}"
        );
        let most = of_gpu / count;
        assert!(
            most <= turns.into(),
            "{most} jobs of {share} stand on a GPU"
        );
    }
    // Where memory is had in turns nobody has a share without it.
    for share in ["timeslice", "timeslice:2", "mps:25%"] {
        let told = shards(4, 2, share).unwrap_err();
        assert!(told.contains("write timeslice,mem=SIZE"), "{told}");
    }
    let told = shards(4, 0, "timeslice,mem=1G").unwrap_err();
    assert!(told.contains("turns = 2 in gpuos.toml"), "{told}");
    for gres in [
        "gres/shard:1",
        "gres:shard:h100:1",
        "gres/nic:1,gres/shard:2",
        "gres/mps:50",
    ] {
        let shape = Shape {
            per_node: Some(gres.into()),
            ..Shape::default()
        };
        let told = share::by_name(&shape).unwrap_err().sentence;
        assert!(
            told.starts_with(&format!("--gres={gres}: "))
                && told.contains("--gpuos-share=timeslice,mem=SIZE"),
            "{told}"
        );
    }
    for gres in ["gres/gpu:2", "gres/gpuos:h100:2", "gres/nic:1"] {
        let shape = Shape {
            per_node: Some(gres.into()),
            ..Shape::default()
        };
        assert!(share::by_name(&shape).is_ok(), "{gres}");
    }
}

#[test]
fn nvme_for_what_is_parked_is_counted_and_memory_is_as_it_was() {
    let slurm = one_kind().replace("shard:32", "shard:32,nvme:400");
    let gpuos = |keys: &str| GPUOS.replace("turns = 2\n", &format!("turns = 2\n{keys}"));
    let keys = "nvme = \"/nvme\"\nnvme-gib = 500\nnvme-gres = \"nvme\"\n";
    let own = inventory_of(&slurm, &gpuos(keys), true);
    let share = "timeslice,mem=61441M,park=nvme";
    // Whatever the job says of memory, also where Slurm does not count it.
    let uncounted = inventory_of(&slurm, &gpuos(keys), false);
    for (inventory, host) in [
        (&own, Host::Unsaid),
        (&own, Host::Node(1)),
        (&own, Host::Cpu),
        (&own, Host::Whole),
        (&uncounted, Host::Unsaid),
    ] {
        let chosen = with(inventory, share, &host).unwrap().unwrap();
        assert_eq!(chosen.raised, None);
        assert_eq!(
            String::from(chosen.sentence),
            "gpuos: --gpuos-share=timeslice,mem=61441M,park=nvme: at most 2 jobs have a GPU in turns; 61 in GRES nvme are GiB of NVMe on each node for \
             the 61441 MiB that are parked, and --mem is for the program alone"
        );
    }
    let without = inventory_of(&slurm, GPUOS, true);
    let none = inventory_of(&one_kind(), &gpuos(keys), true);
    let less = inventory_of(&slurm, &gpuos(&format!("{keys}nvme-gres-gib = 60\n")), true);
    for (inventory, why) in [
        (&without, "this site gives jobs no NVMe"),
        (&none, "of GRES nvme no node with shards has more than 0"),
        // gpuosd lends no more than that.
        (
            &less,
            "needs 61 GiB of NVMe, and of GRES nvme no node with shards has more than 60",
        ),
    ] {
        let told = with(inventory, share, &Host::Unsaid).unwrap_err();
        assert!(told.contains(why), "{told}");
    }
    let options = said(&[("share", share)]);
    for host in [Host::Node(1), Host::Cpu, Host::Other] {
        assert_eq!(check_update(&options, &host), Ok(()));
    }
}

#[test]
fn nvme_is_added_to_the_shards() {
    let asks = |share: &str, gres: Option<&str>, per_node: Option<&str>, release| {
        let share = parse_share(share).unwrap();
        let shape = Shape {
            per_node: per_node.map(str::to_owned),
            ..Shape::default()
        };
        let none = JobOptions::default();
        let asked = (&none, &Sources::default());
        let chosen = share::choose((4, 2), share, asked, &shape, release).unwrap();
        let told = share::with_nvme(chosen, (share, gres), &shape, release);
        told.map(|chosen| chosen.per_node)
            .map_err(|refusal| refusal.sentence)
    };
    let (old, new) = (Release::new(22, 5, 8), Release::new(24, 11, 5));
    let nvme = "timeslice,mem=60G,park=nvme";
    for (share, per_node, release, wanted) in [
        (nvme, None, new, "gres/shard:2,gres/disk:60"),
        (nvme, None, old, "gres:shard:2,gres:disk:60"),
        (
            nvme,
            Some("gres/nic:1"),
            new,
            "gres/nic:1,gres/shard:2,gres/disk:60",
        ),
        ("timeslice,mem=60G", None, new, "gres/shard:2"),
    ] {
        let told = asks(share, Some("disk"), per_node, release);
        assert_eq!(told.as_deref(), Ok(wanted));
    }
    // Else it would park there without having asked for that.
    for share in [nvme, "timeslice,mem=60G"] {
        let told = asks(share, Some("disk"), Some("gres/disk:1"), new).unwrap_err();
        assert!(told.contains("it does not go with GRES disk"), "{told}");
    }
    let told = asks(nvme, None, None, new).unwrap_err();
    assert!(told.contains("this site gives jobs no NVMe"), "{told}");
}

#[test]
fn a_change_leaves_the_place_for_what_is_parked() {
    let options = said(&[("share", "timeslice,mem=60G")]);
    for (host, taken) in [
        (Host::Unsaid, true),
        (Host::Whole, true),
        (Host::Node(61_440), true),
        (Host::Node(61_439), false),
        (Host::Cpu, false),
        (Host::Gpu("gres/gpu".into(), 99_999), false),
        (Host::Other, false),
    ] {
        let told = check_update(&options, &host);
        assert_eq!(told.is_ok(), taken, "{host:?}: {told:?}");
    }
    let other = said(&[("share", "timeslice")]);
    assert_eq!(check_update(&other, &Host::Cpu), Ok(()));
}

/// Each option of jobs beside it: a row of the table in docs/user/share.md, made by what submission says. `GPUOS_WRITE=1` writes them.
#[test]
fn the_table_says_what_goes_with_it() {
    let values = [
        ("gpuos", "off", "about the place"),
        ("gpuos-topology", "leaf", "about the place"),
        ("gpuos-placement", "pack", "about the place"),
        (
            "gpuos-shape",
            "tp1",
            "about the place; a share is one GPU of each node",
        ),
        ("gpuos-profile", "io", "about the place"),
        ("gpuos-class", "noisy", "about the place"),
        ("gpuos-exclusive", "leaf", "about the place"),
        ("gpuos-power", "300W", ""),
        ("gpuos-clocks", "1200", ""),
        (
            "gpuos-watch",
            "5",
            "who waits for his turn has no work meanwhile: give it more minutes than a turn of the others has",
        ),
        ("gpuos-mps", "on", ""),
        ("gpuos-mig", "1/2", ""),
        (
            "gpuos-checkpoint",
            "10m",
            "the program saves when it has its turn; a program that saves while it waits saves what is in host memory",
        ),
        ("gpuos-restart", "auto", "it begins as any job does"),
        ("gpuos-spares", "1", "spare nodes have the share too"),
        (
            "gpuos-mem",
            "120G",
            "mem= is a share of one GPU, and SIZE more than one",
        ),
    ];
    // But for the option itself.
    assert_eq!(
        values.len() + 1,
        OPTIONS.len(),
        "an option has no line in the matrix"
    );
    let inventory = inventory_of(&one_kind(), GPUOS, true);
    let sources = Sources::default();
    let row = |(name, value, note): &(&str, &str, &str)| {
        let mut options = said(&[("share", "timeslice,mem=60G")]);
        options.set(name, value).unwrap();
        let asked = (&options, &sources);
        let shape = Shape::default();
        let told = choose(&inventory, asked, &shape, &Host::Node(1000)).and_then(|_| {
            let share = options.share.unwrap();
            share::choose((4, 2), share, asked, &shape, Release::new(24, 11, 5))
        });
        let (is, why) = match told {
            Ok(_) => ("allowed", String::new()),
            Err(refusal) => {
                let why = refusal.sentence.split_once(", ").unwrap().1;
                let why = why.split_once("; write").unwrap().0;
                ("refused", why.to_owned())
            }
        };
        let parts = [why.as_str(), note].into_iter();
        let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
        format!("| `--{name}` | {is} | {} |\n", parts.join("; "))
    };
    let rows: String = values.iter().map(row).collect();
    let path = format!("{}/../docs/user/share.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page
        .split_once("<!-- made: turns-matrix -->\n")
        .expect("a begin");
    let (now, after) = rest.split_once("<!-- end -->").expect("an end");
    let head = "| option | is | why |\n| --- | --- | --- |\n";
    let wanted = format!("{head}{rows}");
    if std::env::var_os("GPUOS_WRITE").is_some() {
        let page = format!("{before}<!-- made: turns-matrix -->\n{wanted}<!-- end -->{after}");
        std::fs::write(&path, page).unwrap();
        return;
    }
    assert_eq!(
        now, wanted,
        "GPUOS_WRITE=1 cargo test -p job_submit_gpuos turns writes it"
    );
}
