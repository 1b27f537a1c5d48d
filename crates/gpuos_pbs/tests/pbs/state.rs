//! What PBS prints, read with its faults.

use std::collections::HashSet;

use gpuos_config::gpuos_toml::Config;
use gpuos_pbs::pass::plan;
use gpuos_pbs::state::json::Json;
use gpuos_pbs::state::nodes::Nodes;
use gpuos_pbs::state::{Site, Texts, fresh, jobs};
use gpuos_placement::plan::Planner;
use gpuos_placement::queue::Bounds;
use proptest::prelude::*;

use crate::world::{QUEUES, SERVER, World};

/// The site of these vnodes and jobs, with queues and server as they usually are.
pub fn site(vnodes: &str, jobs: &str) -> Site {
    let texts = Texts {
        vnodes,
        jobs,
        queues: QUEUES,
        server: SERVER,
    };
    Site::read(&texts, Config::default()).unwrap()
}

#[test]
fn values_are_read_as_pbs_prints_them() {
    let text = "{\"a\":007,\"b\":nan,\"c\":\"tab\there \\u0041 \\, \\\"x\\\" \x01\",\"d\":[1,\"\",{}],\"e\":{\"x\":1,\"x\":2},}";
    let json = Json::parse(text).unwrap();
    let texts: Vec<_> = json.texts().collect();
    assert_eq!(
        texts,
        [
            ("a", "007"),
            ("b", "nan"),
            ("c", "tab\there A \\, \"x\" \x01")
        ]
    );
    let inner = json.get("e").unwrap().unwrap();
    assert_eq!(inner.get("x"), Err("x stands in it twice".into()));
    for bad in [
        "",
        "{",
        "{\"a\"}",
        "{\"a\":1 2}",
        "{\"a\":\"",
        "[1",
        "{} {}",
        "{a:1}",
    ] {
        assert!(Json::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_lies_too_deep_is_passed_over_and_the_rest_is_read() {
    // What a user's variable `[[[…` becomes, with quotes and brackets in it that mean nothing.
    let job = |deep: &str| {
        let text = format!(
            r#"{{"Jobs":{{"1.head":{{"job_state":"Q","Variable_List":{{"X":{deep},"Y":"z"}},"queue":"workq"}}}}}}"#
        );
        jobs::parse(&text)
    };
    let nested = |open: &str, close: &str, levels: usize| {
        format!(
            "{}\"]}}\\\"{{\"{}",
            open.repeat(levels),
            close.repeat(levels)
        )
    };
    for levels in [20, 40, 1_000, 100_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[1,{\"b\":", "},2]")] {
            let (jobs, notes) = job(&nested(open, close, levels)).unwrap();
            assert_eq!((&jobs[0].queue[..], &jobs[0].unreadable[..]), ("workq", ""));
            assert!(notes.is_empty());
        }
    }
    for bad in [
        "[".repeat(1_000),
        "[".repeat(1_000) + &"]".repeat(999),
        "[".repeat(1_000) + &"]".repeat(1_001),
        "[".repeat(1_000) + "}" + &"]".repeat(999),
        "[".repeat(1_000) + "\"" + &"]".repeat(1_000),
    ] {
        let why = job(&bad).unwrap_err();
        assert!(why.starts_with("qstat -f: line 1 of it has"), "{why}");
    }
}

#[test]
fn gpus_are_numbered_as_their_vnodes_whatever_is_gone() {
    let mut world = World::random(7, 2, 0, 0);
    for host in &mut world.hosts {
        (host.gpus, host.out, host.down) = (4, 2, false);
    }
    let nodes = Nodes::parse(&world.vnodes()).unwrap();
    assert_eq!(nodes.hosts.len(), 2);
    let host = &nodes.hosts[0];
    assert_eq!((host.gpus, host.up), (4, true));
    let up = nodes
        .vnodes_of(host)
        .filter(|(_, vnode)| vnode.up && vnode.gpus.all > 0);
    let up: Vec<_> = up
        .map(|(_, vnode)| (vnode.name.clone(), vnode.first_gpu))
        .collect();
    let wanted = [("n0[0]", 0), ("n0[2]", 2), ("n0[3]", 3)];
    assert_eq!(up, wanted.map(|(name, gpu)| (name.to_owned(), gpu)));
    // The first one is taken away for good.
    let text = world.vnodes().replace("\"n0[0]\"", "\"n0[9]\"");
    let nodes = Nodes::parse(&text).unwrap();
    let third = nodes.vnode("n0[3]").unwrap();
    assert_eq!(nodes.vnodes[third].first_gpu, 3);
}

#[test]
fn a_host_that_is_one_vnode_has_its_gpus_without_names() {
    let text = r#"{"nodes":{"big":{"state":"free","sharing":"force_excl","resources_available":{"ncpus":"64","ngpus":8,"mem":"2gb"},
        "resources_assigned":{"ngpus":3}}}}"#;
    let nodes = Nodes::parse(text).unwrap();
    assert_eq!(
        (nodes.hosts[0].name.as_str(), nodes.hosts[0].gpus),
        ("big", 8)
    );
    assert_eq!(nodes.vnodes[0].cpus.free(), 64);
    // PBS gives a second job nothing of it.
    assert!(nodes.vnodes[0].is_full(""));
    assert!(nodes.vnodes[0].gpu_sets("").1.is_empty());
    let shared = Nodes::parse(&text.replace("force_excl", "default_shared")).unwrap();
    assert_eq!(shared.vnodes[0].gpu_sets("").1.len(), 5);
}

