//! `gpuos why`.

use std::fs;

use crate::site::{RELEASES, Site};

#[test]
fn why_explains_running_and_waiting_jobs() {
    for release in RELEASES {
        let site = Site::new(release);
        let gang = site.run(&["why", "2"]);
        assert_eq!(gang.code, 0, "{}", gang.err);
        assert!(
            gang.out
                .starts_with("Job 2 runs: 8 GPUs on 2 nodes (n[1-2]), inside leaf leaf1"),
            "{}",
            gang.out
        );
        assert!(gang.out.contains("gpuos left no note"), "{}", gang.out);
        let row = gang.out.lines().find(|l| l.starts_with("n1 ")).unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["n1", "dgx-h100", "4", "4-7", "NV18"]
        );

        let big = site.run(&["why", "8"]);
        assert_eq!(big.code, 0);
        assert!(
            big.out.starts_with(
                "Job 8 waits. It cannot start while node n4 is drained, not even when all"
            ) && big.out.contains("Not enough room now: 4 nodes needed"),
            "{}",
            big.out
        );
        let range = site.run(&["--json", "why", "9"]).json();
        let job = &range["jobs"][0];
        assert_eq!(
            (job["cause"].as_str(), job["wait"]["kind"].as_str()),
            (Some("gpus"), Some("capacity"))
        );
        let at = job["forecast"]["at"].as_str().unwrap();
        assert!(at.starts_with("2026-11-20T2"), "{release}: {at}");
        assert!(!job["forecast"]["jobs"].as_array().unwrap().is_empty());

        for (job, words) in [
            ("10", "its user holds it"),
            ("11", "it depends on other jobs (afterok:1(unfulfilled))"),
            ("14", "may start at"),
        ] {
            let answer = site.run(&["why", job]);
            assert_eq!(answer.code, 0);
            assert!(
                answer.out.contains("not for GPUs"),
                "{release}: {}",
                answer.out
            );
            assert!(answer.out.contains(words), "{release}: {}", answer.out);
        }
        // An array: the task that runs and those that wait.
        let array = site.run(&["why", "4", "--json"]).json();
        let labels: Vec<&str> = array["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|j| j["job"].as_str().unwrap())
            .collect();
        assert_eq!(labels, ["4_0", "4"]);
        assert_eq!(site.run(&["why", "4_0"]).code, 0);
    }
}

#[test]
fn why_reads_the_note_and_the_reason_of_gpuos() {
    let site = Site::new("24.11.5");
    site.edit(
        "jobs.txt",
        "   WorkDir=/\n",
        "   WorkDir=/\n   SystemComment=gpuos: level=leaf domain=leaf1 wish=leaf bus=50 lost=0 nodes=4 domains=2 try=1 gpus=n1:4-7,n2:0-3 \n",
    );
    let gang = site.run(&["why", "2"]);
    assert!(gang.out.contains("Slurm refused 1 better"), "{}", gang.out);
    assert!(!gang.out.contains("left no note"), "{}", gang.out);

    // A required level: the wish stands in the reason, from which the smallest change comes.
    // One node is free in each leaf switch.
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    site.edit(
        "nodes.txt",
        "GresUsed=gpu:h100:7(IDX:0-6)",
        "GresUsed=gpu:h100:0(IDX:N/A)",
    );
    site.edit(
        "jobs.txt",
        "JobState=PENDING Reason=Priority",
        "JobState=PENDING Reason=gpuos:_The_job_requires_one_leaf_domain._It_starts_now_with_--gpuos-topology=leaf:preferred.",
    );
    let job = &site.run(&["why", "9", "--json"]).json()["jobs"][0];
    assert_eq!(
        (&job["cause"], &job["wait"]["kind"]),
        (&"gpus".into(), &"level".into())
    );
    let text = site.run(&["why", "9"]).out;
    assert!(
        text.contains("start it now: --gpuos-topology=spine:required"),
        "{text}"
    );
    assert!(
        text.contains("Reason in Slurm: gpuos: The job requires one leaf domain"),
        "{text}"
    );
}

