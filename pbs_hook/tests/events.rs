//! Events by the hook, with the real command and library.

use serde_json::json;

use crate::support::{ACCEPTED, ASKING, Hook, PLAIN, command, has_python, library, own};

fn hosts() -> serde_json::Value {
    json!({ "n1": { "leaf": "l1", "gpus": [{ "uuid": "GPU-a", "nvlink": "p" }, { "uuid": "GPU-b", "nvlink": "p" }] } })
}

#[test]
fn a_job_is_translated_refused_or_left_alone() {
    if !has_python() {
        return;
    }
    let hook = Hook::new(&hosts());
    let wrong = ASKING.replace("=leaf", "=spine");
    let changed = "pbs.event().type=modifyjob\npbs.event().job.Resource_List[gpuos_topology]=nvlink\n\
                   pbs.event().job_o.Resource_List[gpuos_topology]=leaf\npbs.event().job_o.Resource_List[select]=2:ngpus=1\n\
                   pbs.event().job_o.Resource_List[place]=scatter:group=gpuos_leaf";
    let said = hook.run(&[PLAIN, ASKING, &wrong, changed, PLAIN]);
    assert_eq!(said[0], ACCEPTED);
    assert_eq!(
        said[1],
        format!("{ACCEPTED}pbs.event().job.Resource_List[place]=free:group=gpuos_leaf\n")
    );
    assert_eq!(
        said[2],
        "pbs.event().accept=False\npbs.event().reject=True\npbs.event().reject_msg=-l gpuos_topology=spine: this cluster has no level \
         'spine'; write one of node, nvlink, leaf, any\n"
    );
    assert_eq!(
        said[3],
        format!("{ACCEPTED}pbs.event().job.Resource_List[place]=scatter:group=gpuos_nvlink\n")
    );
    assert_eq!(said[4], ACCEPTED);
}

#[test]
fn a_start_across_leaves_is_put_off() {
    if !has_python() {
        return;
    }
    let start = |leaf: &str| {
        format!(
            "pbs.event().type=runjob\npbs.event().job.Resource_List[gpuos_topology]=leaf:required\n\
             pbs.event().job.exec_vnode=(n1:ngpus=1)+(n2:ngpus=1)\n\
             pbs.server().vnode(\"n1\").resources_available[gpuos_leaf]=l1\n\
             pbs.server().vnode(\"n2\").resources_available[gpuos_leaf]={leaf}"
        )
    };
    let said = Hook::new(&hosts()).run(&[&start("l1"), &start("l2")]);
    assert_eq!(said[0], ACCEPTED);
    assert!(
        said[1].contains("reject_msg=-l gpuos_topology=leaf:required: no leaf had room"),
        "{}",
        said[1]
    );
    assert!(
        said[1].contains("pbs.event().job.Resource_List[gpuos_vetoes]=1\n"),
        "{}",
        said[1]
    );
    assert!(
        said[1].contains("pbs.event().job.Execution_Time="),
        "{}",
        said[1]
    );
}

/// A job of an array with a time to wait for is in a state that pbs_server does not count when it looks whether the array has ended.
#[test]
fn a_start_of_a_subjob_is_refused_and_nothing_of_it_changed() {
    if !has_python() {
        return;
    }
    let start = "pbs.event().type=runjob\npbs.event().job.id=12[3].head\n\
                 pbs.event().job.Resource_List[gpuos_topology]=leaf:required\n\
                 pbs.event().job.exec_vnode=(n1:ngpus=1)+(n2:ngpus=1)\n\
                 pbs.server().vnode(\"n1\").resources_available[gpuos_leaf]=l1\n\
                 pbs.server().vnode(\"n2\").resources_available[gpuos_leaf]=l2";
    let said = Hook::new(&hosts()).one(start);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(
        lines[2].contains(
            "reject_msg=-l gpuos_topology=leaf:required: no leaf had room for all of this subjob"
        ),
        "{said}"
    );
}