#[test]
fn no_text_of_a_user_decides_anything() {
    let job = |id: &str, more: &str| {
        format!(
            r#""{id}":{{"Job_Name":"x","Job_Owner":"ann@head","job_state":"Q","queue":"workq","schedselect":"1:ngpus=1:ncpus=1"{more}}}"#
        )
    };
    let all = [
        // What a job's name may look like once its quotes are lost.
        job("1.head", r#","job_state":"R""#),
        job(
            "2.head",
            r#","Resource_List":{"gpuos_topology":"leaf","gpuos_topology":"node"}"#,
        ),
        // What PBS makes of a text that is JSON.
        job("6.head", r#","Resource_List":{"gpuos_topology":["leaf"]}"#),
        job("3.head", ""),
        job("3.head", ""),
        job(
            "4.head",
            r#","Variable_List":{"job_state":"R","queue":"x","queue":"y"}"#,
        ),
        job("-H", ""),
        job("5.head; rm", ""),
    ];
    let (jobs, notes) = jobs::parse(&format!("{{\"Jobs\":{{{}}}}}", all.join(","))).unwrap();
    let unreadable: Vec<_> = jobs.iter().map(|job| job.unreadable.as_str()).collect();
    let twice = "it stands in qstat's answer twice";
    assert_eq!(
        unreadable,
        [
            "job_state stands in it twice",
            "gpuos_topology stands in it twice",
            "gpuos_topology is no text in it",
            twice,
            twice,
            ""
        ]
    );
    assert_eq!(jobs[5].state, "Q");
    assert_eq!(
        notes,
        [
            "\"-H\" is no number of a job",
            "\"5.head; rm\" is no number of a job"
        ]
    );
}

#[test]
fn a_job_that_runs_as_somebody_else_is_not_its_owners() {
    for (more, wanted) in [
        ("", "ann"),
        (r#","euser":"ann""#, "ann"),
        (r#","euser":"bob","User_List":"bob""#, "bob"),
        // Who is no manager of PBS is not shown euser.
        (r#","User_List":"bob@n1,carl""#, ""),
    ] {
        let text = format!(
            r#"{{"Jobs":{{"1.head":{{"Job_Name":"x","Job_Owner":"ann@head","job_state":"R","queue":"workq"{more}}}}}}}"#
        );
        let (jobs, _) = jobs::parse(&text).unwrap();
        assert_eq!(jobs[0].unreadable, "");
        assert_eq!((&jobs[0].user[..], &jobs[0].runs_as[..]), ("ann", wanted));
    }
}

#[test]
fn the_fabric_is_what_the_vnodes_name() {
    let mut world = World::random(1, 6, 0, 0);
    for (at, host) in world.hosts.iter_mut().enumerate() {
        host.leaf = format!("leaf{}", at / 2);
        host.island = host.gpus;
    }
    let site = site(&world.vnodes(), "{}");
    let levels = &site.cluster.fabric.levels;
    assert_eq!(levels.len(), 1);
    assert_eq!(levels[0].domains, ["leaf0", "leaf1", "leaf2"]);
    assert_eq!(levels[0].domain_of, [0, 0, 1, 1, 2, 2]);
    // An NVLink domain over several hosts is a level of its own.
    let text = world.vnodes();
    let text = (0..2).fold(text, |text, at| {
        text.replace(&format!("\"n{at}.0\""), "\"rack\"")
    });
    let over = self::site(&text, "{}");
    let levels = &over.cluster.fabric.levels;
    assert_eq!(levels[0].name, "nvlink");
    assert_eq!(levels[0].domains, ["rack"]);
}

#[test]
fn limits_of_running_jobs_and_formulas_are_pbs_scheds() {
    let queues = jobs::parse_queues(QUEUES).unwrap();
    let barred: Vec<_> = queues.iter().map(|queue| queue.barred.as_str()).collect();
    let wanted = [
        "",
        "",
        "it is stopped",
        "it has max_run, which pbs_sched alone keeps",
        "it only passes jobs on",
    ];
    assert_eq!(barred, wanted);
    assert_eq!(queues[1].priority, 150);
    assert_eq!(jobs::server_bars(SERVER), Ok(String::new()));
    let says = |more: &str| jobs::server_bars(&SERVER.replace("\"server_state\"", more)).unwrap();
    assert!(says(r#""job_sort_formula":"ncpus","server_state""#).contains("job_sort_formula"));
    assert!(says(r#""max_run_res.ngpus":"[o:PBS_ALL=8]","server_state""#).contains("max_run_res"));
    assert!(
        says(r#""resources_available":{"ngpus":4},"server_state""#).contains("resources_available")
    );
    let sum = r#""enabled":"True","resources_available":{"ngpus":8},"#;
    let queues = jobs::parse_queues(&QUEUES.replacen(r#""enabled":"True","#, sum, 1)).unwrap();
    assert_eq!(
        queues[0].barred,
        "it has resources_available, which pbs_sched alone keeps"
    );
    let off = SERVER.replace("\"scheduling\":\"True\"", "\"scheduling\":\"False\"");
    assert!(
        jobs::server_bars(&off)
            .unwrap()
            .contains("scheduling is off")
    );
}

/// The vnodes of a GPU each, as PBS prints them; `jobs` are those of the first ones.
fn gpus(jobs: &[&str]) -> String {
    let vnode = |(at, jobs): (usize, &&str)| {
        let (state, jobs) = match *jobs {
            "" => ("free", String::new()),
            jobs => ("job-exclusive", format!(r#""jobs":[{jobs}],"#)),
        };
        format!(
            r#""n[{at}]":{{"state":"{state}","sharing":"force_excl",{jobs}"resources_available":{{"host":"n","ncpus":1,"ngpus":1}},
            "resources_assigned":{{}}}}"#
        )
    };
    let all: Vec<_> = jobs.iter().enumerate().map(vnode).collect();
    format!("{{\"nodes\":{{{}}}}}", all.join(","))
}

#[test]
fn vnodes_that_a_refused_start_has_left_are_told() {
    let vnodes = gpus(&[
        r#""1.head/0""#,
        r#""1.head/0","1.head/1""#,
        r#""7[3].head""#,
        "",
    ]);
    let jobs = r#"{"Jobs":{"1.head":{"job_state":"Q","queue":"workq"}}}"#;
    let waits = site(&vnodes, jobs);
    assert_eq!(waits.notes.len(), 1, "{:?}", waits.notes);
    let told = &waits.notes[0];
    assert!(
        told.starts_with("PBS keeps n[0] n[1] for job 1.head,"),
        "{told}"
    );
    assert!(waits.has_left("1.head") && !waits.has_left("7[3].head"));
    // It runs, and has one of them.
    let jobs =
        r#"{"Jobs":{"1.head":{"job_state":"R","queue":"workq","exec_vnode":"(n[0]:ncpus=0)"}}}"#;
    let told = &site(&vnodes, jobs).notes;
    assert!(
        told[0].starts_with("PBS keeps n[1] for job 1.head,"),
        "{told:?}"
    );
}

#[test]
fn a_planned_start_holds_while_job_and_vnodes_are_the_same() {
    let world = World::random(1, 2, 0, 1);
    let text = world.jobs();
    let (all, _) = jobs::parse(&text).unwrap();
    let planned = &all[0];
    assert_eq!(fresh::still_waits(planned, &text), Ok(()));
    let now = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        fresh::still_waits(planned, &text.replace(from, to)).unwrap_err()
    };
    let state = "\"job_state\":\"Q\"";
    assert_eq!(now(state, "\"job_state\":\"H\""), "it is in state H by now");
    assert!(now(state, &format!("{state},{state}")).contains("cannot be read"));
    let other = "it asks for something else by now";
    for (from, to) in [
        ("\"place\":\"", "\"place\":\"excl:"),
        ("\"schedselect\":\"", "\"schedselect\":\"1"),
        ("\"queue\":\"workq\"", "\"queue\":\"express\""),
        (state, &format!("{state},\"reserve_ID\":\"R1.head\"")),
    ] {
        assert_eq!(now(from, to), other);
    }
    assert_eq!(
        fresh::still_waits(planned, "{}"),
        Err("PBS does not know it any more".into())
    );
    let free =
        |jobs: &[&str]| fresh::still_free("1.head", "(n[0]:ngpus=1+n[1]:ngpus=1)", &gpus(jobs));
    assert_eq!(free(&["", ""]), Ok(()));
    // Left with it by a start that was refused.
    assert_eq!(free(&["", r#""1.head/0""#]), Ok(()));
    let gone = || Err("vnode n[1] is not free any more".to_owned());
    assert_eq!(free(&["", r#""2.head/0""#]), gone());
    assert_eq!(free(&[""]), gone());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_answers_are_refused_or_read(seed in 0u64..1000, cuts in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\n\"{}:,]{0,5}"), 1..10)) {
        let world = World::random(seed, 5, 4, 5);
        let damage = |text: String| {
            let mut text: Vec<char> = text.chars().collect();
            for (at, word) in &cuts {
                let at = at.index(text.len());
                let end = (at + word.chars().count()).min(text.len());
                text.splice(at..end, word.chars());
            }
            text.into_iter().collect::<String>()
        };
        let (vnodes, jobs) = (damage(world.vnodes()), damage(world.jobs()));
        let texts = Texts { vnodes: &vnodes, jobs: &jobs, queues: QUEUES, server: SERVER };
        if let Ok(site) = Site::read(&texts, Config::default()) {
            crate::pass::checked(&site);
        }
    }

    #[test]
    fn any_text_comes_back(text in "\\PC{0,200}") {
        let _ = (Json::parse(&text), Nodes::parse(&text), jobs::parse(&text));
    }
}

/// A GPU that jobs share is one of its host's, whatever is free of it, and no job gets it as a whole from here.
#[test]
fn a_gpu_that_jobs_share_is_counted_and_never_given_as_a_whole() {
    let vnode = |name: &str, sharing: &str, has: &str, given: &str| {
        format!(
            r#""{name}":{{"Mom":"n1","state":"free","sharing":"{sharing}","resources_available":{{"host":"n1","ncpus":8,"mem":"9gb",{has}}},"resources_assigned":{{{given}}}}}"#
        )
    };
    let shared = vnode(
        "n1[0]",
        "default_shared",
        r#""ngpus":0,"gpuos_share_parts":4"#,
        r#""gpuos_share_parts":2"#,
    );
    let whole = vnode("n1[1]", "force_excl", r#""ngpus":1"#, "");
    let text = format!(r#"{{"nodes":{{{shared},{whole}}}}}"#);
    let job = |number: u32, gpus: u32| {
        format!(
            r#""{number}.head":{{"job_state":"Q","queue":"workq","Job_Owner":"ann@head","Priority":0,"qtime":"{number}","Resource_List":{{"select":"1:ncpus=1:ngpus={gpus}","place":"free"}}}}"#
        )
    };
    let jobs = format!(r#"{{"Jobs":{{{},{}}}}}"#, job(1, 2), job(2, 1));
    let site = site(&text, &jobs);
    assert_eq!(site.nodes.hosts[0].gpus, 2);
    let at = site.nodes.vnode("n1[1]").expect("the vnode");
    assert_eq!(site.nodes.vnodes[at].first_gpu, 1);
    let mut planner = Planner::new(site.cluster.clone());
    let plan = plan(&site, &mut planner, Bounds::default(), &HashSet::new());
    let starts: Vec<(&str, &str)> = plan
        .starts
        .iter()
        .map(|start| (&start.job[..], &start.exec_vnode[..]))
        .collect();
    assert_eq!(starts, [("2.head", "(n1[1]:ncpus=1:ngpus=1)")], "{plan:?}");
}