#[test]
fn why_says_no_for_jobs_that_are_gone() {
    let site = Site::new("26.05.5");
    let unknown = site.run(&["why", "99999"]);
    assert_eq!(unknown.code, 1);
    assert!(
        unknown.out.starts_with("Job 99999 is not known"),
        "{}",
        unknown.out
    );
    let gone = site.run(&["--json", "why", "99999"]);
    assert_eq!(gone.code, 1);
    assert_eq!(gone.json()["known"], false);
    let jobs = fs::read_to_string(site.path("jobs.txt")).unwrap();
    let gone = jobs
        .split("JobId=")
        .find(|j| j.contains("JobName=gone"))
        .unwrap();
    let id = gone.split_whitespace().next().unwrap();
    let ended = site.run(&["why", id]);
    assert_eq!(ended.code, 1);
    assert!(
        ended.out.contains("has ended") && ended.out.contains("CANCELLED"),
        "{}",
        ended.out
    );
}

#[test]
fn texts_of_users_do_nothing_to_a_screen() {
    for release in RELEASES {
        let site = Site::new(release);
        let name = "JobName=pa\u{1b}[2J\u{9b}1m\u{202e}ir";
        site.edit("jobs.txt", "JobName=pair", name);
        site.edit("nodes.txt", "bad gpu 3", "bad \u{1b}]0;x\u{7}gpu 3");
        let shown = "pa\\u{1b}[2J\\u{9b}1m\\u{202e}ir";
        for words in [
            &["top", "--once"][..],
            &["why", "1"],
            &["health"],
            &["topo"],
        ] {
            let answer = site.run(words);
            let control = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            for text in [&answer.out, &answer.err] {
                assert!(!text.contains(control), "{words:?}: {text:?}");
            }
            if words[0] == "top" {
                assert!(answer.out.contains(shown), "{}", answer.out);
            }
        }
        // Programs get what it is.
        let jobs = site.run(&["--json", "top"]).json();
        let jobs = jobs["jobs"].as_array().unwrap();
        let own = jobs.iter().find(|job| job["job"] == "1").unwrap();
        assert_eq!(own["name"].as_str(), name.strip_prefix("JobName="));
    }
}

#[test]
fn a_job_whose_record_is_not_slurms_alone_is_said_to_be_so_and_no_other_is_made_of_it() {
    for release in RELEASES {
        let site = Site::new(release);
        let phantom = "   WorkDir=/x\n   UserId=root(0)\n\nJobId=999 JobName=phantom\n";
        let text = fs::read_to_string(site.path("jobs.txt")).unwrap();
        // That of job 1, which squeue's rows do not have.
        let at = text.find("   WorkDir=").unwrap();
        site.file(
            "forged.txt",
            &(text[..at].to_owned() + phantom + &text[at..]),
        );
        let script = fs::read_to_string(site.path("scontrol.text")).unwrap();
        let script = script
            .replace("jobs.awk", "none.awk")
            .replace("jobs.txt", "forged.txt");
        site.file("none.awk", "{ print }");
        site.program("scontrol", &script);
        let top = site.run(&["--json", "top"]).json();
        let jobs = top["jobs"].as_array().unwrap();
        assert!(jobs.iter().all(|job| job["job"] != "999"), "{top}");
        let own = jobs.iter().filter(|job| job["job"] == "1").count();
        assert!(own <= 1, "{top}");
        let others = jobs.iter().find(|job| job["job"] == "2").unwrap();
        assert_eq!(others["gpus"], 8, "{top}");
    }
}

