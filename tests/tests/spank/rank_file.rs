//! `GPUOS_RANK_FILE`, the order of the ranks of a job with a shape.

use gpuos_lab::Suite;
use gpuos_tests::{plugins, program};

use super::LIMIT;
use super::lab::{no_node_is_drained, up, with};

/// The rank file: in the batch script and in each step that is the whole job, for an ordinary user's
/// eyes too, and gone when they have ended.
pub fn rank_file(suite: &Suite) {
    let Some(lab) = up(suite, false, plugins::built()) else {
        return;
    };
    // n1 and n3 share a switch, so do n2 and n4: the order is the fabric's, not that of the names.
    let tree = "SwitchName=leaf1 Nodes=n[1,3]\nSwitchName=leaf2 Nodes=n[2,4]\nSwitchName=top Switches=leaf[1-2]\n";
    lab.write_conf("topology.conf", tree).expect("writes");
    lab.restart().expect("restarts");
    let show = lab.dir().join("work/ranks.sh");
    let script = "#!/bin/sh\n\
        echo \"$1 $SLURMD_NODENAME $GPUOS_RANK_FILE $(stat -c %a \"$GPUOS_RANK_FILE\" 2>&1)\"\n\
        rank=$(awk -v node=\"$SLURMD_NODENAME\" '$1 == \"#node\" && $3 == node { print $2 }' \"$GPUOS_RANK_FILE\")\n\
        first=$(awk '$1 == \"#node\" && $2 == 0 { print $3 }' \"$GPUOS_RANK_FILE\")\n\
        echo \"$1 $SLURMD_NODENAME is node $rank after $first\"\n\
        grep -v '^#gpus' \"$GPUOS_RANK_FILE\" | sed \"s/^/$1 $SLURMD_NODENAME: /\"\n";
    program(&show, script);
    let show = show.display();
    let run = format!(
        "{show} batch; srun {show} step; srun -N1 -n1 {show} part; \
         echo shape=$GPUOS_JOB_SHAPE; echo end"
    );
    let options = ["-N4", "--gpus-per-node=2", "--gpuos-shape=tp2:pp2:dp2"];
    let job = lab.sbatch(&options, &run).expect("submits");
    let text = lab.wait_output(job, "end", LIMIT).expect("runs");
    assert!(text.contains("shape=tp2:pp2:dp2"), "{text}");
    let of = |who: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(who));
        let lines: Vec<String> = lines.by_ref().map(String::from).collect();
        lines
    };
    for who in [
        "batch n1: ",
        "step n1: ",
        "step n2: ",
        "step n3: ",
        "step n4: ",
    ] {
        let lines = of(who);
        assert_eq!(lines.len(), 1 + 4 + 8, "{who}{text}");
        assert_eq!(
            lines[..5],
            [
                "# gpuos ranks, shape tp2:pp2:dp2",
                "#node 0 n1",
                "#node 1 n3",
                "#node 2 n2",
                "#node 3 n4"
            ],
            "{text}"
        );
        assert!(lines[5].starts_with("rank 0=n1 slot=0:*"), "{text}");
        assert!(lines[7].starts_with("rank 2=n3 slot=0:*"), "{text}");
        assert!(lines[12].starts_with("rank 7=n4 slot=0:*"), "{text}");
    }
    let files: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("batch n") || line.starts_with("step n"))
        .filter(|line| line.contains(" /run/gpuos/"))
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    assert_eq!(files.len(), 5, "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("batch n1 /run/gpuos/ranks.") && line.ends_with(" 644")),
        "{text}"
    );
    // The lines of docs/user/gangs.md for torchrun.
    for line in [
        "step n1 is node 0 after n1",
        "step n3 is node 1 after n1",
        "step n2 is node 2 after n1",
    ] {
        assert!(text.contains(line), "{text}");
    }
    // A step that is a part of the job has none.
    assert!(text.contains("part n1  "), "{text}");
    lab.wait_job(job, &["COMPLETED"], LIMIT).expect("ends");
    let again = lab
        .sbatch(
            &["-N1"],
            &format!(
                "ls {} 2>&1; echo none=$GPUOS_RANK_FILE; echo end",
                files.join(" ")
            ),
        )
        .expect("submits");
    let text = lab.wait_output(again, "end", LIMIT).expect("runs");
    assert_eq!(text.matches("No such file").count(), 5, "{text}");
    assert!(text.contains("none=\n"), "{text}");
    // An srun of its own, and one in salloc.
    let whole: &[&str] = &[
        "-N2",
        "-n2",
        "-wn1,n3",
        "--gpus-per-node=2",
        "--gpuos-shape=tp2:dp2",
    ];
    let show = show.to_string();
    let (code, text) = with(&lab, &[], "srun", &[whole, &[&show, "srun"]].concat());
    assert!(code == 0 && text.contains("srun n3: rank 3=n3"), "{text}");
    let (code, text) = with(
        &lab,
        &[],
        "salloc",
        &[whole, &["-Q", "srun", &show, "step"]].concat(),
    );
    assert!(code == 0 && text.contains("step n3: rank 3=n3"), "{text}");
    no_node_is_drained(&lab);
    lab.down().expect("goes down");
}
