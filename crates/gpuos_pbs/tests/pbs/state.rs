//! What PBS prints, read with its faults.

use gpuos_config::gpuos_toml::Config;
use gpuos_pbs::state::json::Json;
use gpuos_pbs::state::nodes::Nodes;
use gpuos_pbs::state::{Site, Texts, fresh, jobs};
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

/// One host with these resources and what jobs have of them.
fn one(has: &str, given: &str) -> Nodes {
    let text = format!(
        r#"{{"nodes":{{"n":{{"state":"free","sharing":"default_shared","resources_available":{{{has}}},"resources_assigned":{{{given}}}}}}}}}"#
    );
    Nodes::parse(&text).unwrap()
}

#[test]
fn which_gpus_are_free_is_what_the_host_shows_as_far_as_it_agrees_with_the_counts() {
    let sets = |has: &str, given: &str| {
        let nodes = one(has, given);
        let host = &nodes.hosts[0];
        let sets = [host.present, host.free, host.out].map(|set| set.to_string());
        (host.gpus, sets.join(" "))
    };
    let shown = r#""ngpus":8,"gpuos_host":"whole=0-7;free=1,4-7;out=-""#;
    for (has, given, wanted) in [
        // Nothing is shown: the first ones.
        (r#""ngpus":8"#, r#""ngpus":3"#, (8, "0-7 0-4 -")),
        (shown, r#""ngpus":3"#, (8, "0-7 1,4-7 -")),
        // A job has started, or has ended, since that was shown.
        (shown, r#""ngpus":5"#, (8, "0-7 1,4-5 -")),
        (shown, r#""ngpus":1"#, (8, "0-7 0-2,4-7 -")),
        // More are given away than there are.
        (shown, r#""ngpus":9"#, (8, "0-7 - -")),
        // An administrator has set another number.
        (
            r#""ngpus":10,"gpuos_host":"whole=0-7;free=0-7;out=-""#,
            r#""ngpus":1"#,
            (10, "0-9 0-8 -"),
        ),
        (
            r#""ngpus":7,"gpuos_ngpus":"8>7","gpuos_host":"whole=0-7;free=0-1,4-7;out=3""#,
            r#""ngpus":1"#,
            (8, "0-2,4-7 0-1,4-7 3"),
        ),
        // One is out of service, and gpuosd shows nothing.
        (
            r#""ngpus":7,"gpuos_ngpus":"8>7""#,
            r#""ngpus":1"#,
            (8, "0-6 0-5 7"),
        ),
        // The last two are shared.
        (
            r#""ngpus":6,"gpuos_ngpus":"8>6","gpuos_host":"whole=0-5;free=0-5;out=-""#,
            "",
            (8, "0-5 0-5 -"),
        ),
        // What cannot be read counts as not shown.
        (r#""ngpus":2,"gpuos_host":"free""#, "", (2, "0-1 0-1 -")),
    ] {
        let (gpus, text) = wanted;
        assert_eq!(sets(has, given), (gpus, text.to_owned()), "{has} {given}");
    }
    let notes = one(r#""ngpus":2,"gpuos_host":"free""#, "").notes;
    assert!(
        notes[0].starts_with("gpuos_host of n cannot be read"),
        "{notes:?}"
    );
    let bad = one(r#""ngpus":2,"gpuos_ngpus":"x>1""#, "");
    assert!(
        bad.notes[0].contains("gpuos_ngpus has no number"),
        "{:?}",
        bad.notes
    );
}

#[test]
fn a_host_of_several_vnodes_has_the_gpus_of_all_of_them() {
    let mut world = World::random(7, 1, 0, 0);
    let host = &mut world.hosts[0];
    (host.gpus, host.island, host.out, host.down) = (8, 4, 0, false);
    host.vnodes = 2;
    let nodes = Nodes::parse(&world.vnodes()).unwrap();
    assert_eq!(nodes.hosts.len(), 1);
    let (host, free) = (&nodes.hosts[0], nodes.hosts[0].free.to_string());
    assert_eq!((host.gpus, host.up, &free[..]), (8, true, "0-7"));
    let names: Vec<_> = nodes.vnodes.iter().map(|vnode| &vnode.name[..]).collect();
    assert_eq!(names, ["n0", "n0[0]", "n0[1]"]);
    // What an earlier gpuos has left of jobs that still run is offline, and counted on the host too.
    let old = r#"{"nodes":{"n0":{"state":"free","resources_available":{"ngpus":8,"gpuos_ngpus":"8>7","gpuos_host":"whole=0-7;free=0-2,4-7;out=-"}},
        "n0[3]":{"state":"offline","sharing":"force_excl","jobs":["7.head"],"resources_available":{"ngpus":1,"host":"n0"},
        "resources_assigned":{"ngpus":1}}}}"#;
    let nodes = Nodes::parse(&old.replacen("\"ngpus\":8", "\"ngpus\":7", 1)).unwrap();
    let host = &nodes.hosts[0];
    assert_eq!((host.gpus, host.free.to_string()), (8, "0-2,4-7".into()));
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
fn hosts_of_a_job_are_those_that_pbs_names_whatever_its_vnodes_are_called() {
    let hosts = |more: &str| {
        let text = format!(
            r#"{{"Jobs":{{"1.head":{{"job_state":"R","queue":"workq","exec_vnode":"(n1[0]:ngpus=1+n1[1]:ngpus=1)+(n2:ngpus=1)"{more}}}}}}}"#
        );
        jobs::parse(&text).unwrap().0[0].hosts.join(" ")
    };
    assert_eq!(hosts(""), "n1 n2");
    assert_eq!(hosts(r#","exec_host":"g1.example/0*2+g2/1+g1/3""#), "g1 g2");
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
    let free = |more: &str, given: &str| {
        let vnodes = format!(
            r#"{{"nodes":{{"n1":{{"state":"free",{more}"resources_available":{{"ngpus":8,"ncpus":16,"mem":"64gb"}},"resources_assigned":{{{given}}}}},
            "n2":{{"state":"free","resources_available":{{"ngpus":8,"ncpus":16,"mem":"64gb"}}}}}}}}"#
        );
        let start =
            "(n1:ncpus=4:mem=1048576kb:ngpus=2)+(n1:ncpus=4:mem=1048576kb:ngpus=2)+(n2:ngpus=8)";
        fresh::still_free(planned, start, &vnodes)
    };
    assert_eq!(free("", r#""ngpus":4,"ncpus":8,"mem":"62gb""#), Ok(()));
    let gone = || Err("vnode n1 has no room for it any more".to_owned());
    for given in [r#""ngpus":5"#, r#""ncpus":9"#, r#""mem":"65011713kb""#] {
        assert_eq!(free("", given), gone(), "{given}");
    }
    let taken = [
        r#""sharing":"default_excl","jobs":["7.head/0"],"#,
        r#""partition":"p2","#,
    ];
    assert!(taken.iter().all(|more| free(more, "") == gone()));
    let (mut alone, _) = jobs::parse(&text.replace("\"place\":\"", "\"place\":\"excl:")).unwrap();
    let busy = r#"{"nodes":{"n1":{"state":"free","jobs":["7.head/0"],"resources_available":{"ngpus":8}}}}"#;
    let start = |job: &jobs::Job| fresh::still_free(job, "(n1:ngpus=2)", busy);
    assert_eq!(start(planned), Ok(()));
    assert_eq!(start(&alone.remove(0)), gone());
    let unknown = fresh::still_free(planned, "(n9:ngpus=1)", busy);
    assert_eq!(unknown, Err("vnode n9 has no room for it any more".into()));
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
