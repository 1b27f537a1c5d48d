//! `gpuos plan --defrag`: preemptions and moves that would let a job start.

use crate::site::Site;

/// Four GPUs on one node, of which no node has so many free.
pub const ASK: [&str; 5] = ["plan", "--gpus-per-node=4", "-x", "n4", "--defrag"];

/// n4 is idle; n2 has one free GPU, and job 3 holds three of the others.
pub fn site() -> Site {
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    site
}

/// Jobs of the partition high may preempt those of main.
fn preempting() -> Site {
    let site = site();
    let (from, to) = (
        "PreemptType             = (null)",
        "PreemptType = preempt/partition_prio",
    );
    site.edit("config.txt", from, to);
    site.edit("nodes.txt", "Partitions=main", "Partitions=main,high");
    site.file(
        "partitions.txt",
        "PartitionName=main\n   Default=YES PriorityTier=1 PreemptMode=REQUEUE\n\n\
         PartitionName=high\n   Default=NO PriorityTier=10 PreemptMode=OFF\n\n",
    );
    site
}

#[test]
fn the_cheapest_move_is_shown_with_its_cost() {
    let site = site();
    let answer = site.run(&ASK);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    for words in [
        "With 1 job out of its way it could start: 4 GPUs on 1 node (n2)",
        "3 GPUs moved, 239 GiB of GPU memory copied",
        "proved cheapest",
        "Nothing was done.",
        "Slurm preempts no job here",
    ] {
        assert!(answer.out.contains(words), "{words}:\n{}", answer.out);
    }
    let json = site.run(&[&ASK[..], &["--json"]].concat()).json();
    let action = &json["actions"][0];
    assert_eq!(
        (&action["job"], &action["action"]),
        (&"3".into(), &"move".into())
    );
    assert_eq!(
        (&action["to"][0]["node"], &action["to"][0]["gpus"]),
        (&"n4".into(), &3.into())
    );
    assert_eq!(
        (&json["method"], &json["cost"]["gpus_moved"]),
        (&"exact".into(), &3.into())
    );
    assert_eq!(
        json["place"]["nodes"][0]["gpus"].as_array().unwrap().len(),
        4
    );
    assert_eq!(json["bound_gpu_seconds"], json["cost"]["gpu_seconds"]);
    let none = site.run(&[&ASK[..], &["--no-moves"]].concat());
    assert_eq!(none.code, 1, "{}", none.out);
}

#[test]
fn gpus_in_all_may_lie_on_any_number_of_nodes() {
    // Six are free on no node; two nodes with three each cost less than one with six.
    let site = site();
    let ask = |gpus: &str| {
        let args = ["plan", gpus, "-x", "n4", "--defrag", "--json"];
        site.run(&args).json()
    };
    let total = ask("--gpus=6");
    assert_eq!(total["possible"], true, "{total}");
    let whole = ask("--gpus-per-node=6");
    let cost = |json: &serde_json::Value| json["cost"]["gpu_seconds"].as_u64();
    let whole = cost(&whole).unwrap_or(u64::MAX);
    assert!(cost(&total).is_some_and(|total| total <= whole), "{total}");
}

#[test]
fn only_those_are_preempted_whom_slurm_may_preempt() {
    let site = preempting();
    let ask = |more: &[&str]| site.run(&[&ASK[..], &["--json"], more].concat()).json();
    // From the same partition nobody may be.
    assert_eq!(ask(&["-p", "main"])["preemptable_jobs"], 0);
    // Young jobs lose little, if only they start again quickly.
    let high = ask(&["-p", "high", "--restart-seconds=0"]);
    assert_eq!(high["preemptable_jobs"], 5, "{high}");
    assert_eq!(
        (&high["actions"][0]["job"], &high["actions"][0]["action"]),
        (&"3".into(), &"preempt".into())
    );
    assert!(high["cost"]["gpu_hours_lost"].as_f64() > Some(0.0));
    let high = ask(&["-p", "high"]);
    assert_eq!(
        high["actions"][0]["action"], "move",
        "a restart takes longer than the copy"
    );
}