/// pbs_server itself counts nothing when an operator has a job started, or the planner.
#[test]
fn a_start_that_others_than_pbs_sched_want_finds_its_gpus_free() {
    if !has_python() {
        return;
    }
    let start = |who: &str, gpus: u32, assigned: &str| {
        let vnode = "pbs.server().vnode(\"n1\")";
        format!(
            "pbs.event().type=runjob\npbs.event().requestor={who}\npbs.event().job.id=1.head\npbs.event().job.exec_vnode=(n1:ncpus=1:ngpus={gpus})\n\
             {vnode}.resources_available[ngpus]=8\n{assigned}"
        )
    };
    let six = "pbs.server().vnode(\"n1\").resources_assigned[ngpus]=6";
    let sent = |substate: &str| {
        let job = "pbs.server().job(\"9.head\")";
        format!(
            "pbs.server().vnode(\"n1\").jobs=9.head/0, 9.head/1\n{job}.substate={substate}\n{job}.exec_vnode=(n1:ngpus=4)+(n1:ncpus=1:ngpus=2)+(n2:ngpus=8)"
        )
    };
    let events = [
        start("root", 2, six),
        start("root", 3, six),
        // Of this vnode jobs have nothing yet.
        start("root", 8, ""),
        start("root", 9, ""),
        start("Scheduler", 3, six),
        // Its reservation has them already.
        format!(
            "{}\npbs.event().job.reserve_ID=R7.head",
            start("root", 3, six)
        ),
        // PBS does not say how many it has.
        start("root", 99, six).replace("resources_available[ngpus]", "resources_available[ncpus]"),
        // They are counted on another vnode.
        start("root", 9, six).replace("[ngpus]=8", "[ngpus]=@n0"),
        // What `qrun` has started is on the vnode before it is assigned, and of a suspended job it is others'.
        start("root", 3, &sent("41")),
        start("root", 2, &sent("41")),
        start("root", 8, &sent("45")),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let said = Hook::new(&hosts()).run(&events);
    for at in [0, 2, 4, 5, 6, 7, 9, 10] {
        assert_eq!(said[at], ACCEPTED, "{}", events[at]);
    }
    for (at, wanted) in [
        (1, "would have 3 GPUs of n1, and 2 are left there"),
        (3, "would have 9 GPUs of n1, and 8 are left there"),
        (8, "would have 3 GPUs of n1, and 2 are left there"),
    ] {
        assert!(
            said[at].contains("accept=False") && said[at].contains(wanted),
            "{}",
            said[at]
        );
    }
    // Beside a planner pbs_sched counts what that has not started yet as free.
    let known =
        json!({ "command": command(), "library": library(), "hosts": hosts(), "planner": true });
    let said = Hook::with(&known.to_string()).one(events[4]);
    assert!(said.contains("and 2 are left there"), "{said}");
    // A command that is away, or too slow, leaves such a start in its queue, and no other.
    let known = json!({ "command": "/nonexistent", "library": library(), "hosts": hosts() });
    let said = Hook::with(&known.to_string()).run(&events[..2]);
    assert_eq!(said[0], ACCEPTED);
    let told = said[1].contains("accept=False") && said[1].contains("cannot be run");
    assert!(told, "{}", said[1]);
}

#[test]
fn a_reservation_is_translated_or_refused() {
    if !has_python() {
        return;
    }
    let new = "pbs.event().type=resvsub\npbs.event().resv.Resource_List[select]=8:ngpus=8\n";
    let leaf = format!("{new}pbs.event().resv.Resource_List[gpuos_topology]=leaf");
    let power = format!("{new}pbs.event().resv.Resource_List[gpuos_power]=300W");
    let changed = "pbs.event().type=modifyresv\npbs.event().resv.Resource_List[gpuos_topology]=nvlink\n\
                   pbs.event().resv_o.Resource_List[gpuos_topology]=leaf\npbs.event().resv_o.Resource_List[select]=2:ngpus=1\n\
                   pbs.event().resv_o.Resource_List[place]=scatter:group=gpuos_leaf";
    let old = format!("{leaf}\nlacks=MODIFYRESV");
    let said = Hook::new(&hosts()).run(&[new, &leaf, &power, changed, &old]);
    assert_eq!(said[0], ACCEPTED);
    let placed = format!("{ACCEPTED}pbs.event().resv.Resource_List[place]=free:group=gpuos_leaf\n");
    assert_eq!(said[1], placed);
    assert!(
        said[2].contains("reject_msg=-l gpuos_power=300W: it means nothing for a reservation; "),
        "{}",
        said[2]
    );
    assert_eq!(
        said[3],
        format!("{ACCEPTED}pbs.event().resv.Resource_List[place]=scatter:group=gpuos_nvlink\n")
    );
    assert_eq!(
        said[4], placed,
        "a PBS that does not know changes of reservations"
    );
}

/// A mom that comes back drops what she has of a lost run by the job's name, and a run that she was given meanwhile with it.
#[test]
fn a_job_that_has_lost_a_host_waits_until_one_that_has_just_come_back_is_settled() {
    if !has_python() {
        return;
    }
    let now = 1_800_000_000;
    // How its last run ended, when the host of a vnode that it is to have changed its state and a job last ended there, and more lines. That vnode
    // has just become free.
    let start = |exit: i32, (since, used): (u64, u64), more: &str| {
        format!(
            "pbs.event().type=runjob\nnow={now}\npbs.event().job.id=1.head\npbs.event().job.exec_vnode=(n1[0]:ncpus=1)+(n2:ncpus=1)\n\
             pbs.event().job.Exit_status={exit}\npbs.server().vnode(\"n1\").last_state_change_time={since}\n\
             pbs.server().vnode(\"n1\").last_used_time={used}\npbs.server().vnode(\"n1[0]\").last_state_change_time={now}\n\
             pbs.server().vnode(\"n2\").last_state_change_time=7\n{more}"
        )
    };
    let says = "pbs.event().job.Resource_List[gpuos_topology]=leaf\n";
    let put_off = [
        (9, start(-20, (now - 9, 0), "")),
        (0, start(-14, (now, now - 1), "")),
        (0, start(-20, (now, now - 60), says)),
    ];
    let let_go = [
        start(-20, (now - 10, 0), ""),
        start(-11, (now, 0), ""),
        start(0, (now, 0), ""),
        start(-20, (now, 0), "").replace("Exit_status=-20", "Exit_status="),
        // An operator starts a job without GPUs while pbs_sched is off.
        start(-20, (now, 0), "pbs.server().scheduling=False\n"),
        // It changed with the end of a job.
        start(-20, (now, now), ""),
        start(-20, (now - 1, now), ""),
        // This PBS does not say when.
        start(-20, (now, 0), "").replace("last_state_change_time", "another"),
    ];
    let hook = Hook::new(&hosts());
    let events = put_off.iter().map(|(_, event)| event).chain(&let_go);
    let all: Vec<&str> = events.map(String::as_str).collect();
    let said = hook.run(&all);
    let (off, gone) = said.split_at(put_off.len());
    for (outcome, (ago, _)) in off.iter().zip(&put_off) {
        assert_eq!(
            outcome,
            &format!(
                "pbs.event().accept=False\npbs.event().reject=True\npbs.event().reject_msg=the host of vnode n1[0] may have come back just now, with \
                 the run of this job that was lost; the start is tried again\npbs.event().job.Execution_Time={}\n",
                now + 10 - ago
            )
        );
    }
    for (outcome, event) in gone.iter().zip(&let_go) {
        assert_eq!(outcome, ACCEPTED, "{event}");
    }
    let subjob = start(-20, (now, 0), "").replace("1.head", "1[2].head");
    let said = hook.one(&subjob);
    assert!(
        said.contains("the start is tried again") && !said.contains("Execution_Time"),
        "{said}"
    );
}

#[test]
fn a_launch_that_asks_for_nothing_goes_on_whatever_is_decided() {
    if !has_python() {
        return;
    }
    // A bracket is not closed: nobody can tell which GPUs those are.
    let launch = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\n\
                  pbs.event().job.exec_vnode=(n1:ngpus=1\npbs.event().env=\"\"\"A=1\"\"\"";
    let asking = format!("{launch}\npbs.event().job.Resource_List[gpuos_topology]=leaf");
    let said = Hook::new(&hosts()).run(&[launch, &asking]);
    assert!(
        said[0].starts_with("log=gpuos cannot read exec_vnode") && said[0].ends_with(ACCEPTED),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("reject_msg=gpuos cannot read exec_vnode"),
        "{}",
        said[1]
    );
}

/// PBS deletes a job whose launch is refused, unless the hook says that it is to run again.
#[test]
fn a_launch_without_its_slices_is_refused_and_its_job_is_queued_again() {
    if !has_python() {
        return;
    }
    let launch = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\n\
                  pbs.event().job.Resource_List[gpuos_mig]=1g.10gb\n\
                  pbs.event().job.exec_vnode=(n1:ncpus=1:gpuos_mig_compute=1:gpuos_mig_memory=1)\npbs.event().env=\"\"\"A=1\"\"\"";
    let said = Hook::new(&hosts()).one(launch);
    for part in [
        "pbs.event().reject=True",
        "reject_msg=the slices of this job are not there, and it is queued again: gpuosd",
        "pbs.event().job._rerun=True",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_share_is_counted_by_what_the_site_shares_and_counts_by_hand_are_refused() {
    if !has_python() {
        return;
    }
    let shares = json!({ "parts": 4, "turns": 2, "gpu_mib": 81_559, "most_mib": 80_535 });
    let config =
        json!({ "command": command(), "library": library(), "hosts": {}, "shares": shares });
    let hook = Hook::with(&config.to_string());
    let share = "pbs.event().job.Resource_List[gpuos_share]=timeslice,mem=60G";
    let submit = |select: &str| {
        format!("pbs.event().type=queuejob\npbs.event().job.Resource_List[select]={select}")
    };
    let counted = format!("{}\n{share}", submit("1:ncpus=2:mem=16gb"));
    let by_hand = submit("1:ncpus=2:gpuos_share_parts=1");
    let start =
        format!("pbs.event().type=runjob\n{share}\npbs.event().job.exec_vnode=(n1:ncpus=1)");
    let said = hook.run(&[&counted, &by_hand, &start]);
    let line = "Resource_List[select]=1:ncpus=2:mem=76gb:gpuos_share_parts=2\n";
    assert!(said[0].contains(line), "{}", said[0]);
    assert!(
        said[1].contains("gpuos counts it by what a job asks for"),
        "{}",
        said[1]
    );
    assert!(said[2].contains("not counted as it is now"), "{}", said[2]);
}

#[test]
fn memory_beyond_gpus_is_counted_by_what_the_site_allows() {
    if !has_python() {
        return;
    }
    let memory = json!({ "gpu_mib": 81_920, "most_percent": 400, "reserve_mib": 1024 });
    let config =
        json!({ "command": command(), "library": library(), "hosts": {}, "memory": memory });
    let hook = Hook::with(&config.to_string());
    let asked = "pbs.event().job.Resource_List[gpuos_mem]=120G,policy=lru";
    let submit = |select: &str| {
        format!("pbs.event().type=queuejob\npbs.event().job.Resource_List[select]={select}")
    };
    let counted = format!("{}\n{asked}", submit("2:ngpus=1:mem=16gb"));
    let by_hand = submit("1:ngpus=1:mem=57gb:gpuos_mem_beyond=41gb");
    let start = format!(
        "pbs.event().type=runjob\n{asked}\npbs.event().job.exec_vnode=(n1:ngpus=1:mem=16gb)"
    );
    let said = hook.run(&[&counted, &by_hand, &start]);
    let line = "Resource_List[select]=2:ngpus=1:mem=57gb:gpuos_mem_beyond=41gb\n";
    assert!(said[0].contains(line), "{}", said[0]);
    assert!(
        said[1].contains("gpuos counts it by what a job asks for"),
        "{}",
        said[1]
    );
    assert!(said[2].contains("not counted as it is now"), "{}", said[2]);
}

/// Of each vnode and each host no more than what is needed goes to command and library, which read 8 MiB.
#[test]
fn a_job_on_ten_thousand_hosts_is_started() {
    if !has_python() {
        return;
    }
    let name = |host: usize| format!("rack17node{host:05}");
    let gpus: Vec<_> = (0..8)
        .map(|gpu| json!({ "uuid": format!("GPU-0000-{gpu:012}"), "nvlink": "r17-nvlink" }))
        .collect();
    let host = |host| {
        (
            name(host),
            json!({ "leaf": "leaf-switch-0017", "gpus": gpus }),
        )
    };
    let hosts: serde_json::Map<String, _> = (0..10_000).map(host).collect();
    let given: Vec<String> = (0..10_000)
        .map(|host| format!("({}:ncpus=14:mem=257949696kb:ngpus=8)", name(host)))
        .collect();
    let given = given.join("+");
    let vnodes: String = (0..10_000)
        .map(|host| {
            let vnode = format!("pbs.server().vnode(\"{}\")", name(host));
            format!("{vnode}.resources_available[gpuos_leaf]=leaf-switch-0017\n{vnode}.resources_available[ngpus]=8\n")
        })
        .collect();
    let start = format!(
        "pbs.event().type=runjob\npbs.event().job.Resource_List[gpuos_topology]=leaf:required\n\
         pbs.event().job.exec_vnode={given}\n{vnodes}"
    );
    let launch = format!(
        "pbs.event().type=execjob_launch\npbs.get_local_nodename()=rack17node00007\n\
         pbs.event().job.exec_vnode={given}\npbs.event().env=\"\"\"A=1\"\"\""
    );
    let said = Hook::new(&hosts.into()).run(&[&start, &launch]);
    assert_eq!(said[0], ACCEPTED);
    assert!(
        said[1].contains("gpuosd is not told of jobs on this host") && said[1].ends_with(ACCEPTED),
        "{}",
        said[1]
    );
}

#[test]
fn without_command_or_library_only_jobs_that_ask_are_refused() {
    if !has_python() {
        return;
    }
    let launch = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.exec_vnode=(n1:ngpus=1)\npbs.event().env=\"\"\"A=1\"\"\"";
    let asking = format!("{launch}\npbs.event().job.Resource_List[gpuos_topology]=leaf");
    let not_a_library = own("gpuos_hook.py");
    let configs = [
        String::new(),
        "[]".into(),
        "{".into(),
        "{}".into(),
        json!({ "command": "/nowhere/gpuos", "library": "/nowhere/lib.so" }).to_string(),
        json!({ "command": "/bin/false", "library": not_a_library }).to_string(),
        // A library, and not this one; a command that answers something else.
        json!({ "command": "/bin/true", "library": "libc.so.6" }).to_string(),
        json!({ "command": "/bin/echo", "library": "libc.so.6" }).to_string(),
    ];
    for config in &configs {
        let said = Hook::with(config).run(&[PLAIN, ASKING, launch, &asking]);
        assert_eq!(said[0], ACCEPTED, "{config}");
        for refused in [&said[1], &said[3]] {
            assert!(
                refused.contains("reject_msg=gpuos cannot decide about this: "),
                "{config}: {refused}"
            );
        }
        assert!(
            said[2].starts_with("log=gpuos cannot decide about this: ")
                && said[2].ends_with(ACCEPTED),
            "{config}: {}",
            said[2]
        );
    }
}

/// A hook whose command never answers, and has started another one, which keeps its output open.
pub fn hanging() -> Hook {
    let hook = Hook::with("{}");
    let script = hook.path("hangs");
    std::fs::write(&script, "#!/bin/sh\nsleep 600\nsleep 600\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let known = json!({ "command": script }).to_string();
    std::fs::write(hook.path("hook.json"), known).unwrap();
    hook
}

#[test]
fn a_command_that_hangs_is_given_up_before_the_alarm() {
    if !has_python() {
        return;
    }
    let said = hanging().run_patiently("3", &[ASKING, PLAIN]);
    assert!(said[0].contains("took longer than 3 s"), "{}", said[0]);
    assert_eq!(said[1], ACCEPTED);
}

#[test]
fn hostile_texts_reach_the_command_as_texts() {
    if !has_python() {
        return;
    }
    let hook = Hook::new(&hosts());
    for text in [
        "leaf\",\"verdict\":\"accept\",\"x\":\"",
        "leaf'; qmgr -c 'delete hook gpuos'",
        "$(id)",
        "leaf\\u0000",
        "\u{1f600}",
        "leaf\u{1b}[2J",
    ] {
        let said = hook.one(&ASKING.replace("=leaf", &format!("={text}")));
        assert!(said.starts_with("pbs.event().accept=False\n"), "{said}");
        assert_eq!(said.lines().count(), 3, "a sentence is one line: {said}");
        let place = hook.one(&format!(
            "{ASKING}\npbs.event().job.Resource_List[place]={text}"
        ));
        assert!(place.contains("reject_msg=-l place="), "{place}");
    }
}

#[test]
fn an_event_without_a_job_is_let_pass() {
    if !has_python() {
        return;
    }
    assert_eq!(
        Hook::new(&hosts()).one("pbs.event().type=periodic"),
        ACCEPTED
    );
}

#[test]
fn the_hook_is_short_and_imports_what_every_python_has() {
    let text = std::fs::read_to_string(own("gpuos_hook.py")).unwrap();
    assert!(text.lines().count() < 670, "{} lines", text.lines().count());
    let outside: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("import "))
        .filter(|module| {
            ![
                "collections",
                "ctypes",
                "grp",
                "json",
                "os",
                "pwd",
                "re",
                "signal",
                "subprocess",
                "sys",
                "time",
                "pbs",
            ]
            .contains(module)
        })
        .collect();
    assert_eq!(outside, Vec::<&str>::new());
}
