//! What mom does of what gpuosd says of a host: GPUs counted down and up, what the host shows, hosts offline and online.

use std::collections::BTreeMap;

use gpuos_core::wire::{HostOrder, MomOrders, MomRoom};
use gpuos_model::rng::Rng;
use serde_json::{Value, json};

use crate::hook_talks::{done, edits, orders, report};

const GPU_3: &str = "gpuos: GPU 3 is out of service; gpuos health on n1 says why";

/// The vnodes of n1 as pbs_server has them, and what comes of edits.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Vnodes(BTreeMap<String, Vnode>);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Vnode {
    offline: bool,
    comment: String,
    has: BTreeMap<String, String>,
}

impl Vnodes {
    /// One vnode with so many GPUs.
    fn one(ngpus: &str) -> Vnodes {
        Vnodes::of(&[("n1", ngpus)])
    }

    fn of(all: &[(&str, &str)]) -> Vnodes {
        let vnode = |ngpus: &str| Vnode {
            has: [("ngpus", ngpus)]
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            ..Vnode::default()
        };
        Vnodes(
            all.iter()
                .map(|(name, ngpus)| ((*name).into(), vnode(ngpus)))
                .collect(),
        )
    }

    fn comment(&self) -> &str {
        &self.0["n1"].comment
    }

    fn offline(&self) -> bool {
        self.0["n1"].offline
    }

    fn own(&mut self) -> &mut Vnode {
        self.0.get_mut("n1").expect("the host's own")
    }

    fn text(&self, vnode: &str, name: &str) -> &str {
        self.0[vnode].has.get(name).map_or("-", |value| &value[..])
    }

    /// The site's own number of a vnode, and what gpuos has made of it.
    fn site(&self, vnode: &str) -> (&str, &str) {
        let now = self.text(vnode, "ngpus");
        match self.text(vnode, "gpuos_ngpus").split_once('>') {
            Some((site, made)) if made == now => (site, made),
            _ => (now, now),
        }
    }

    fn event(&self, host: &Value) -> Value {
        let names: serde_json::Map<String, Value> = self
            .0
            .keys()
            .map(|name| (name.clone(), json!({})))
            .collect();
        let vnodes: serde_json::Map<String, Value> = self
            .0
            .iter()
            .map(|(name, vnode)| {
                (name.clone(), json!({ "offline": vnode.offline, "comment": vnode.comment, "resources": vnode.has }))
            })
            .collect();
        json!({
            "event": "exechost_periodic", "host": "n1.site", "gpuosd": "/run/g.sock", "hosts": { "n1": host },
            "vnodes": names, "jobs": {}, "turn": 1, "server": { "vnodes": vnodes, "jobs": {} },
        })
    }

    /// What mom's hook has changed by these orders. Answers how many edits there were.
    fn obey(&mut self, host: &Value, ordered: &MomOrders) -> usize {
        let said = done(&self.event(host), Ok(&[orders(ordered.clone())]));
        let edits = edits(&said);
        for edit in edits {
            let text = |key: &str| edit[key].as_str().map(str::to_owned);
            let vnode = self
                .0
                .get_mut(&text("vnode").expect("a vnode"))
                .expect("one of the host");
            match edit["set"].as_str().expect("a kind") {
                "vnode" => {
                    let name = text("name").expect("a name");
                    match &edit["value"] {
                        Value::Number(number) => drop(vnode.has.insert(name, number.to_string())),
                        Value::String(text) if text.is_empty() => drop(vnode.has.remove(&name)),
                        Value::String(text) => drop(vnode.has.insert(name, text.clone())),
                        other => panic!("{other}"),
                    }
                }
                "comment" => vnode.comment = text("value").expect("a text"),
                "offline" => {
                    vnode.offline = true;
                    vnode.comment = text("value").expect("a text");
                }
                "online" => {
                    vnode.offline = false;
                    vnode.comment.clear();
                }
                other => panic!("{other}"),
            }
        }
        edits.len()
    }
}

/// A host with so many GPUs, all of them given as a whole.
fn whole(gpus: usize) -> Value {
    json!({ "gpus": vec![json!({}); gpus] })
}

/// Such a host whose GPUs are on NUMA nodes of four.
fn on_numa_nodes(gpus: usize) -> Value {
    let gpu = |index: usize| json!({ "numa": index / 4 });
    json!({ "gpus": (0..gpus).map(gpu).collect::<Vec<_>>() })
}

