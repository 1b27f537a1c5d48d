//! LSF and Torque, by exchanges that were written after their public documentation.

use gpuos_wlm::batch::{folder_of, is_first_task, of_gpufile, of_visible, saves_here, wish};
use gpuos_wlm::lsf::{environment_list, wish_left};
use gpuos_wlm::torque::Submission;
use proptest::prelude::*;

#[test]
fn a_wish_is_read_as_sbatch_reads_it() {
    assert_eq!(wish("").unwrap().topology, None);
    assert!(wish("nvlink:required").unwrap().topology.unwrap().required);
    let why = wish("nvlink:maybe").unwrap_err();
    assert!(
        why.starts_with("GPUOS_TOPOLOGY=nvlink:maybe: 'maybe' is not understood"),
        "{why}"
    );
    assert!(wish("leaf").unwrap_err().contains("no level 'leaf'"));
}

/// What the filter says of a job with this script and these arguments, submitted where the variable is `leaf`, which is refused.
fn refusal(script: &str, arguments: &[&str]) -> Option<String> {
    let arguments: Vec<String> = arguments.iter().map(|word| word.to_string()).collect();
    Submission::read(script, &arguments).check("leaf").err()
}

#[test]
fn scripts_of_torque_say_it_where_qsub_reads() {
    let refused = [
        "#!/bin/sh\n#PBS -l nodes=1:gpus=2 -v A=1,GPUOS_TOPOLOGY=rack -N x\n\ntrain\n",
        "#PBS -N x -v \"A=1, GPUOS_TOPOLOGY=rack\"\n",
        "#PBS -N 'a b' -Vv GPUOS_TOPOLOGY='rack'\n",
        "#PBS -vGPUOS_TOPOLOGY=rack\r\n",
        "# a comment\n\n  #PBS -hv GPUOS_TOPOLOGY=rack\n",
        ":\n#PBS -v A=1,\\\nGPUOS_TOPOLOGY=rack\n",
        "#PBS -v GPUOS_TOPOLOGY=ra\\ck\n",
        "#PBS -v GPUOS_TOPOLOGY=node\n#PBS -v GPUOS_TOPOLOGY=rack\n",
    ];
    for script in refused {
        let why = refusal(script, &[]).unwrap_or_default();
        assert!(
            why.contains("GPUOS_TOPOLOGY=rack: a job on one host has no level 'rack'"),
            "{script}: {why}"
        );
        // What qsub is called with comes before it.
        for arguments in [
            &["-v", "B=2,GPUOS_TOPOLOGY=any"][..],
            &["-hvGPUOS_TOPOLOGY=any"],
        ] {
            assert_eq!(refusal(script, arguments), None, "{script}");
        }
    }
    let taken = [
        "#PBS -v A=1,GPUOS_TOPOLOGY=nvlink:required -N x\ntrain\n",
        // Nothing that qsub reads.
        "train\n#PBS -v GPUOS_TOPOLOGY=rack\n",
        ": here\ntrain\n#PBS -v GPUOS_TOPOLOGY=rack\n",
        "##PBS -v GPUOS_TOPOLOGY=rack\n",
        "# PBS -v GPUOS_TOPOLOGY=rack\n",
        // Values of other options.
        "#PBS -N -vGPUOS_TOPOLOGY=rack\n",
        "#PBS -N '-v GPUOS_TOPOLOGY=rack'\n",
        "#PBS -A \"x -v GPUOS_TOPOLOGY=rack\" -N y\n",
        "#PBS -v \"A=1 GPUOS_TOPOLOGY=rack\"\n",
        "#PBS -v XGPUOS_TOPOLOGY=rack\n",
        "#PBS -- -v GPUOS_TOPOLOGY=rack\n",
        "#PBS -N 'not closed -v GPUOS_TOPOLOGY=rack\n",
        "",
    ];
    for script in taken {
        assert_eq!(refusal(script, &[]), None, "{script}");
    }
}

#[test]
fn a_job_of_torque_has_of_the_environment_what_it_takes_from_it() {
    for (script, arguments) in [
        ("#PBS -V\n", &[][..]),
        ("", &["-V"]),
        ("", &["-v", "A=1,GPUOS_TOPOLOGY"]),
    ] {
        let why = refusal(script, arguments).unwrap_or_default();
        assert!(
            why.contains("no level 'leaf'"),
            "{script} {arguments:?}: {why}"
        );
    }
    assert_eq!(refusal("train\n", &["-l", "nodes=1"]), None);
    assert_eq!(refusal("#PBS -V -v GPUOS_TOPOLOGY=node\n", &[]), None);
}

#[test]
fn a_resource_of_gpuos_is_not_torques() {
    let script = "#PBS -l nodes=1:gpus=2 -l gpuos_topology=nvlink -N x\ntrain\n";
    for (script, arguments) in [
        (script, &[][..]),
        ("train\n", &["-l", "walltime=60,gpuos_topology=nvlink"]),
    ] {
        let why = refusal(script, arguments).unwrap_or_default();
        assert_eq!(
            why,
            "-l gpuos_topology=nvlink: gpuos has no such option with this workload manager; write -v GPUOS_TOPOLOGY=VALUE, or leave it out"
        );
    }
}