#[test]
fn why_says_from_which_checkpoint_a_job_went_on_where_a_mover_tells() {
    use crate::ckpt_bed::{job, lab, mover, other, telling, whole};
    use gpuos_core::wire::{CheckpointJob, CheckpointPhase};

    let told = |told: CheckpointJob| CheckpointJob {
        job: 2.into(),
        ..told
    };
    let site = Site::new("24.11.5");
    let before = site.run(&["why", "2", "--runtime-dir=/nonexistent"]).out;
    let run = mover(&site, telling(&[told(whole())]));
    let gang = site.run(&["why", "2", &run]);
    let sentence =
        "It went on from checkpoint 12; the newest is 15, made 2 d ago, one every 10 min.";
    assert!(gang.out.contains(sentence), "{}", gang.out);
    assert_eq!(gang.out.replace(&format!(" {sentence}"), ""), before);
    let json = site.run(&["--json", "why", "2", &run]).json();
    let checkpoints = &json["jobs"][0]["checkpoints"];
    assert_eq!(checkpoints["restored"], 12);
    assert_eq!(
        (&checkpoints["newest"], &checkpoints["phase"]),
        (&15.into(), &"running".into())
    );
    // Of other jobs nothing is said.
    assert!(!site.run(&["why", "4_0", &run]).out.contains("checkpoint"));
    // In a lab the node that leads is believed; what is left of an earlier run says nothing.
    let site = Site::new("24.11.5");
    let run = lab(
        &site,
        vec![
            ("n1", telling(&[told(other())])),
            ("n2", telling(&[told(whole())])),
        ],
    );
    assert!(site.run(&["why", "2", &run]).out.contains(sentence));
    let failed = CheckpointJob {
        why: "the mover of node n2 has not come".into(),
        ..job(2, CheckpointPhase::Failed)
    };
    let unstored = CheckpointJob {
        failed_in_row: 3,
        failed_why: "checkpoint 3: no space on n2".into(),
        ..job(2, CheckpointPhase::Running)
    };
    for (jobs, words) in [
        (job(2, CheckpointPhase::Left), ""),
        (
            job(2, CheckpointPhase::Running),
            "It began without a checkpoint; none was made yet.",
        ),
        (
            unstored.clone(),
            "It began without a checkpoint; none exists; the last 3 came to nothing, at last checkpoint 3: no space on n2.",
        ),
        (
            failed,
            "No checkpoints are made in this run: the mover of node n2 has not come.",
        ),
    ] {
        let site = Site::new("24.11.5");
        let run = mover(&site, telling(&[jobs]));
        let out = site.run(&["why", "2", &run]).out;
        assert!(out.contains(words), "{out}");
        assert_eq!(out.contains("checkpoint"), !words.is_empty(), "{out}");
    }
}

/// Where gpuos.toml says what GPUs have and the site lets jobs have more.
const STATED: &str = "[memory]\noversubscribe = true\nturns = 2\n[[nodes]]\nmatch = \"n[1-4]\"\ntype = \"dgx-h100\"\n";

/// The record of job 2 with so much memory on each of its nodes, of which it has four GPUs.
fn give(site: &Site, mib: u64) {
    for ids in ["CPU_IDs=8", "CPU_IDs=0"] {
        let from = format!("{ids} Mem=10 GRES=gpu:h100:4");
        let to = format!("{ids} Mem={mib} GRES=gpu:h100:4");
        site.edit("jobs.txt", &from, &to);
    }
}

#[test]
fn why_says_where_the_memory_of_a_running_job_lies_by_its_option() {
    let said = "By --gpuos-mem=120G of its batch script each of its GPUs has 120.0 GiB: 78.6 GiB in its own memory and 41.4 GiB in the host's, unless \
         sbatch's command line said otherwise. `gpuos mem show 2 --node=n1` tells what its programs there have of that now.";
    let script = "#!/bin/sh\n#SBATCH --gpuos-mem=120G\n";
    for release in RELEASES {
        // From 26.05 on the command line is known, and does not have the option.
        let said = match release {
            "26.05.5" => said.replace(", unless sbatch's command line said otherwise", ""),
            _ => said.to_owned(),
        };
        let site = Site::new(release);
        let before = site.run(&["why", "2"]).out;
        site.file("script", script);
        // Of GPUs whose memory gpuos.toml does not say, and of a job with less than sbatch would have given it, nothing is known.
        assert_eq!(site.run(&["why", "2"]).out, before, "{release}");
        site.file("gpuos.toml", STATED);
        assert_eq!(site.run(&["why", "2"]).out, before, "{release}");
        give(&site, 200_000);
        let told = site.run(&["why", "2"]).out;
        assert!(told.contains(&said), "{release}: {told}");
        assert_eq!(told.replace(&format!(" {said}"), ""), before);
        let json = &site.run(&["why", "2", "--json"]).json()["jobs"][0];
        let memory = &json["memory"];
        assert_eq!(memory["option"], "--gpuos-mem=120G");
        assert_eq!(
            [&memory["own_mib_per_gpu"], &memory["host_mib_per_gpu"]],
            [80_535, 42_345]
        );
        assert_eq!(memory["in_script"], true);
        site.file("script", "#!/bin/sh\n#SBATCH --gpuos-mem=40G,tiers=hbm\n");
        let told = site.run(&["why", "2"]).out;
        assert!(
            told.contains("each of its GPUs has 40.0 GiB, all in its own memory"),
            "{told}"
        );
    }
}