/// A host of which these GPUs of so many are out of service.
fn room(gpus: usize, out: &[usize]) -> MomOrders {
    let out: Vec<String> = out.iter().map(usize::to_string).collect();
    let list = if out.is_empty() {
        "-".into()
    } else {
        out.join(",")
    };
    MomOrders {
        room: Some(MomRoom {
            whole: (gpus - out.len()) as u64,
            shown: format!("whole=0-{};free=-;out={list}", gpus - 1),
            ..MomRoom::default()
        }),
        ..MomOrders::default()
    }
}

#[test]
fn a_gpu_that_is_out_of_service_is_not_counted_until_it_is_back() {
    let host = whole(8);
    let mut vnodes = Vnodes::one("8");
    assert_eq!(vnodes.obey(&host, &room(8, &[3])), 4);
    assert_eq!(
        (vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")),
        ("7", "8>7")
    );
    assert_eq!(vnodes.text("n1", "gpuos_host"), "whole=0-7;free=-;out=3");
    assert_eq!(
        (vnodes.comment(), vnodes.offline()),
        (GPU_3, false),
        "the host goes on"
    );
    assert_eq!(
        vnodes.obey(&host, &room(8, &[3])),
        0,
        "all is as it should be"
    );
    vnodes.obey(&host, &room(8, &[3, 5]));
    assert_eq!(
        (vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")),
        ("6", "8>6")
    );
    assert_eq!(
        vnodes.comment(),
        "gpuos: GPUs 3,5 are out of service; gpuos health on n1 says why"
    );
    vnodes.obey(&host, &room(8, &[]));
    assert_eq!(
        (vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")),
        ("8", "-")
    );
    assert_eq!(vnodes.comment(), "");
    // Before gpuosd knows what is out nothing is changed.
    assert_eq!(vnodes.obey(&host, &MomOrders::default()), 0);
}

#[test]
fn a_number_that_an_administrator_writes_is_the_sites_from_then_on() {
    let host = whole(8);
    let down = |number: &str| {
        let mut vnodes = Vnodes::one("8");
        vnodes.obey(&host, &room(8, &[3, 5]));
        match number {
            "" => drop(vnodes.own().has.remove("ngpus")),
            number => drop(vnodes.own().has.insert("ngpus".into(), number.into())),
        }
        vnodes
    };
    let counts = |vnodes: &Vnodes| {
        [vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")].map(str::to_owned)
    };
    for (number, while_down, after) in [
        ("4", ["4", "-"], ["4", "-"]),
        ("0", ["0", "-"], ["0", "-"]),
        ("7", ["6", "7>6"], ["7", "-"]),
        ("8", ["6", "8>6"], ["8", "-"]),
        // Without a number PBS counts no GPUs, and there is nothing to be brought back.
        ("", ["-", "-"], ["-", "-"]),
    ] {
        let mut vnodes = down(number);
        vnodes.obey(&host, &room(8, &[3, 5]));
        assert_eq!(counts(&vnodes), while_down, "{number}");
        vnodes.obey(&host, &room(8, &[]));
        assert_eq!(counts(&vnodes), after, "{number}");
    }
    // A note of which nobody can say what it is.
    for noted in ["x>7", "8>x", "8", "8>6"] {
        let mut vnodes = Vnodes::one("7");
        vnodes.own().has.insert("gpuos_ngpus".into(), noted.into());
        vnodes.obey(&host, &room(8, &[]));
        assert_eq!(counts(&vnodes), ["7", "-"], "{noted}");
    }
}

#[test]
fn of_several_vnodes_of_a_site_it_is_the_one_that_has_the_gpu() {
    let host = on_numa_nodes(8);
    let all = [("n1", ""), ("n1[0]", "4"), ("n1[1]", "4")];
    let counts = |vnodes: &Vnodes| {
        ["n1", "n1[0]", "n1[1]"].map(|name| vnodes.text(name, "ngpus").to_owned())
    };
    let mut vnodes = Vnodes::of(&all);
    vnodes.obey(&host, &room(8, &[5]));
    assert_eq!(counts(&vnodes), ["-", "4", "3"]);
    assert_eq!(
        (
            vnodes.text("n1[1]", "gpuos_ngpus"),
            vnodes.text("n1[0]", "gpuos_ngpus")
        ),
        ("4>3", "-")
    );
    // What the host shows is on its own vnode alone.
    assert_eq!(
        (
            vnodes.text("n1", "gpuos_host"),
            vnodes.text("n1[1]", "gpuos_host")
        ),
        ("whole=0-7;free=-;out=5", "-")
    );
    vnodes.obey(&host, &room(8, &[0, 1, 5]));
    assert_eq!(counts(&vnodes), ["-", "2", "3"]);
    vnodes.obey(&host, &room(8, &[]));
    assert_eq!(counts(&vnodes), ["-", "4", "4"]);
    // Nobody says where it is: of the one with most.
    let mut vnodes = Vnodes::of(&[("n1", "1"), ("n1[0]", "5"), ("n1[1]", "2")]);
    vnodes.obey(&whole(8), &room(8, &[0, 1]));
    assert_eq!(counts(&vnodes), ["1", "3", "2"]);
    // A vnode of another host that pbs_server was asked about is none of it.
    let mut vnodes = Vnodes::one("8");
    let mut event = vnodes.event(&whole(8));
    event["server"]["vnodes"]["n2"] = json!({ "resources": { "ngpus": "8" } });
    let said = done(&event, Ok(&[orders(room(8, &[1]))]));
    assert!(
        edits(&said).iter().all(|edit| edit["vnode"] == "n1"),
        "{said}"
    );
    assert!(vnodes.obey(&whole(8), &room(8, &[])) > 0);
}

#[test]
fn where_pbs_counts_more_than_is_described_nothing_is_changed_but_a_comment() {
    let host = whole(4);
    let mut vnodes = Vnodes::one("8");
    vnodes.obey(&host, &room(4, &[1]));
    assert_eq!(
        (vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")),
        ("8", "-")
    );
    let comment = vnodes.comment();
    assert!(
        comment.starts_with("gpuos: PBS counts 8 GPUs here, and 4 are described: "),
        "{comment}"
    );
    assert_eq!(vnodes.obey(&host, &room(4, &[1])), 0);
    vnodes.obey(&whole(8), &room(8, &[]));
    assert_eq!((vnodes.text("n1", "ngpus"), vnodes.comment()), ("8", ""));
    // A site may give gpuos's jobs fewer than there are.
    let mut vnodes = Vnodes::one("2");
    vnodes.obey(&host, &room(4, &[1]));
    assert_eq!(
        (vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")),
        ("2", "-")
    );
    // PBS counts none: nothing is begun that the site has not begun.
    let mut vnodes = Vnodes::one("");
    vnodes.obey(&host, &room(4, &[]));
    assert_eq!(
        (vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")),
        ("-", "-")
    );
}

/// Jobs still have some by the vnodes of a release before this one: PBS counts them there.
#[test]
fn gpus_of_former_vnodes_are_not_counted_twice() {
    let mut host = whole(8);
    host["former"] = json!([2, 6]);
    let mut vnodes = Vnodes::one("8");
    vnodes.obey(&host, &room(8, &[]));
    assert_eq!(
        (vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")),
        ("6", "8>6")
    );
    vnodes.obey(&host, &room(8, &[3]));
    assert_eq!(vnodes.text("n1", "ngpus"), "5");
    // They have ended, and it was installed anew.
    vnodes.obey(&whole(8), &room(8, &[]));
    assert_eq!(
        (vnodes.text("n1", "ngpus"), vnodes.text("n1", "gpuos_ngpus")),
        ("8", "-")
    );
}

#[test]
fn a_host_shows_what_it_has_and_nothing_else() {
    let all = MomOrders {
        room: Some(MomRoom {
            whole: 1,
            linked: 2,
            mig_fits: 3,
            share_fits: 4,
            share_parts: 5,
            mig_compute: 6,
            mig_memory: 7,
            shown: "whole=0;free=0".into(),
        }),
        ..MomOrders::default()
    };
    let links = [("gpuos_linked", "2")];
    let slices = [
        ("gpuos_mig_compute", "6"),
        ("gpuos_mig_fits", "3"),
        ("gpuos_mig_memory", "7"),
    ];
    let shares = [("gpuos_share_fits", "4"), ("gpuos_share_parts", "5")];
    let divided = json!({ "mig": { "board": "h100", "compute": 7, "memory": 8 }, "nvlink": "a" });
    for (gpus, wanted) in [
        (json!([{}]), &[][..]),
        (json!([{ "nvlink": "a" }]), &links),
        (json!([{}, divided]), &slices),
        (json!([{}, { "shares": 4, "nvlink": "a" }]), &shares),
    ] {
        let host = json!({ "gpus": gpus });
        // Something of before is taken away where it does not apply.
        let mut vnodes = Vnodes::one("1");
        for name in ["gpuos_linked", "gpuos_mig_fits", "gpuos_share_parts"] {
            vnodes.own().has.insert(name.into(), "9".into());
        }
        vnodes.obey(&host, &all);
        let found: BTreeMap<&str, &str> = vnodes.0["n1"]
            .has
            .iter()
            .map(|(name, value)| (&name[..], &value[..]))
            .collect();
        let mut wanted: BTreeMap<&str, &str> = wanted.iter().copied().collect();
        wanted.extend([("ngpus", "1"), ("gpuos_host", "whole=0;free=0")]);
        assert_eq!(found, wanted, "{host}");
        assert_eq!(vnodes.obey(&host, &all), 0);
    }
}

#[test]
fn comments_of_others_stay() {
    let host = whole(8);
    for offline in [false, true] {
        let mut vnodes = Vnodes::one("8");
        vnodes.own().comment = "fan".into();
        vnodes.own().offline = offline;
        vnodes.obey(&host, &room(8, &[3]));
        assert_eq!((vnodes.comment(), vnodes.offline()), ("fan", offline));
        assert_eq!(vnodes.text("n1", "ngpus"), "7");
    }
    // gpuos's own of a host that somebody has taken offline is left to him.
    let mut vnodes = Vnodes::one("8");
    vnodes.obey(&host, &room(8, &[3]));
    vnodes.own().offline = true;
    vnodes.obey(&host, &room(8, &[]));
    assert_eq!((vnodes.comment(), vnodes.offline()), (GPU_3, true));
}

#[test]
fn a_drained_host_gets_no_jobs_until_gpuosd_says_so() {
    let order = |host: HostOrder, out: &[usize]| MomOrders {
        host,
        ..room(8, out)
    };
    let drain = |reason: &str| HostOrder::Offline(reason.into());
    let host = whole(8);
    let mut vnodes = Vnodes::of(&[("n1", ""), ("n1[0]", "4"), ("n1[1]", "4")]);
    vnodes.obey(&host, &room(8, &[3]));
    vnodes.0.get_mut("n1[1]").expect("a vnode").offline = true;
    vnodes.0.get_mut("n1[1]").expect("a vnode").comment = "fan".into();
    vnodes.obey(&host, &order(drain("gpuos: fan\nis \u{1b}[31mloud"), &[3]));
    let text = "gpuos: host: fan\\nis \\u{1b}[31mloud";
    let states = |vnodes: &Vnodes| {
        let of = |name: &str| (vnodes.0[name].offline, vnodes.0[name].comment.clone());
        ["n1", "n1[0]", "n1[1]"].map(of)
    };
    let [own, first, second] = states(&vnodes);
    assert_eq!((own, first), ((true, text.into()), (true, text.into())));
    assert_eq!(second, (true, "fan".into()), "an administrator's");
    let seen = report(&vnodes.event(&host)).host.expect("it was asked for");
    assert_eq!(
        (seen.offline, seen.reason.as_deref()),
        (true, Some("gpuos: fan\\nis \\u{1b}[31mloud"))
    );
    assert_eq!(seen.shown, "whole=0-7;free=-;out=3");
    assert_eq!(vnodes.obey(&host, &order(HostOrder::Leave, &[3])), 0);
    vnodes.obey(&host, &order(drain("dust"), &[3]));
    assert_eq!(states(&vnodes)[0], (true, "gpuos: host: dust".into()));
    vnodes.obey(&host, &order(HostOrder::Online, &[3]));
    assert_eq!(states(&vnodes)[2], (true, "fan".into()));
    vnodes.obey(&host, &order(HostOrder::Online, &[3]));
    assert_eq!(
        states(&vnodes)[..2],
        [(false, GPU_3.into()), (false, String::new())]
    );
    assert_eq!(vnodes.obey(&host, &order(HostOrder::Online, &[3])), 0);
    // One that others took offline is theirs.
    let mut others = Vnodes::one("8");
    others.own().offline = true;
    assert_eq!(
        report(&others.event(&host)).host.expect("asked").reason,
        None
    );
    others.obey(&host, &order(HostOrder::Online, &[]));
    assert!(others.offline());
    let long = MomOrders {
        host: drain(&"x".repeat(4000)),
        ..MomOrders::default()
    };
    let mut vnodes = Vnodes::one("8");
    vnodes.obey(&host, &long);
    assert!(vnodes.comment().len() < 300);
}

/// PBS may have the long name for the host and its vnodes, or the short one.
#[test]
fn a_vnode_of_a_long_name_is_the_hosts_own_too() {
    for vnode in ["n1", "n1.site"] {
        let mut event = Vnodes::one("8").event(&whole(8));
        event["vnodes"] = json!({ vnode: {} });
        event["server"]["vnodes"] = json!({ vnode: { "resources": { "ngpus": "8" } } });
        let said = done(&event, Ok(&[orders(room(8, &[3]))]));
        let names: Vec<_> = edits(&said)
            .iter()
            .map(|edit| edit["vnode"].as_str())
            .collect();
        assert_eq!(names, [Some(vnode); 4], "{said}");
    }
}

/// What pbs_server does not say of is left.
#[test]
fn what_is_not_known_is_not_changed() {
    let mut event = Vnodes::one("8").event(&whole(8));
    event["server"]["vnodes"] = json!({});
    let said = done(&event, Ok(&[orders(room(8, &[3]))]));
    assert!(edits(&said).is_empty(), "{said}");
}

/// Whatever gpuosd and administrators do, in any order, and however often the hook is too late or not run at all: the site's number is never lost, and no
/// more is counted than there is.
#[test]
fn the_sites_number_is_never_lost() {
    const GPUS: usize = 8;
    let host = on_numa_nodes(GPUS);
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut draw = |below: usize| rng.below(below as u64) as usize;
        let names: &[&str] = [&["n1"][..], &["n1[0]", "n1[1]"]][draw(2)];
        // What the site has written, by vnodes.
        let each = GPUS / names.len();
        let mut site: BTreeMap<&str, usize> = names.iter().map(|name| (*name, each)).collect();
        let mut vnodes = Vnodes::of(&[("n1", "")]);
        for (name, number) in &site {
            let vnode = vnodes.0.entry((*name).into()).or_default();
            vnode.has.insert("ngpus".into(), number.to_string());
        }
        let mut out: Vec<usize> = Vec::new();
        for turn in 0..60 {
            match draw(6) {
                0 => {
                    let gpu = draw(GPUS);
                    out.retain(|one| *one != gpu);
                }
                1 => {
                    out.push(draw(GPUS));
                    out.sort_unstable();
                    out.dedup();
                }
                2 => {
                    let name = names[draw(names.len())];
                    let number = draw(each + 1);
                    let has = &mut vnodes.0.get_mut(name).expect("a vnode").has;
                    let made = has
                        .get("gpuos_ngpus")
                        .and_then(|noted| noted.split('>').next_back()?.parse().ok());
                    // What gpuos has written itself nobody can tell from an administrator's.
                    if made != Some(number) {
                        has.insert("ngpus".into(), number.to_string());
                        site.insert(name, number);
                    }
                }
                3 => {
                    // gpuosd was started anew, and does not know yet.
                    vnodes.obey(&host, &MomOrders::default());
                }
                _ => {
                    vnodes.obey(&host, &room(GPUS, &out));
                    let counted: usize = names
                        .iter()
                        .map(|name| {
                            vnodes
                                .text(name, "ngpus")
                                .parse::<usize>()
                                .expect("a number")
                        })
                        .sum();
                    let all: usize = site.values().sum();
                    assert_eq!(
                        counted,
                        all.min(GPUS - out.len()),
                        "{seed}.{turn}: {vnodes:?}"
                    );
                    assert_eq!(
                        vnodes.clone().obey(&host, &room(GPUS, &out)),
                        0,
                        "{seed}.{turn}: {vnodes:?}"
                    );
                }
            }
            for (name, number) in &site {
                let (noted, now) = vnodes.site(name);
                assert_eq!(noted, number.to_string(), "{seed}.{turn}: {vnodes:?}");
                assert!(
                    now.parse::<usize>().is_ok_and(|now| now <= *number),
                    "{seed}.{turn}: {vnodes:?}"
                );
            }
        }
        vnodes.obey(&host, &room(GPUS, &[]));
        for (name, number) in &site {
            assert_eq!(vnodes.text(name, "ngpus"), number.to_string(), "{seed}");
            assert_eq!(vnodes.text(name, "gpuos_ngpus"), "-", "{seed}");
        }
    }
}