#[test]
fn directives_of_torque_have_the_prefix_that_qsub_is_told() {
    let script = "#PBS -v GPUOS_TOPOLOGY=rack\n#X -v GPUOS_TOPOLOGY=spine\n";
    let said = |arguments: &[&str]| refusal(script, arguments).unwrap_or_default();
    assert!(said(&["-C", "#X"]).contains("'spine'"));
    // Torque does not tell a filter which one it is.
    assert_eq!(said(&["-C", "-N", "x"]), "");
}

#[test]
fn bsub_env_says_which_wish_a_job_has() {
    let list = |line: &str| environment_list(line);
    assert_eq!(
        list("LSB_SUB_QUEUE=\"normal\"\nLSB_SUB_NUM_PROCESSORS=2\n"),
        None
    );
    let file = "LSB_SUB_COMMAND_LINE=\"a\nLSB_SUB4_SUB_ENV_VARS=none\"\nLSB_SUB_EXCLUSIVE=Y\nLSB_SUB4_SUB_ENV_VARS=\"all, X=\\\"1\\\"\"\nLSB_SUB_QUEUE=\"q\"\n";
    assert_eq!(list(file).as_deref(), Some("all, X=\"1\""));
    for name in ["LSB_SUB4_SUB_ENV_VARS", "LSF_SUB4_SUB_ENV_VARS"] {
        assert_eq!(list(&format!("{name}=none")).as_deref(), Some("none"));
    }
    for (list, wish) in [
        ("all", "own"),
        ("all, X=1", "own"),
        ("none", ""),
        ("", ""),
        ("X, Y=2", ""),
        ("GPUOS_TOPOLOGY", "own"),
        ("X=1,GPUOS_TOPOLOGY=node", "node"),
        (
            "all, GPUOS_TOPOLOGY=nvlink:required, X=1",
            "nvlink:required",
        ),
        ("all, ~GPUOS_TOPOLOGY", ""),
        ("all, ~X", "own"),
        ("all, X='GPUOS_TOPOLOGY, GPUOS_TOPOLOGY=rack'", "own"),
        ("all, GPUOS_TOPOLOGY='node'", "node"),
        ("all, GPUOS_TOPOLOGY=$WISH", ""),
    ] {
        assert_eq!(wish_left(list, "own"), wish, "{list}");
    }
}

#[test]
fn gpus_are_those_that_were_given_here() {
    let file = "n1-gpu0\n\nn1.site-gpu3\nn2-gpu1\n";
    assert_eq!(of_gpufile(file, "N1.example.org"), Ok(vec!["0", "3"]));
    assert_eq!(of_gpufile("gpu-node-gpu7\n", "gpu-node"), Ok(vec!["7"]));
    assert_eq!(of_gpufile("", "n1"), Ok(vec![]));
    for wrong in ["n1-gpux", "n1-gpu", "n1", "-"] {
        let text = format!("n1-gpu0\n{wrong}\n");
        assert_eq!(of_gpufile(&text, "n1"), Err(wrong));
    }
    assert_eq!(of_visible("GPU-a, 1"), ["GPU-a", "1"]);
    // CUDA reads no further than an empty name.
    assert_eq!(of_visible("0,,1"), ["0", "", "1"]);
    assert!(of_visible(" ").is_empty());
}

#[test]
fn a_job_saves_where_its_manager_says() {
    for (methods, here) in [
        ("", true),
        ("gpuos", true),
        ("fluent gpuos", true),
        ("criu", false),
        ("gpuos2", false),
    ] {
        assert_eq!(saves_here(methods), here, "{methods}");
    }
    for job in ["17.head", "17[3].head-a.example.org", "17"] {
        assert_eq!(folder_of(job), Some(job));
    }
    for no in [
        "", ".", "..", "head.17", "17/..", "../17", "17 x", "17\n", "17é",
    ] {
        assert_eq!(folder_of(no), None, "{no}");
    }
    assert_eq!(folder_of(&"1".repeat(201)), None);
    let first = [("", ""), ("0", "1"), ("0", "")];
    let later = [("1", "1"), ("0", "2"), ("x", "1")];
    assert!(first.iter().all(|(node, task)| is_first_task(node, task)));
    assert!(!later.iter().any(|(node, task)| is_first_task(node, task)));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*", more in prop::collection::vec("\\PC{0,20}", 0..5)) {
        let _ = saves_here(&text);
        prop_assert!(folder_of(&text).is_none_or(|name| !name.contains('/') && !name.starts_with('.')));
        let _ = (wish(&text), of_gpufile(&text, "n1"), of_visible(&text));
        let _ = Submission::read(&text, &more).check(&text);
        let _ = Submission::read(&more.join("\n#PBS "), &more).check("");
        let _ = (environment_list(&text), wish_left(&text, "own"));
    }
}