#[test]
fn running_gangs_and_rules_count() {
    let site = site();
    site.file(
        "gpuos.toml",
        "[[fabric.net]]\nname = \"ib\"\nkind = \"fat-tree\"\nnodes = \"n[1-4]\"\nnode-gbps = 25\n\
         nodes-per-switch = 2\nfanout = [2]\noversubscription = [8]\n",
    );
    // Job 2 runs on n1 and n2; with one more than n4, some of it uses the same adapters.
    let ask = ["plan", "--gpus-per-node=4", "-N2", "--defrag"];
    let text = site.run(&ask);
    assert_eq!(text.code, 0, "{}{}", text.out, text.err);
    assert!(
        text.out.contains("Between the nodes, as modelled: ")
            && text.out.contains("beside the jobs that run"),
        "{}",
        text.out
    );
    let json = site.run(&[&ask[..], &["--json"]].concat()).json();
    let gbps = |name: &str| json["network"][name].as_f64().unwrap();
    assert!(
        gbps("beside_running_gbps") > 0.0 && gbps("beside_running_gbps") <= gbps("alone_gbps"),
        "{json}"
    );
    // n4 is idle, and kept for gangs: from the job itself, and from jobs that would have to make way.
    site.file(
        "gpuos.toml",
        "[[reserve]]\nnodes = 1\ngangs = 2\nhard = true\n",
    );
    let one = site.run(&["plan", "--gpus-per-node=8", "--defrag"]);
    assert!(
        one.code == 1 && one.out.contains("n4 is not for this job") && !one.out.contains("(n4)"),
        "{}{}",
        one.out,
        one.err
    );
    let ask = site.run(&[&ASK[..], &["--json"]].concat()).json();
    let actions = ask["actions"].as_array().unwrap();
    let to_n4 = |action: &serde_json::Value| {
        let to = action["to"].as_array().into_iter().flatten();
        to.filter(|to| to["node"] == "n4").count()
    };
    assert_eq!(actions.iter().map(to_n4).sum::<usize>(), 0, "{ask}");
}

#[test]
fn what_fits_needs_nothing_and_what_it_cannot_plan_is_told() {
    let site = site();
    let fits = site.run(&["plan", "--gres=gpu:8", "--defrag"]);
    assert!(
        fits.code == 0 && fits.out.starts_with("It would start now"),
        "{}",
        fits.out
    );
    let never = site.run(&["plan", "--gres=gpu:8", "-N5", "--defrag"]);
    assert_eq!(never.code, 1);
    assert!(
        never.out.contains("No set of preemptions and moves"),
        "{}",
        never.out
    );
    // A total that not even idle nodes have room for: no other way to write it helps.
    let total = ["plan", "--gpus=40", "--defrag"];
    let never = site.run(&total);
    assert_eq!(never.code, 1);
    assert!(
        never
            .out
            .starts_with("No set of preemptions and moves can make room, not even on idle nodes")
            && never.out.contains("the job needs 40 GPUs"),
        "{}{}",
        never.out,
        never.err
    );
    let json = site.run(&[&total[..], &["--json"]].concat()).json();
    assert_eq!(json["possible"], false);
    assert!(json["never"].as_str().unwrap().contains("40 GPUs"));
    for (args, words) in [
        (&["plan", "--gpus=30", "--defrag"][..], "--gpus-per-node=N"),
        (
            &["plan", "--gres=gpu:8", "-N2", "--exclusive", "--defrag"],
            "--exclusive",
        ),
        (
            &["plan", "--gres=gpu:8", "-N2", "-w", "n1", "--defrag"],
            "--nodelist",
        ),
    ] {
        let answer = site.run(args);
        assert_eq!(answer.code, 1, "{args:?}");
        assert!(
            answer.err.contains(words),
            "{args:?}: {}{}",
            answer.err,
            answer.out
        );
    }
    let alone = site.run(&["plan", "--gres=gpu:8", "--no-moves"]);
    assert!(
        alone.code == 2 && alone.err.contains("--defrag"),
        "{}",
        alone.err
    );
}