#[test]
fn the_submit_line_counts_more_than_the_script_and_what_others_write_for_nothing() {
    let site = Site::new("26.05.5");
    site.file("gpuos.toml", STATED);
    give(&site, 200_000);
    site.edit("jobs.txt", "JobName=gang", "JobName=--gpuos-mem=90G");
    assert!(!site.run(&["why", "2"]).out.contains("gpuos-mem=90G"));
    // The script beside a line that has other options alone.
    site.edit("jobs.txt", "-t 30 -J gang", "-t 30 --gpuos=on -J gang");
    site.file("script", "#!/bin/sh\n#SBATCH --gpuos-mem=120G\n");
    let told = site.run(&["why", "2"]).out;
    assert!(
        told.contains("By --gpuos-mem=120G of its batch script each"),
        "{told}"
    );
    site.edit("jobs.txt", "-t 30 --gpuos=on", "-t 30 --gpuos-mem=100G");
    let told = site.run(&["why", "2"]).out;
    assert!(
        told.contains("By --gpuos-mem=100G each of its GPUs has 100.0 GiB"),
        "{told}"
    );
    site.edit("jobs.txt", "--gpuos-mem=100G", "--gpuos-mem=off");
    let told = site.run(&["why", "2"]).out;
    assert!(!told.contains("gpuos-mem"), "{told}");
}

#[test]
fn why_says_which_part_of_a_waiting_jobs_memory_its_gpus_take() {
    for release in RELEASES {
        let site = Site::new(release);
        site.file("gpuos.toml", STATED);
        site.file("script", "#!/bin/sh\n#SBATCH --gpuos-mem=120G\n");
        // With memory for each CPU it was submitted with another option, or with none.
        assert!(!site.run(&["why", "8"]).out.contains("gpuos-mem"));
        site.edit("jobs.txt", "MinMemoryCPU=10M", "MinMemoryNode=0");
        let each = "--gpuos-mem=120G of its batch script takes 42345 MiB of the host's memory for each of its GPUs";
        let told = site.run(&["why", "8"]).out;
        assert!(told.contains(each), "{release}: {told}");
        site.edit("jobs.txt", "MinMemoryNode=0", "MinMemoryNode=340000M");
        let part = "Of the 340000 MiB of each node's memory that it asks for, 338760 MiB are what --gpuos-mem=120G of its batch script takes of the host \
             for 8 GPUs";
        let told = site.run(&["why", "8"]).out;
        assert!(told.contains(part), "{release}: {told}");
        let json = &site.run(&["why", "8", "--json"]).json()["jobs"][0];
        assert_eq!(json["memory"]["host_mib_of_node"], 338_760);
        assert_eq!(json["memory"]["room_without"], false);
        // In turns: a job of shards, which Slurm alone counts.
        site.edit("jobs.txt", "gpu:8\n", "shard:2\n");
        site.file(
            "script",
            "#!/bin/sh\n#SBATCH --gpuos-share=timeslice,mem=60G\n",
        );
        let place = "61440 MiB are the place of --gpuos-share=timeslice,mem=60G of its batch script for what is parked";
        let told = site.run(&["why", "8"]).out;
        assert!(
            told.contains("It asks for parts of GPUs") && told.contains(place),
            "{release}: {told}"
        );
        site.file(
            "script",
            "#!/bin/sh\n#SBATCH --gpuos-share=timeslice,mem=60G,park=nvme\n",
        );
        let json = &site.run(&["why", "8", "--json"]).json()["jobs"][0];
        assert_eq!(json["memory"]["nvme_gib_of_node"], 60);
    }
}
